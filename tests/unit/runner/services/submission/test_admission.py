"""Messages about a request for resources that exceeds this machine."""

from pathlib import Path

import pytest

from runner.control.context import Capacity
from runner.core.ports.devices import Device
from runner.files.job.load import parse_job
from runner.services.submission.admission import missing_resources

REASON = "RM has detected an NVML/RM version mismatch"
HERE = (Device("GPU-1", "nvidia", "H100"),)


@pytest.mark.parametrize(
    ("accelerator", "devices", "fact"),
    [
        ("cuda", (), f"asks for 2; there are 0: NVML says {REASON}; ask the operator (runner doctor)"),
        ("auto", HERE, f"asks for 2; there is 1: NVML says {REASON}; ask the operator (runner doctor)"),
        ("rocm", (), "asks for 2; there are 0"),
    ],
)
def test_the_reason_of_the_driver_is_told_with_the_gpus_that_are_missing(
    accelerator: str, devices: tuple[Device, ...], fact: str
) -> None:
    text = f"workload: {{kind: program, command: [x]}}\naccelerator: {accelerator}\nresources: {{gpus: 2}}\n"
    job = parse_job(text.encode(), Path("/x/job.yaml"))
    capacity = Capacity(64.0, 2**40, devices, nvidia_problem=lambda: REASON)
    assert list(missing_resources(job, capacity)) == [(("resources", "gpus"), fact)]
