"""The configuration of the scheduler: order, priority classes, shares, quotas and preemption.

Values only; ``docs/explanation/scheduling.md`` gives the formulas and their sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class SchedulingOrder(StrEnum):
    """The order of the queue: settings default to ``ATTAINED``; those after it exist for comparison."""

    FAIR = "fair"  # class, fair share, the owner's own priority, age
    ATTAINED = (
        "attained"  # class, service level, fair share, own priority, age; jobs that can save are preempted
    )
    FIFO = "fifo"  # age alone
    PRIORITY = "priority"  # class, then the job's own priority, then age
    SJF = "sjf"  # shortest job first
    SRPT = "srpt"  # shortest remaining processing time first, with preemption


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a user or group may have at a time; None: no limit."""

    devices: int | None = None  # allocated; a slice or a share of a device counts as one
    jobs: int | None = None  # that hold resources
    queued: int | None = None  # in the queue; checked at submission, not by the scheduler


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A class of jobs: higher ranks go first, whatever their owners have used before."""

    name: str
    rank: int
    weight: float = 1.0  # value of a device-second of waiting; used for preemption only
    preempts: bool = False  # may preempt preemptible jobs of lower rank
    preemptible: bool = False
    starvation_limit_s: float = (
        3 * DAY_S
    )  # a job that has waited longer is overdue and goes before all others
    user_quota: Quota = Quota()  # of each user within the class, in addition to the quotas of users
    time_limit_s: float | None = None  # of a job that names none; None: it has none


DEFAULT_CLASSES = (
    PriorityClass("idle", 0, 0.5, preemptible=True, starvation_limit_s=14 * DAY_S),
    PriorityClass("normal", 10),
    PriorityClass("interactive", 15, 2.0, user_quota=Quota(devices=2, jobs=2), time_limit_s=8 * HOUR_S),
    PriorityClass("urgent", 20, 4.0, preempts=True, starvation_limit_s=DAY_S),
)


DEFAULT_USER_QUOTA: Final = Quota(queued=10_000)
"""Of users who have no quota of their own: nobody fills the memory of the daemon with waiting jobs."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas by name, and the defaults for all other users and groups."""

    users: Mapping[str, Quota] = field(default_factory=dict)
    groups: Mapping[str, Quota] = field(default_factory=dict)
    user: Quota = DEFAULT_USER_QUOTA
    group: Quota = Quota()

    def for_user(self, name: str) -> Quota:
        return self.users.get(name, self.user)

    def for_group(self, name: str) -> Quota:
        """Return the quota of a group; a job without a group has none."""
        return self.groups.get(name, self.group) if name else Quota()


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """Conditions under which a job is preempted for another one."""

    min_gain: float = 1.5  # the gain must be this many times the loss
    grace_s: float = 60.0  # from the request to clean devices
    min_runtime_s: float = 600.0  # an attempt younger than this is not preempted
    max_preemptions: int = 3  # of one job


@dataclass(frozen=True, slots=True)
class SwitchingConfig:
    """Rules of the order by attained service, and the limits of the cost of switching between jobs."""

    levels_device_s: tuple[float, ...] = (HOUR_S / 6, HOUR_S, 8 * HOUR_S)
    """Ascending limits of the service levels: a job is in the level of the first limit that it is below."""

    budget: float = 0.03
    """The part of the device time, of each job and of the machine, that switching may cost."""

    kept_weight: float = 1.5
    """Factor of the usage of a job whose owner does not let it be preempted."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """All settings of the scheduler."""

    order: SchedulingOrder = SchedulingOrder.FAIR
    classes: tuple[PriorityClass, ...] = DEFAULT_CLASSES
    backfill: bool = True
    quotas: Quotas = Quotas()
    user_shares: Mapping[str, float] = field(default_factory=dict)  # 1 for everybody else
    group_shares: Mapping[str, float] = field(default_factory=dict)
    half_life_s: float = 7 * DAY_S  # of usage
    cpu_weight: float = 0.01  # devices that one CPU counts as; matters for jobs without devices
    charge_ahead_s: float = HOUR_S  # a job is charged at most this much of its remaining time in advance
    default_duration_s: float = DAY_S  # of a job without a time limit and without earlier runs
    overdue_per_owner: int = 4  # overdue jobs of one owner that go before all others at a time
    reservations: int = 8  # for overdue jobs, at a time
    preemption: PreemptionConfig = PreemptionConfig()
    switching: SwitchingConfig = SwitchingConfig()
    _by_name: dict[str, PriorityClass] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update({each.name: each for each in reversed(self.classes)})

    def priority_class(self, name: str) -> PriorityClass:
        """Return a class; for a name that is not configured any more, the class of the middle rank."""
        found = self._by_name.get(name)
        return found or sorted(self.classes, key=lambda each: each.rank)[(len(self.classes) - 1) // 2]

    def quotas_of(self, owner: str, group: str, priority_class: str) -> tuple[tuple[str, Quota], ...]:
        """Return the quotas that the jobs of an owner in a class fall under, each with whose it is.

        A class that is not configured any more has none.
        """
        known = self._by_name.get(priority_class)
        of_class = () if known is None else ((f"user {owner} in class {priority_class}", known.user_quota),)
        of_user, of_group = self.quotas.for_user(owner), self.quotas.for_group(group)
        return (f"user {owner}", of_user), *of_class, (f"group {group}", of_group)
