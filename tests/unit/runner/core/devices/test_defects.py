"""Devices on which jobs fail that run elsewhere, and everything else that fails."""

from collections.abc import Iterator
from random import Random

import pytest

from runner.core.devices.defects import DeviceRun, find_defects

DEVICES = [f"GPU-{number}" for number in range(8)]
OWNERS = [f"owner-{number}" for number in range(40)]
KEPT = 500


def run(
    job: int, devices: str, *, failed: bool = False, owner: str = "ann", ran_s: float = 60.0
) -> DeviceRun:
    return DeviceRun(str(job), owner, frozenset(devices.split("+")), 10.0 if failed else ran_s, failed)


def moved(job: int, bad: str, good: str = "GPU-1", owner: str = "ann") -> list[DeviceRun]:
    """Return a job that failed on one device and ended on another."""
    return [run(job, bad, failed=True, owner=owner), run(job, good, owner=owner)]


def test_three_jobs_that_fail_on_one_device_and_run_elsewhere_convict_it() -> None:
    runs = [*moved(1, "GPU-0"), *moved(2, "GPU-0", "GPU-2"), *moved(3, "GPU-0")]
    assert find_defects(runs) == {
        "GPU-0": "3 of its last 3 jobs failed here and ran elsewhere (jobs 1, 2, 3);"
        " on other devices 0 of 3 did"
    }
    assert not find_defects(runs[:-2])


def test_a_program_that_fails_wherever_it_runs_convicts_no_device() -> None:
    assert not find_defects([run(job, "GPU-0", failed=True) for job in range(50)])
    twice = [run(job, device, failed=True) for job in range(50) for device in ("GPU-0", "GPU-1")]
    assert not find_defects(twice)


def test_one_job_counts_once_however_often_it_is_retried() -> None:
    again = [run(1, "GPU-0", failed=True) for _ in range(20)]
    assert not find_defects([*again, run(1, "GPU-1")])


def test_an_attempt_that_ended_at_once_elsewhere_proves_nothing() -> None:
    runs = [each for job in range(5) for each in moved(job, "GPU-0")]
    assert not find_defects(
        [each if each.failed else run(int(each.job), "GPU-1", ran_s=1.0) for each in runs]
    )


def test_a_failure_of_several_devices_counts_for_the_one_that_is_not_cleared() -> None:
    both = [each for job in range(3) for each in moved(job, "GPU-0+GPU-1", "GPU-2")]
    assert not find_defects(both)
    narrowed = [each for job in range(3) for each in moved(job, "GPU-0+GPU-1", "GPU-1+GPU-2")]
    assert set(find_defects(narrowed)) == {"GPU-0"}


def test_failures_of_one_owner_beside_the_success_of_another_are_the_owners() -> None:
    [first, second, third] = (moved(job, "GPU-0") for job in range(3))
    between = run(9, "GPU-0", owner="bo")
    mixed = [*first, *second, between, *third]
    assert not find_defects(mixed)
    assert set(find_defects([*mixed, *moved(5, "GPU-0", owner="cy")])) == {"GPU-0"}


def test_where_other_devices_fail_as_often_no_device_is_defective() -> None:
    runs = [each for job in range(24) for each in moved(job, DEVICES[job % 8], DEVICES[(job + 1) % 8])]
    assert not find_defects(runs)


def simulate(random: Random, jobs: int, bad: str | None, bad_from: int) -> Iterator[list[DeviceRun]]:
    """Yield the newest runs after each job that has failed somewhere, as a daemon looks at them.

    One job in 500 fails by chance, and the programs of one owner in forty fail wherever they run.
    """
    runs: list[DeviceRun] = []
    for job in range(jobs):
        owner, device = random.choice(OWNERS), random.choice(DEVICES)
        is_bad = device == bad and job >= bad_from
        broken = owner == OWNERS[0]
        failed = broken or is_bad or random.random() < 0.002
        runs.append(run(job, device, failed=failed, owner=owner))
        if failed:
            other = random.choice([each for each in DEVICES if each != device])
            runs.append(run(job, other, failed=broken, owner=owner))
            runs = runs[-KEPT:]
            yield runs


def test_of_ten_thousand_jobs_none_convicts_a_sound_device() -> None:
    assert not any(find_defects(runs) for runs in simulate(Random(3), 10_000, None, 0))  # noqa: S311  a simulation


@pytest.mark.parametrize("seed", range(8))
def test_one_bad_device_of_eight_is_found_within_three_failures(seed: int) -> None:
    bad, failures = DEVICES[seed], set[str]()
    for runs in simulate(Random(seed), 2_000, bad, 1_000):  # noqa: S311  a simulation
        failures |= {
            each.job
            for each in runs
            if each.failed and bad in each.devices and int(each.job) >= 1_000 and each.owner != OWNERS[0]
        }
        if found := find_defects(runs):
            assert set(found) == {bad}
            break
    assert len(failures) <= 3
