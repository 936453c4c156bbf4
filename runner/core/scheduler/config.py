"""What the site has decided about order: classes, shares, quotas, and what a preemption must earn.

Values only; ``docs/explanation/scheduling.md`` gives the formulae and their sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class SchedulingOrder(StrEnum):
    """Who goes first; all but ``FAIR`` are there to be compared with."""

    FAIR = "fair"  # class, fair share, the owner's own priority, age
    FIFO = "fifo"  # age alone
    PRIORITY = "priority"  # class, then the job's own priority, then age
    SJF = "sjf"  # shortest job first


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A class of jobs: higher ranks go first, whatever their owners have used."""

    name: str
    rank: int
    weight: float = 1.0  # what a device-second of waiting is worth; for preemption alone
    preempts: bool = False  # may stop preemptible jobs of lower ranks
    preemptible: bool = False
    starvation_limit_s: float = 3 * DAY_S  # anti-starvation: waiting longer, a job goes before all others


DEFAULT_CLASSES = (
    PriorityClass("idle", 0, 0.5, preemptible=True, starvation_limit_s=14 * DAY_S),
    PriorityClass("normal", 10),
    PriorityClass("urgent", 20, 4.0, preempts=True, starvation_limit_s=DAY_S),
)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that one user or group may have at a time; None: as much as there is."""

    devices: int | None = None  # lent; a slice or a share counts as one
    jobs: int | None = None  # that hold anything at all
    queued: int | None = None  # waiting; looked at when a job is submitted, not here


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas by name, and those of everybody else."""

    users: Mapping[str, Quota] = field(default_factory=dict)
    groups: Mapping[str, Quota] = field(default_factory=dict)
    user: Quota = Quota()
    group: Quota = Quota()

    def for_user(self, name: str) -> Quota:
        return self.users.get(name, self.user)

    def for_group(self, name: str) -> Quota:
        """Return the quota of a group; jobs of no group have none."""
        return self.groups.get(name, self.group) if name else Quota()


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """When it pays to stop one job for another."""

    min_gain: float = 1.5  # what is won must be so many times what is lost
    grace_s: float = 60.0  # from the request to the devices being clean
    min_runtime_s: float = 600.0  # an attempt younger than this is let be
    max_preemptions: int = 3  # times that one job may be made to give way


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything about the order that a site can decide."""

    order: SchedulingOrder = SchedulingOrder.FAIR
    classes: tuple[PriorityClass, ...] = DEFAULT_CLASSES
    backfill: bool = True
    quotas: Quotas = Quotas()
    user_shares: Mapping[str, float] = field(default_factory=dict)  # 1 unless said otherwise
    group_shares: Mapping[str, float] = field(default_factory=dict)
    half_life_s: float = 7 * DAY_S  # after which a device-second counts half
    cpu_weight: float = 0.01  # devices that a processor counts as: of importance where there are no devices
    charge_ahead_s: float = HOUR_S  # of its remaining time, a running job is charged this much at once
    default_duration_s: float = DAY_S  # what a job without a limit or a past is taken to need
    overdue_per_owner: int = 4  # jobs of one owner that may go before all others at a time
    reservations: int = 8  # kept at a time for overdue jobs
    preemption: PreemptionConfig = PreemptionConfig()

    def priority_class(self, name: str) -> PriorityClass:
        """Return a class; a name that the site has given up means the middle rank of those it has."""
        found = next((each for each in self.classes if each.name == name), None)
        return found or sorted(self.classes, key=lambda each: each.rank)[len(self.classes) // 2]
