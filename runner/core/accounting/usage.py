"""Usage reports: device time and CPU time by user, team or job, and how much of it was useful.

An allocation counts from the placement of a job until its devices are released.  Useful is the time in which
its program ran and whose work is kept: not the start, and not the time after the newest checkpoint of an
attempt that did not complete.  Times are seconds of one clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import fsum
from typing import Final

HOUR_S: Final = 3600
"""Usage that is over is kept as sums of so long a time, which begin at full hours."""

EXACT_S: Final = 2 * HOUR_S
"""A period of at most this length is reported to the second; a longer one begins at a full hour."""


def begin_of_period(since_s: float, until_s: float) -> float:
    """Return the beginning of a period: a long one at the full hour before."""
    return since_s if until_s - since_s <= EXACT_S else since_s // HOUR_S * HOUR_S


class GroupBy(StrEnum):
    """The key by which usage is grouped."""

    USER = "user"
    TEAM = "team"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Switch:
    """An attempt was preempted for another job: what that cost the one, and spared the other.

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
    lost; None: unknown.  ``util``: mean utilization of its devices as a share; None: unknown.  ``switch``: a
    preemption.
    """

    job: str
    user: str
    team: str
    gpus: int
    cpus: float
    placed_s: float
    ended_s: float | None = None  # None: it holds them now
    started_s: float | None = None
    lost_s: float | None = 0.0
    util: float | None = None
    switch: Switch | None = None

    def allocated_s(self, since_s: float, until_s: float) -> float:
        """Return the time of the allocation that lies between two times."""
        return _overlap(self.placed_s, self._end(until_s), since_s, until_s)

    def useful_s(self, since_s: float, until_s: float) -> float:
        """Return the useful part of that time."""
        if self.started_s is None:
            return 0.0
        return _overlap(self.started_s, self._end(until_s) - (self.lost_s or 0.0), since_s, until_s)

    def sum(self, since_s: float, until_s: float) -> "UsageSum | None":
        """Return the use between two times; None if nothing was allocated then."""
        held_s, useful_s = self.allocated_s(since_s, until_s), self.useful_s(since_s, until_s)
        if held_s <= 0:
            return None
        measured_s = 0.0 if self.util is None else self.gpus * held_s
        return UsageSum(
            self.user,
            self.team,
            self.job,
            1,
            self.gpus * held_s,
            self.cpus * held_s,
            self.gpus * useful_s,
            self.cpus * useful_s,
            measured_s,
            measured_s * (self.util or 0.0),
        )

    def _end(self, until_s: float) -> float:
        return until_s if self.ended_s is None else self.ended_s


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one user, team or job.

    ``share``: share of all allocated device time, or of CPU time where no device was allocated.
    ``efficiency``: useful time by allocated time, of devices where there were any; None: unknown.
    ``gave_way``: how often attempts were preempted for other jobs, and ``gave_way_cost_s`` what that cost, in
    seconds of devices, or of CPUs where no device was allocated.  ``preferred``: how often attempts of others
    (or own ones) were preempted for these jobs, and ``spared_wait_s`` the waiting that this spared them.
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


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Use by the attempts of a user in a team within a period, or by one job of theirs; sums add up.

    ``measured_device_s``: the part of ``device_s`` whose utilisation was measured, and ``busy_device_s``
    what was busy of that.
    """

    user: str
    team: str
    job: str = ""
    attempts: int = 0
    device_s: float = 0.0
    cpu_s: float = 0.0
    useful_device_s: float = 0.0
    useful_cpu_s: float = 0.0
    measured_device_s: float = 0.0
    busy_device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GaveWay:
    """An attempt that was preempted within a period, and what it held."""

    user: str
    team: str
    job: str
    gpus: int
    cpus: float
    switch: Switch


@dataclass(frozen=True, slots=True)
class Used:
    """The usage within a period, and which job was preempted for which."""

    sums: tuple[UsageSum, ...] = ()
    switches: tuple[GaveWay, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[UsageSpan], since_s: float, until_s: float) -> "Used":
        """Return the use of allocations between two times."""
        found = [(each, each.sum(since_s, until_s)) for each in spans]
        held = [(span, used) for span, used in found if used is not None]
        return cls(
            tuple(used for _, used in held),
            tuple(
                GaveWay(span.user, span.team, span.job, span.gpus, span.cpus, span.switch)
                for span, _ in held
                if span.switch is not None and since_s <= span.switch.told_s < until_s
            ),
        )

    def __add__(self, other: "Used") -> "Used":
        return Used(self.sums + other.sums, self.switches + other.switches)


def usage_by(used: Used, by: GroupBy) -> tuple[UsageRow, ...]:
    """Return the usage by key, the largest first."""
    sums: dict[str, list[UsageSum]] = defaultdict(list)
    gave: dict[str, list[GaveWay]] = defaultdict(list)
    won: dict[str, list[Switch]] = defaultdict(list)
    for each in used.sums:
        sums[_who(each, by)].append(each)
    for switched in used.switches:
        gave[_who(switched, by)].append(switched)
    for switched in _won(used.switches):
        won[_who(switched.switch, by)].append(switched.switch)
    whole = _added(used.sums)
    uses = (_use(who, _added(mine), whole, gave[who], won[who]) for who, mine in sums.items())
    return tuple(sorted(uses, key=lambda use: (-use.device_s, -use.cpu_s, use.who)))


def share_of(row: UsageRow, whole: UsageRow) -> UsageRow:
    """Return a row with its share of a whole that has more than the rows beside it."""
    share = _ratio(row.device_s, whole.device_s) if whole.device_s else _ratio(row.cpu_s, whole.cpu_s)
    return replace(row, share=share or 0.0)


def total_usage(used: Used) -> UsageRow:
    """Return the usage of all together."""
    whole = _added(used.sums)
    return _use("", whole, whole, used.switches, [each.switch for each in _won(used.switches)])


def goodput(total: UsageRow, there: Mapping[str, float]) -> float | None:
    """Return the share of lasting work in the time of all devices, or of all CPUs where there are none."""
    capacity = there["device_s"] or there["cpu_s"]
    used = total.device_s if there["device_s"] else total.cpu_s
    return None if not capacity else used * (total.efficiency or 0.0) / capacity


def _won(switches: Iterable[GaveWay]) -> list[GaveWay]:
    """Return those after which the other job was placed."""
    return [each for each in switches if each.switch.spared_s is not None]


def _who(usage: UsageSum | GaveWay | Switch, by: GroupBy) -> str:
    match by:
        case GroupBy.USER:
            return usage.user
        case GroupBy.TEAM:
            return usage.team
        case GroupBy.JOB:  # exhaustive
            return usage.job


def _added(sums: Sequence[UsageSum]) -> UsageSum:
    """Return the sum of sums."""
    return UsageSum(
        "",
        "",
        "",
        sum(each.attempts for each in sums),
        fsum(each.device_s for each in sums),
        fsum(each.cpu_s for each in sums),
        fsum(each.useful_device_s for each in sums),
        fsum(each.useful_cpu_s for each in sums),
        fsum(each.measured_device_s for each in sums),
        fsum(each.busy_device_s for each in sums),
    )


def _use(
    who: str, mine: UsageSum, whole: UsageSum, gave_way: Sequence[GaveWay], won: Sequence[Switch]
) -> UsageRow:
    share = _ratio(mine.device_s, whole.device_s) if whole.device_s else _ratio(mine.cpu_s, whole.cpu_s)
    useful = mine.useful_device_s if mine.device_s else mine.useful_cpu_s
    costs = [(each.gpus if mine.device_s else each.cpus) * each.switch.cost_s for each in gave_way]
    return UsageRow(
        who,
        mine.attempts,
        mine.device_s,
        mine.cpu_s,
        share or 0.0,
        _ratio(useful, mine.device_s or mine.cpu_s),
        _ratio(mine.busy_device_s, mine.measured_device_s),
        len(costs),
        fsum(costs),
        len(won),
        fsum(each.spared_s or 0.0 for each in won),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _overlap(begin: float, end: float, since: float, until: float) -> float:
    return max(min(end, until) - max(begin, since), 0.0)
