"""Finds devices on which jobs fail that run elsewhere: a defect that no driver reports.

A job is its own control.  Its failure counts against a device only if a later attempt of the same job got
further on other devices; what fails everywhere is the program's.  Each job counts once for a device.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb, fsum
from typing import Final

from runner.core.policy.causes import ExitCause

SUSPECT_CAUSES: Final = frozenset(
    {
        ExitCause.DEVICE_ERROR,
        ExitCause.DEVICE_FAULT,
        ExitCause.DEVICE_UNAVAILABLE,
        ExitCause.RANK_LOST,
    }
)
"""Causes of ends that a defective device has, among others."""

LEAST_RATE: Final = 0.01
"""The share of jobs that a sound device is taken to fail, if the other devices fail less."""

IMPROBABLE: Final = 1e-5
"""A device with so improbable failures is defective: three of its last five jobs, where others fail none."""


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """An attempt that has ended, with its devices; runs are in the order of their ends."""

    job: str
    owner: str
    devices: frozenset[str]
    ran_s: float  # infinite: it completed
    failed: bool  # in a way in which a defective device makes jobs fail


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of one job on one device."""

    job: str
    owner: str
    failed: bool


def find_defects(runs: Sequence[DeviceRun]) -> Mapping[str, str]:
    """Return the defective devices, each with the evidence."""
    outcomes: dict[str, list[_Outcome]] = defaultdict(list)
    for device, outcome in _outcomes(runs):
        outcomes[device].append(outcome)
    return {
        device: evidence
        for device, mine in outcomes.items()
        if (
            evidence := _judge(
                mine, [each for other in outcomes if other != device for each in outcomes[other]]
            )
        )
    }


def _judge(mine: Sequence[_Outcome], others: Sequence[_Outcome]) -> str:
    """Return the evidence against a device: improbable failures among its last jobs; empty: there is none."""
    failed_elsewhere = sum(each.failed for each in others)
    rate = max(failed_elsewhere / max(len(others), 1), LEAST_RATE)
    for begin in range(len(mine) - 1, -1, -1):
        last = mine[begin:]
        failed = [each for each in last if each.failed]
        if _probability(len(failed), len(last), rate) < IMPROBABLE and not _of_one_owner(last):
            jobs = ", ".join(each.job for each in failed)
            return (
                f"{len(failed)} of its last {len(last)} jobs failed here and ran elsewhere (jobs {jobs});"
                f" on other devices {failed_elsewhere} of {len(others)} did"
            )
    return ""


def _of_one_owner(last: Iterable[_Outcome]) -> bool:
    """Return True if the jobs of one owner alone failed, and those of another did not."""
    failed = {each.owner for each in last if each.failed}
    return len(failed) == 1 and any(each.owner not in failed for each in last)


def _probability(failed: int, jobs: int, rate: float) -> float:
    """Return the probability that so many jobs or more fail, each at a rate."""
    return fsum(comb(jobs, k) * rate**k * (1 - rate) ** (jobs - k) for k in range(failed, jobs + 1))


def _outcomes(runs: Sequence[DeviceRun]) -> Iterator[tuple[str, _Outcome]]:
    """Yield the devices of each job with the outcome there, in the order of the jobs' last ends."""
    last = {run.job: number for number, run in enumerate(runs)}
    by_job = sorted(runs, key=lambda run: last[run.job])  # stable: the attempts of a job stay in order
    for job, attempts in groupby(by_job, key=lambda run: run.job):
        found: dict[str, bool] = {}
        mine = list(attempts)
        for number, run in enumerate(mine):
            if not run.failed:
                found |= dict.fromkeys(run.devices, False)
            elif (suspect := _suspect(run, mine[number + 1 :])) is not None:
                found.setdefault(suspect, True)
        for device, failed in found.items():
            yield device, _Outcome(job, mine[0].owner, failed)


def _suspect(run: DeviceRun, later: Iterable[DeviceRun]) -> str | None:
    """Return the one device of a failed attempt that no later, longer one used; None: there is not one."""
    sound = [each.devices for each in later if not each.failed and each.ran_s >= run.ran_s]
    suspects = run.devices.difference(*sound)
    return next(iter(suspects)) if sound and len(suspects) == 1 else None
