"""All that decides who starts: one frozen picture of the queue, the hosts and the past.

Times are seconds of one clock, durations seconds, both as floats: ten thousand jobs are looked
at in a few milliseconds.  What is not here, such as prices or the weather, decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final

from runner.core.job.states import Outcome
from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.timeline import Span

GIB = 1024**3


class DeviceKind(StrEnum):
    """What a device is lent as; one is never lent as another."""

    WHOLE = "whole"
    SLICE = "slice"  # a MIG instance, with memory and engines of its own
    SHARED = "shared"  # by memory: co-operation, not isolation


class DeviceState(StrEnum):
    """Whether a device can be lent at all; whoever holds it is in the running jobs."""

    FREE = "free"
    ALLOCATED = "lent"
    FOREIGN = "foreign"  # processes that no job of ours owns
    DIRTY = "dirty"  # came back, and is not proven clean
    QUARANTINED = "quarantined"
    DRAINED = "drained"  # by an operator


@dataclass(frozen=True, slots=True)
class SchedulableDevice:
    """One device, slice, or device shared by memory."""

    uuid: str
    name: str  # for people: GPU-3
    vendor: str = "nvidia"
    model: str = ""
    memory_bytes: int = 0
    capability: tuple[int, int] = (0, 0)  # CUDA's compute capability; (0, 0): not known
    link_group: str | None = None  # devices of one host that are linked at full speed have the same
    numa: int = 0
    kind: DeviceKind = DeviceKind.WHOLE
    state: DeviceState = DeviceState.FREE
    reason: str = ""  # for the state, in words
    shareable_bytes: int = 0  # of a shared device: what all its jobs together may use


@dataclass(frozen=True, slots=True)
class Host:
    """One machine; a job lives on one of them."""

    name: str
    cpus: float
    memory_bytes: int
    devices: tuple[SchedulableDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one attempt takes while it lives, and on which devices alone it can."""

    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: int = 0
    vendor: str | None = None
    models: tuple[str, ...] = ()  # part of the model's name, any of these; (): any
    device_bytes: int = 0  # least memory of each device; of a shared one, the part that is taken
    capability: tuple[int, int] = (0, 0)  # at least
    linked: bool = False  # all on one island
    kind: DeviceKind = DeviceKind.WHOLE
    avoid: frozenset[str] = frozenset()  # devices that failed this job


class DependencyCondition(StrEnum):
    """What a job waits for in another one."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Wait for the end of another job; names are resolved to ids when a job is submitted."""

    job_id: str
    condition: DependencyCondition = DependencyCondition.OK


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A finished job that others wait for."""

    outcome: Outcome
    at_s: float


@dataclass(frozen=True, slots=True)
class JobArray:
    """An array or matrix that a job belongs to."""

    id: str
    max_parallel: int | None = None  # jobs of it that may run together


MIN_DURATION_S: Final = 1.0
"""What starts holds its devices at least so long."""


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A queued job, as far as the order cares."""

    job_id: str
    owner: str
    request: ResourceRequest
    submitted_s: float
    group: str = ""
    priority_class: str = "normal"
    priority: int = 50  # among the jobs of its owner; higher goes first
    not_before_s: float | None = None
    dependencies: tuple[Dependency, ...] = ()
    time_limit_s: float | None = None  # running time that is left to it
    estimated_s: float | None = None  # from its own past
    array: JobArray | None = None

    @property
    def duration_s(self) -> float | None:
        """Return how long it will hold what it gets: its limit, which is kept, before what was learned.

        Never no time at all: what starts holds its devices now, also when its time is used up.
        """
        lasts_s = self.estimated_s if self.time_limit_s is None else self.time_limit_s
        return None if lasts_s is None else max(lasts_s, MIN_DURATION_S)

    def planned_duration_s(self, rules: SchedulerConfig) -> float:
        """Return for how long it is counted where a number is needed: what is unknown lasts as is usual."""
        lasts_s = self.duration_s
        return rules.default_duration_s if lasts_s is None else lasts_s


RESTART_S: Final = 60.0
"""What coming back costs a job whose start nobody has measured."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds something, from its start to the moment its devices are proven clean."""

    job_id: str
    owner: str
    request: ResourceRequest
    host: str
    devices: tuple[str, ...]
    started_s: float
    ends_s: float | None = None  # at its limit, or as learned; None: nobody knows
    group: str = ""
    priority_class: str = "normal"
    checkpoint_s: float | None = None  # when its newest checkpoint was made; None: it has none
    saves_when_asked: bool = True  # SIGTERM makes it save before it leaves
    restart_s: float = RESTART_S  # from being placed again to where it was
    stopping: bool = False  # was asked to leave; ``ends_s`` is when it must have
    preempted: int = 0  # times it gave way before
    array: JobArray | None = None

    def lost_s(self, now_s: float) -> float:
        """Return the running time that stopping it now would throw away, the restart included."""
        if self.saves_when_asked:
            return self.restart_s
        since_s = self.started_s if self.checkpoint_s is None else max(self.checkpoint_s, self.started_s)
        return now_s - since_s + self.restart_s


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A time in which hosts or devices are somebody else's; both empty: everything is."""

    begins_s: float
    ends_s: float
    reason: str
    hosts: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()

    def covers_host(self, host: str) -> bool:
        """Return whether all of a host is somebody else's."""
        return host in self.hosts or not (self.hosts or self.devices)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The picture at one moment.  Usage is in device-seconds, already decayed to ``now_s``."""

    now_s: float
    hosts: tuple[Host, ...]
    pending: tuple[PendingJob, ...] = ()
    running: tuple[RunningJob, ...] = ()
    user_usage: Mapping[str, float] = field(default_factory=dict)
    group_usage: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[str, EndedJob] = field(default_factory=dict)
    maintenance: tuple[Maintenance, ...] = ()
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    utc_offset_s: float = 0.0  # of the site's wall clock, for words alone

    @property
    def unlimited(self) -> Span:
        """Return how long a job is taken to last of which nobody knows: for ever, as a rule.

        A maintenance further ahead of its start than what is unknown is taken to last must not stop it.
        """
        ahead = sorted(window.begins_s for window in self.maintenance)
        return Span(self.config.default_duration_s, (*ahead, inf))
