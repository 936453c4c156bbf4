"""The input of the scheduler: a frozen snapshot of the hosts, the queue, the running jobs and their usage.

Nothing else influences a plan.  Times are seconds of one clock and durations are seconds, both as
floats, because ten thousand jobs are looked at in a few milliseconds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from runner.core.job.states import Outcome
from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.timeline import Span

if TYPE_CHECKING:
    from runner.core.scheduler.ready import ReadyJobs

GIB = 1024**3

QueueName: TypeAlias = tuple[str, str, str]
"""Of an owner's queue: class, owner, group."""


class DeviceKind(StrEnum):
    """Kind of allocation of a device; a device is never allocated as another kind."""

    WHOLE = "whole"
    SLICE = "slice"  # a MIG instance, with memory and engines of its own
    SHARED = "shared"  # by memory; jobs co-operate and are not isolated


class DeviceState(StrEnum):
    """Availability of a device; the jobs that hold it are among the running jobs."""

    FREE = "free"
    ALLOCATED = "allocated"
    FOREIGN = "foreign"  # used by processes of no job of the runner
    DIRTY = "dirty"  # released, and not proven clean
    QUARANTINED = "quarantined"
    DRAINED = "drained"  # by an operator


@dataclass(frozen=True, slots=True)
class SchedulableDevice:
    """A device, a slice of one, or a device that is shared by memory."""

    uuid: str
    name: str  # for people: GPU-3
    vendor: str = "nvidia"
    model: str = ""
    memory_bytes: int = 0
    capability: tuple[int, int] = (0, 0)  # CUDA compute capability; (0, 0): unknown
    link_group: str | None = None  # equal for devices of a host that are linked at full speed
    numa: int = 0
    kind: DeviceKind = DeviceKind.WHOLE
    state: DeviceState = DeviceState.FREE
    reason: str = ""  # of the state, for people
    shareable_bytes: int = 0  # of a shared device: what its jobs may use together


@dataclass(frozen=True, slots=True)
class Host:
    """A machine; a job runs on one of them."""

    name: str
    cpus: float
    memory_bytes: int
    devices: tuple[SchedulableDevice, ...] = ()
    chooses_devices: bool = False  # it stands for an engine with a queue of its own, which places jobs itself


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resources that an attempt holds, and the devices that suit it."""

    cpus: float = 1.0
    memory_bytes: int = 0
    gpus: int = 0
    vendor: str | None = None
    models: tuple[str, ...] = ()  # parts of model names, any of which matches; (): any model
    device_bytes: int = 0  # least memory of each device; of a shared device, the amount that is taken
    capability: tuple[int, int] = (0, 0)  # at least
    linked: bool = False  # all in one link group
    kind: DeviceKind = DeviceKind.WHOLE
    avoid: frozenset[str] = frozenset()  # devices that failed this job


class DependencyCondition(StrEnum):
    """The end of another job that a job waits for."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job that another one waits for; names are resolved to ids at submission."""

    job_id: str
    condition: DependencyCondition = DependencyCondition.OK
    group: tuple[str, ...] = ()
    """All jobs of a matrix of which one had to fail, the first of which is ``job_id``; (): one job."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A finished job that other jobs wait for."""

    outcome: Outcome
    at_s: float


@dataclass(frozen=True, slots=True)
class JobArray:
    """The job array that a job belongs to."""

    id: str
    max_parallel: int | None = None  # jobs of it that may run at a time; None: no limit
    max_failures: int | None = None  # that may fail before those that never ran are cancelled; None: any
    count: int = 1  # of its jobs
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"matrix {self.name} ({self.id})" if self.name else f"matrix {self.id}"


class EstimateSource(StrEnum):
    """Source of the estimated duration of a job, and so of its end."""

    TIME_LIMIT = "time_limit"
    PROGRESS = "progress"
    """The steps that it reports, at the rate so far."""
    MATRIX = "matrix"
    SCHEDULE = "schedule"
    NAME = "name"
    """Earlier jobs of its matrix, its schedule, or its name."""


MIN_DURATION_S: Final = 1.0
"""The least duration of a job: it holds its devices even when its time is used up."""


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job in the queue."""

    job_id: str
    owner: str
    request: ResourceRequest
    submitted_s: float
    group: str = ""
    priority_class: str = "normal"
    priority: int = 50  # among the jobs of its owner; higher first
    not_before_s: float | None = None
    dependencies: tuple[Dependency, ...] = ()
    unmet_limit_s: float | None = None  # how long it stays once a dependency cannot be met; None: for ever
    time_limit_s: float | None = None  # what is left of its time limit
    estimated_s: float | None = None  # estimated from earlier runs
    estimated_by: EstimateSource | None = None  # what ``estimated_s`` follows from
    array: JobArray | None = None
    queued_s: float | None = None  # when it came back to the queue; None: it was submitted
    ran_s: float = 0.0  # for which its lineage has held resources

    @property
    def duration_s(self) -> float | None:
        """Return how long the job will hold its resources: its time limit, or its estimate; None: unknown.

        It is never shorter than ``MIN_DURATION_S``.
        """
        duration_s = self.estimated_s if self.time_limit_s is None else self.time_limit_s
        return None if duration_s is None else max(duration_s, MIN_DURATION_S)

    def planned_duration_s(self, config: SchedulerConfig) -> float:
        """Return the duration to plan with: the default duration where it is unknown."""
        duration_s = self.duration_s
        return config.default_duration_s if duration_s is None else duration_s


RESTART_S: Final = 60.0
"""Seconds that a restart costs a job whose start has not been measured."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds resources, from its start until its devices are proven clean."""

    job_id: str
    owner: str
    request: ResourceRequest
    host: str
    devices: tuple[str, ...]
    started_s: float
    ends_s: float | None = None  # at its time limit, or as estimated; None: unknown
    group: str = ""
    priority_class: str = "normal"
    checkpoint_s: float | None = None  # time of its newest checkpoint; None: it has none
    saves_when_asked: bool = True  # it saves a checkpoint on SIGTERM
    restart_s: float = RESTART_S  # from the next placement to the step at which it was stopped
    stopping: bool = False  # was told to stop; ``ends_s`` is when it will be killed
    preempted: int = 0  # how often it was preempted
    array: JobArray | None = None
    queued_s: float | None = None  # when this attempt came to the queue; None: unknown
    ran_s: float = 0.0  # for which its lineage held resources before this attempt
    switched_s: float = 0.0  # lost to switching so far: saves on request, restarts, repeated work
    save_s: float | None = None  # from the request to clean devices; None: not measured
    ends_by: EstimateSource | None = None  # what ``ends_s`` follows from; None: unknown, or it leaves
    preemptible: bool = True  # its owner lets it be preempted for jobs with less attained service
    stays_until_s: float = -inf  # it could not save a moment ago, so it is not preempted before

    def lost_s(self, now_s: float) -> float:
        """Return the running time that stopping the job now would waste, with the restart."""
        if self.saves_when_asked:
            return self.restart_s
        since_s = self.started_s if self.checkpoint_s is None else max(self.checkpoint_s, self.started_s)
        return now_s - since_s + self.restart_s

    def held_s(self, now_s: float) -> float:
        """Return for how long its lineage has held resources."""
        return self.ran_s + max(now_s - self.started_s, 0.0)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A time in which hosts or devices are out of service; without either, all of them."""

    begins_s: float
    ends_s: float
    reason: str
    hosts: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()

    def covers_host(self, host: str) -> bool:
        """Return True if the window covers a whole host."""
        return host in self.hosts or not (self.hosts or self.devices)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the scheduler knows at ``now_s``.  Usage is in device-seconds, decayed to ``now_s``."""

    now_s: float
    hosts: tuple[Host, ...]
    pending: tuple[PendingJob, ...] = ()
    ready: "ReadyJobs | None" = field(default=None, compare=False, kw_only=True)
    """The pending jobs in order, if somebody keeps them so; else they are sorted by each plan."""
    waiting: Mapping[QueueName, int] | None = field(default=None, compare=False, kw_only=True)
    """Number of jobs of each owner's queue, if somebody keeps count; else they are counted."""
    running: tuple[RunningJob, ...] = ()
    user_usage: Mapping[str, float] = field(default_factory=dict)
    group_usage: Mapping[str, float] = field(default_factory=dict)
    level_usage: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict, kw_only=True)
    """The same by group and user, in each service level."""
    ended: Mapping[str, EndedJob] = field(default_factory=dict)
    maintenance: tuple[Maintenance, ...] = ()
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    utc_offset_s: float = 0.0  # of the clock that times in messages are given by
    switching_left_device_s: float = inf  # what the budget of the machine leaves for switching

    @property
    def queue_lengths(self) -> Mapping[QueueName, int]:
        """The number of waiting jobs of each owner's queue."""
        if self.waiting is not None:
            return self.waiting
        return Counter((job.priority_class, job.owner, job.group) for job in self.pending)

    @property
    def unlimited(self) -> Span:
        """The span of a job whose duration is unknown: up to the next maintenance window, or without an end.

        A window that begins later than the default duration does not keep such a job from starting.
        """
        begins_s = sorted(window.begins_s for window in self.maintenance)
        return Span(self.config.default_duration_s, (*begins_s, inf))

    def span(self, job: PendingJob) -> Span:
        """Return for how long a job must have its resources; one without a limit may outlast its estimate."""
        if job.duration_s is None:
            return self.unlimited
        if job.time_limit_s is not None or not self.maintenance:
            return Span(job.duration_s)
        begins_s = sorted(window.begins_s for window in self.maintenance)
        return Span(job.duration_s, guards=tuple(begins_s))
