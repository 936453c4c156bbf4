"""One real device: what the rest of the suite can only simulate."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.contract import AttemptSpec, Profile
from jobs.contract.plans.causal_lm import CausalLm
from jobs.training import batches
from jobs.training.device import Device, is_out_of_memory, prepare
from jobs.training.switches import Switches
from runner.adapters.gpu.nvidia import NvidiaHealth, NvidiaProbe
from scripts.gpu_report.__main__ import main
from scripts.gpu_report.report import read
from scripts.gpu_report.run_part import ORDER

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(mode=False)


def prepared(**switches: Any) -> tuple[Device, Switches]:
    profile = Profile(**{"deterministic": False, **switches})
    plan = CausalLm(data="stdlib", steps=1)
    spec = AttemptSpec(
        job_id="1", attempt=1, lineage=1, workload=plan, profile=profile, accelerator="cuda", cpus=2
    )
    found = Switches(profile)
    return prepare(spec, found), found


def test_the_adapter_reports_the_device_that_torch_uses() -> None:
    devices = NvidiaProbe().devices()
    properties = torch.cuda.get_device_properties(0)
    names = {device.name for device in devices}
    assert properties.name in names
    assert (properties.major, properties.minor) in {device.capability for device in devices}
    health = NvidiaHealth().read(devices)
    assert all(each.used_bytes is not None for each in health.values())


def test_automatic_precision_is_what_the_device_has_natively() -> None:
    device, switches = prepared(precision="auto")
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    assert device.precision == ("bf16" if native else "fp16")
    a = torch.randn(64, 64, device=device.torch_device)
    with device.autocast():
        assert (a @ a).dtype == device.compute_dtype
    assert switches.report()["precision"].applied == device.precision


def test_an_allocation_that_does_not_fit_is_recognised() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    assert is_out_of_memory(caught.value)


def test_a_batch_travels_from_pinned_memory() -> None:
    batch = batches.pin({"rows": torch.arange(1024).view(32, 32)})
    sent = batches.to(batch, torch.device("cuda", 0), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(sent["rows"].cpu(), batch["rows"])


@pytest.mark.parametrize("name", ["exact", "oom", "lent", "seen", "several"])
def test_a_part_of_the_report_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    code = main(["--tiny", "--only", name, "--results", str(tmp_path)])
    [part] = read(tmp_path, ORDER)
    assert code == 0, [finding for finding in part.findings if finding.status == "failed"]
    assert all(finding.status != "not run" for finding in part.findings if name != "oom")
