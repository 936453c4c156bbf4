"""Every switch is accounted for: in force, replaced by something else, or of no use here."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jobs.contract import SWITCHES, AttemptSpec, Profile
from jobs.training.device import prepare
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext, build
from tests.fakes.workloads.small_sets import KINDS, small_plan
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


def test_a_switch_that_nobody_mentions_is_reported_as_not_used() -> None:
    report = Switches(Profile(loader_prefetch=7)).report()
    assert set(report) == set(SWITCHES)
    unused = report["loader_prefetch"]
    assert (unused.requested, unused.applied, unused.verified) == ("7", None, None)


def test_a_switch_in_force_is_what_was_requested_unless_another_value_is_given() -> None:
    switches = Switches(Profile(micro_batch="auto", deterministic=True))
    switches.applied("deterministic", verified=True)
    switches.applied("micro_batch", 32)
    switches.applied("memory_fraction")
    report = switches.report()
    assert (report["deterministic"].applied, report["deterministic"].verified) == ("true", True)
    assert (report["micro_batch"].requested, report["micro_batch"].applied) == ("auto", "32")
    assert report["micro_batch"].verified is None
    assert report["memory_fraction"].applied == "null"


def test_what_fell_back_is_listed_with_both_values_and_the_reason() -> None:
    switches = Switches(Profile(non_blocking=True))
    switches.applied("deterministic")
    switches.fell_back("non_blocking", value=False, why="nothing to wait for")
    assert switches.fallbacks == ("non_blocking true: using false: nothing to wait for",)
    assert switches.report()["non_blocking"].verified


def test_falling_back_to_what_was_asked_for_is_no_fallback() -> None:
    switches = Switches(Profile(placement="host"))
    switches.fell_back("placement", "host", "a CPU")
    assert switches.fallbacks == ()


def test_a_long_reason_is_cut_to_what_the_contract_allows() -> None:
    switches = Switches(Profile())
    switches.fell_back("compile", "off", "x" * 5000)
    switches.applied("placement", note="y" * 5000)
    report = switches.report()
    assert (len(report["compile"].note), len(report["placement"].note)) == (1000, 1000)


def test_a_training_says_which_switches_it_has_no_use_for(job: JobDir) -> None:
    training = make(job)
    training.rehearse()
    report = training.effective().switches
    unused = {name for name, switch in report.items() if switch.applied is None}
    assert {"encode_once", "graph_cache", "stream_buffer", "loader_prefetch"} <= unused
    assert not {"deterministic", "optimizer", "attention", "micro_batch", "placement", "compile"} & unused
    assert report["optimizer"].verified


ON_A_GPU = {"allocator", "launch_blocking", "compile", "memory_fraction"}
"""Switches that are verified where they have an effect: on a GPU, or when something is compiled."""


@pytest.fixture
def numbers_as_before() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    tf32, anomaly = torch.backends.cudnn.allow_tf32, torch.is_anomaly_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32
    torch.autograd.set_detect_anomaly(anomaly)
    torch.use_deterministic_algorithms(mode=False)


def looked_at(kind: str, directory: Path, profile: Profile) -> set[str]:
    """Return the switches that a training of this kind reports as verified, or as wrong."""
    plan = small_plan(kind, directory / "data")
    spec = AttemptSpec.model_validate(
        {"job_id": "1", "attempt": 1, "lineage": 1, "workload": plan, "profile": profile}
    )
    switches = Switches(profile)
    device = prepare(spec, switches)
    workload = build(spec.workload, BuildContext(0, switches, directory / "cache"))  # type: ignore[arg-type]
    Training(spec, spec.workload, workload, device, switches).rehearse()  # type: ignore[arg-type]
    return {name for name, switch in switches.report().items() if switch.verified is not None}


@pytest.mark.usefixtures("numbers_as_before")
def test_the_page_says_of_each_switch_whether_it_is_looked_at(tmp_path: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "profiles" / "switches.md"
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page.read_text(), re.MULTILINE)
    verified = {name for name, cells in rows if cells.split(" | ")[3].strip() != "not looked at"}
    assert {name for name, _ in rows} == set(SWITCHES)
    profile = Profile(threads=1, stream_buffer_memory=2**20)
    found = {name for kind in KINDS for name in looked_at(kind, tmp_path / kind, profile)}
    assert found - ON_A_GPU == verified - ON_A_GPU
