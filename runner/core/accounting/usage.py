"""Usage reports: device time and CPU time by user, team or job, and how much of it was useful.

An allocation counts from the placement of a job until its devices are released.  Useful is the time in which
its program ran and whose work is kept: not the start, and not the time after the newest checkpoint of an
attempt that did not complete.  Times are seconds of one clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum


class GroupBy(StrEnum):
    """The key by which usage is grouped."""

    USER = "user"
    TEAM = "team"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Switch:
    """An attempt gave way to another job: what that cost the one, and spared the other.

    ``cost_s``: the time from the request to the release, the work that was lost, and the start of the next
    attempt as far as it has begun.  ``spared_s``: the waiting that the other job would have had in addition,
    as the queue estimated it; None: it has not been placed since.
    """

    told_s: float
    cost_s: float
    spared_s: float | None
    job: str
    user: str
    team: str


@dataclass(frozen=True, slots=True)
class UsageSpan:
    """The allocation of one attempt.

    ``started_s``: when its program began to run; None: never.  ``lost_s``: the time at its end whose work is
    lost.  ``util``: mean utilization of its devices as a share; None: not measured.  ``switch``: it gave way.
    """

    job: str
    user: str
    team: str
    gpus: int
    cpus: float
    placed_s: float
    ended_s: float | None = None  # None: it holds them now
    started_s: float | None = None
    lost_s: float = 0.0
    util: float | None = None
    switch: Switch | None = None

    def allocated_s(self, since_s: float, until_s: float) -> float:
        """Return the time of the allocation that lies between two times."""
        return _overlap(self.placed_s, self._end(until_s), since_s, until_s)

    def useful_s(self, since_s: float, until_s: float) -> float:
        """Return the useful part of that time."""
        if self.started_s is None:
            return 0.0
        return _overlap(self.started_s, self._end(until_s) - self.lost_s, since_s, until_s)

    def _end(self, until_s: float) -> float:
        return until_s if self.ended_s is None else self.ended_s


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one user, team or job.

    ``share``: share of all allocated device time, or of CPU time where no device was allocated.
    ``efficiency``: useful time by allocated time, of devices where there were any; None: unknown.
    ``gave_way``: how often attempts gave way to other jobs, and ``gave_way_cost_s`` what that cost, in
    seconds of devices, or of CPUs where no device was allocated.  ``preferred``: how often attempts of others
    (or own ones) gave way to these jobs, and ``spared_wait_s`` the waiting that this spared them.
    """

    who: str
    attempts: int
    device_s: float
    cpu_s: float
    share: float
    efficiency: float | None = None
    utilisation: float | None = None
    gave_way: int = 0
    gave_way_cost_s: float = 0.0
    preferred: int = 0
    spared_wait_s: float = 0.0


def usage_by(
    usage_records: Iterable[UsageSpan], since_s: float, until_s: float, by: GroupBy
) -> tuple[UsageRow, ...]:
    """Return the usage by key, the largest first."""
    found = [each for each in usage_records if each.allocated_s(since_s, until_s) > 0]
    groups: dict[str, list[UsageSpan]] = defaultdict(list)
    for each in found:
        groups[_who(each, by)].append(each)
    whole = _sums(found, since_s, until_s)
    won: dict[str, list[Switch]] = defaultdict(list)
    for switch in _won(found, since_s, until_s):
        won[_who(switch, by)].append(switch)
    uses = (_use(who, each, whole, (since_s, until_s), won[who]) for who, each in groups.items())
    return tuple(sorted(uses, key=lambda use: (-use.device_s, -use.cpu_s, use.who)))


def total_usage(usage_records: Sequence[UsageSpan], since_s: float, until_s: float) -> UsageRow:
    """Return the usage of all together."""
    found = [each for each in usage_records if each.allocated_s(since_s, until_s) > 0]
    won = _won(found, since_s, until_s)
    return _use("", found, _sums(found, since_s, until_s), (since_s, until_s), won)


def _switches(usage_records: Iterable[UsageSpan], since_s: float, until_s: float) -> list[Switch]:
    """Return the switches that were begun between two times."""
    switches = (each.switch for each in usage_records)
    return [each for each in switches if each is not None and since_s <= each.told_s < until_s]


def _won(usage_records: Iterable[UsageSpan], since_s: float, until_s: float) -> list[Switch]:
    """Return those after which the other job was placed."""
    return [each for each in _switches(usage_records, since_s, until_s) if each.spared_s is not None]


def _who(usage: UsageSpan | Switch, by: GroupBy) -> str:
    match by:
        case GroupBy.USER:
            return usage.user
        case GroupBy.TEAM:
            return usage.team
        case GroupBy.JOB:  # exhaustive
            return usage.job


@dataclass(frozen=True, slots=True)
class _Sums:
    device_s: float
    cpu_s: float


def _sums(usage_records: Iterable[UsageSpan], since_s: float, until_s: float) -> _Sums:
    spans = [(each, each.allocated_s(since_s, until_s)) for each in usage_records]
    return _Sums(
        fsum(each.gpus * span_s for each, span_s in spans),
        fsum(each.cpus * span_s for each, span_s in spans),
    )


def _use(
    who: str,
    usage_records: Sequence[UsageSpan],
    whole: _Sums,
    within: tuple[float, float],
    won: Sequence[Switch],
) -> UsageRow:
    since_s, until_s = within
    mine = _sums(usage_records, since_s, until_s)
    share = _ratio(mine.device_s, whole.device_s) if whole.device_s else _ratio(mine.cpu_s, whole.cpu_s)
    weights = [each.gpus if mine.device_s else each.cpus for each in usage_records]
    useful = fsum(
        weight * each.useful_s(since_s, until_s) for weight, each in zip(weights, usage_records, strict=True)
    )
    costs = [
        weight * switch.cost_s
        for weight, each in zip(weights, usage_records, strict=True)
        for switch in _switches((each,), since_s, until_s)
    ]
    return UsageRow(
        who,
        len(usage_records),
        mine.device_s,
        mine.cpu_s,
        share or 0.0,
        _ratio(useful, mine.device_s or mine.cpu_s),
        _utilisation(usage_records, since_s, until_s),
        len(costs),
        fsum(costs),
        len(won),
        fsum(each.spared_s or 0.0 for each in won),
    )


def _utilisation(usage_records: Iterable[UsageSpan], since_s: float, until_s: float) -> float | None:
    """Return the mean over the device time that was measured."""
    known = [
        (each.gpus * each.allocated_s(since_s, until_s), each.util)
        for each in usage_records
        if each.util is not None
    ]
    return _ratio(fsum(weight * util for weight, util in known), fsum(weight for weight, _ in known))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _overlap(begin: float, end: float, since: float, until: float) -> float:
    return max(min(end, until) - max(begin, since), 0.0)
