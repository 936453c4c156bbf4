"""The report of a simulation: utilization, waiting times and fairness."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, inf
from statistics import fmean

from runner.core.scheduler.fairshare import jain_index
from runner.core.scheduler.simulator import SimulatedJob, Site

MIN_SLOWDOWN_S = 10.0
"""Jobs shorter than this count as so long in a slowdown (D. Feitelson et al., JSSPP 1997)."""

PERCENTILES = (50, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class UserReport:
    """The result for one user."""

    jobs: int
    device_hours: float
    mean_wait_s: float
    mean_slowdown: float
    due: float  # part that it got of its max-min fair share of the devices, while it wanted them
    service: float  # device-seconds held by device-seconds from submission to end: 1 is no waiting


@dataclass(frozen=True, slots=True)
class WorseOff:
    """The jobs that ended later than in another order, and by how much."""

    jobs: int
    mean_s: float  # of those jobs alone; 0 if there are none
    most_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """The result for all users."""

    jobs: int
    never_started: int
    makespan_s: float
    utilisation: float  # device-seconds allocated of those there were, from first submission to last end
    mean_wait_s: float
    waits_s: Mapping[int, float]  # by percentile
    mean_slowdown: float
    preemptions: int
    switching: float  # part of the device time that switching cost: saves, restarts, repeated work
    largest_completion_s: float  # mean time from submission to end of the largest tenth of the jobs
    mean_completion_s: float  # from submission to end
    slowdown_by_gpus: Mapping[int, float]  # the mean of the jobs with so many GPUs
    fairness: float  # Jain's index of the users' part of what was due to them
    fairness_service: float  # Jain's index of the users' service
    users: Mapping[str, UserReport]
    worse_than_fifo: WorseOff | None = None  # None: not compared


def make_report(site: Site, played: Sequence[SimulatedJob], of: int) -> Report:
    """Return the report of ``of`` jobs of which these were played.

    Raises:
        ValueError: none was.
    """
    if not played:
        raise ValueError("no job started")
    begins_s = min(each.arrival.submitted_s for each in played)
    makespan_s = max(each.ended_s for each in played) - begins_s
    devices = sum(len(host.devices) for host in site.hosts)
    lent_s = sum(_device_s(each, each.held_s) for each in played)
    due = fair_share_received(played, devices)
    users = {name: _user(group, due[name]) for name, group in sorted(_by_user(played).items())}
    waits = sorted(each.waited_s for each in played)
    return Report(
        jobs=len(played),
        never_started=of - len(played),
        makespan_s=makespan_s,
        utilisation=lent_s / (devices * makespan_s) if devices and makespan_s else 0.0,
        mean_wait_s=fmean(waits),
        waits_s={share: waits[max(-(-len(waits) * share // 100) - 1, 0)] for share in PERCENTILES},
        mean_slowdown=fmean(slowdown(each) for each in played),
        preemptions=sum(len(each.spans) - 1 for each in played),
        switching=sum(_device_s(each, each.switched_s) for each in played) / lent_s if lent_s else 0.0,
        largest_completion_s=_largest_completion_s(played),
        mean_completion_s=fmean(each.ended_s - each.arrival.submitted_s for each in played),
        slowdown_by_gpus=_slowdown_by_gpus(played),
        fairness=jain_index(user.due for user in users.values()),
        fairness_service=jain_index(user.service for user in users.values()),
        users=users,
    )


def _largest_completion_s(played: Sequence[SimulatedJob]) -> float:
    """Return the mean time from submission to end of the tenth of the jobs with the most device time."""
    largest = nlargest(
        max(len(played) // 10, 1), played, key=lambda each: _device_s(each, each.arrival.duration_s)
    )
    return fmean(each.ended_s - each.arrival.submitted_s for each in largest)


def _slowdown_by_gpus(played: Iterable[SimulatedJob]) -> dict[int, float]:
    """Return the mean slowdown of the jobs of each number of GPUs."""
    found: dict[int, list[float]] = {}
    for each in played:
        found.setdefault(each.arrival.request.gpus, []).append(slowdown(each))
    return {gpus: fmean(values) for gpus, values in sorted(found.items())}


def worse_off(played: Iterable[SimulatedJob], others: Iterable[SimulatedJob]) -> WorseOff:
    """Return the jobs that ended later than the same jobs in another order."""
    ends_s = {each.arrival.job_id: each.ended_s for each in others}
    later_s = [
        each.ended_s - ends_s[each.arrival.job_id]
        for each in played
        if each.ended_s > ends_s.get(each.arrival.job_id, inf)
    ]
    return WorseOff(len(later_s), fmean(later_s) if later_s else 0.0, max(later_s, default=0.0))


def occupation(played: Sequence[SimulatedJob], samples: int = 400) -> tuple[list[float], list[float]]:
    """Return times in seconds from the first submission, and the mean of the devices held until the next."""
    if not played:
        return [], []
    begins_s = min(each.arrival.submitted_s for each in played)
    step_s = max((max(each.ended_s for each in played) - begins_s) / samples, 1e-9)
    held_s = [0.0] * samples
    for each in played:
        for span in each.spans:
            first, last = ((at_s - begins_s) / step_s for at_s in span)
            for step in range(int(first), min(int(last) + 1, samples)):
                lasts = min(last, step + 1) - max(first, step)
                held_s[step] += each.arrival.request.gpus * max(lasts, 0.0)
    return [step * step_s for step in range(samples)], held_s


SAMPLES = 4000
"""Number of times at which allocations and fair shares are compared."""


def fair_share_received(played: Sequence[SimulatedJob], devices: int) -> dict[str, float]:
    """Return for each user the part that it got of its max-min fair share while it wanted devices.

    At a moment, everybody who wants less than an equal part of the devices is due that, and the
    others are due equal parts of the rest (D. Bertsekas, R. Gallager, Data Networks, 1992, 6.5.2).
    """
    begins_s = min(each.arrival.submitted_s for each in played)
    step_s = max((max(each.ended_s for each in played) - begins_s) / SAMPLES, 1e-9)
    wanted: list[dict[str, int]] = [{} for _ in range(SAMPLES)]
    lent: list[dict[str, int]] = [{} for _ in range(SAMPLES)]
    for each in played:
        _mark(wanted, each, (each.arrival.submitted_s - begins_s, each.ended_s - begins_s), step_s)
        for span in each.spans:
            _mark(lent, each, (span[0] - begins_s, span[1] - begins_s), step_s)
    due, got = dict.fromkeys(_by_user(played), 0.0), dict.fromkeys(_by_user(played), 0.0)
    for wants, has in zip(wanted, lent, strict=True):
        for user, part in max_min(wants, devices).items():
            due[user] += part
            got[user] += min(has.get(user, 0), part)
    return {user: got[user] / due[user] if due[user] else 1.0 for user in due}


def _mark(
    samples: list[dict[str, int]], each: SimulatedJob, span: tuple[float, float], step_s: float
) -> None:
    """Add a job's devices to the moments that lie in a span."""
    owner, gpus = each.arrival.owner, each.arrival.request.gpus
    for sample in samples[ceil(span[0] / step_s) : ceil(span[1] / step_s)] if gpus else ():
        sample[owner] = sample.get(owner, 0) + gpus


def max_min(wanted: Mapping[str, int], devices: int) -> dict[str, float]:
    """Return the max-min fair share of each user: at most what the user wants, the rest in equal parts."""
    due: dict[str, float] = {}
    left = float(devices)
    for done, (user, count) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
        due[user] = min(count, left / (len(wanted) - done))
        left -= due[user]
    return due


def slowdown(each: SimulatedJob) -> float:
    """Return the bounded slowdown: time from submission to end by time needed, 1 at least.

    What switching has cost is no time needed.
    """
    needed_s = max(each.held_s - each.switched_s, MIN_SLOWDOWN_S)
    return max((each.ended_s - each.arrival.submitted_s) / needed_s, 1.0)


def _by_user(played: Iterable[SimulatedJob]) -> dict[str, list[SimulatedJob]]:
    users: dict[str, list[SimulatedJob]] = {}
    for each in played:
        users.setdefault(each.arrival.owner, []).append(each)
    return users


def _user(played: list[SimulatedJob], due: float) -> UserReport:
    held_s = sum(_device_s(each, each.held_s) for each in played)
    there_s = sum(_device_s(each, each.ended_s - each.arrival.submitted_s) for each in played)
    return UserReport(
        jobs=len(played),
        device_hours=held_s / 3600,
        mean_wait_s=fmean(each.waited_s for each in played),
        mean_slowdown=fmean(slowdown(each) for each in played),
        due=due,
        service=held_s / there_s if there_s else 1.0,
    )


def _device_s(each: SimulatedJob, lasted_s: float) -> float:
    return each.arrival.request.gpus * lasted_s
