from pathlib import Path

import pytest

from jobs.contract import AttemptSpec
from runner.agent.attempts.prepare import limit_device_memory
from runner.core.job.attempt import Attempt
from runner.core.ports.devices import Device
from runner.files.job.load import parse_job
from runner.files.revision import Revision

GIB = 1024**3
SHARED = Device("GPU-a", "nvidia", "L4", 24 * GIB, kind="shared")


def spec(profile: str = "{}") -> AttemptSpec:
    workload = "workload: {kind: causal_lm, data: stdlib}"
    text = f"{workload}\nprofile: {profile}\naccelerator: cuda\nresources: {{gpus: 1}}\n"
    job = parse_job(text.encode(), Path("/x/job.yaml"))
    revision = Revision(job=job, path="/x", accelerator="cuda", uid=1, gid=1, groups=(), user="ann")
    return revision.spec("1", Attempt(1, 1), in_container=False)


def test_a_job_on_a_shared_device_is_told_its_part() -> None:
    assert limit_device_memory(spec(), 6 * GIB, [SHARED]).profile.memory_fraction == 0.25


def test_of_several_devices_the_smallest_counts() -> None:
    small = Device("GPU-b", "nvidia", "T4", 12 * GIB, kind="shared")
    assert limit_device_memory(spec(), 6 * GIB, [SHARED, small]).profile.memory_fraction == 0.5


@pytest.mark.parametrize(
    ("part", "device"),
    [
        (None, SHARED),
        (6 * GIB, Device("GPU-a", "nvidia", "L4", 24 * GIB)),
        (6 * GIB, Device("GPU-a", "nvidia", "L4", None, kind="shared")),
    ],
)
def test_everybody_else_is_told_nothing_new(part: int | None, device: Device) -> None:
    told = spec()
    assert limit_device_memory(told, part, [device]) is told


def test_a_smaller_share_of_its_own_profile_stays() -> None:
    assert (
        limit_device_memory(spec("{memory_fraction: 0.1}"), 6 * GIB, [SHARED]).profile.memory_fraction == 0.1
    )


def test_no_share_is_more_than_all() -> None:
    assert limit_device_memory(spec(), 60 * GIB, [SHARED]).profile.memory_fraction == 1.0
