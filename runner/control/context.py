"""Inputs of the control loop, and a job as it is tracked.

Values and protocols alone, so that the modules that observe, decide and execute agree on them without
knowing each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from runner.agent.devices.disk_rates import DiskRateSampler
from runner.agent.interface import Agent, Devices, VerificationQueue
from runner.base.instant import Instant
from runner.core.job.attempt import ProgramStart
from runner.core.job.states import Allocated, Running
from runner.core.policy.heartbeat import FLOOR_S
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device
from runner.core.ports.executor import Executor, Key, Waiting
from runner.core.ports.store import JobRow, Store, UsageHistory
from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.snapshot import Maintenance


class RepeatedWork(Protocol):
    """Work for other threads, by user, that is given again and again."""

    def put_unless_busy(self, key: str, work: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class KeyedWork(Protocol):
    """Work that is done in order per key, concurrently between keys and in turns between users."""

    def put(self, key: str, work: Callable[[], None], user: str) -> None: ...

    def busy(self, key: str) -> bool: ...

    def close(self) -> None: ...


NO_LIMIT_CPUS: Final = float(2**20)
"""More than any cluster has: an engine with a queue of its own decides what there is."""

NO_LIMIT_BYTES: Final = 2**60


@dataclass(frozen=True, slots=True)
class Capacity:
    """Resources that this daemon allocates to jobs."""

    cpus: float
    memory_bytes: int
    devices: Sequence[Device] = ()  # as they are now; they come and go
    chooses_devices: bool = False  # the engine does, elsewhere: this host's are not allocated
    nvidia_problem: Callable[[], str | None] = lambda: None  # why the driver lists none of the GPUs here

    @property
    def known_cpus(self) -> float | None:
        """The CPUs in all; None where only the engine knows how many there are."""
        return self.cpus if self.cpus < NO_LIMIT_CPUS else None

    @property
    def known_memory_bytes(self) -> int | None:
        """The memory in all; None where only the engine knows how much there is."""
        return self.memory_bytes if self.memory_bytes < NO_LIMIT_BYTES else None


@dataclass(slots=True)
class SiteConfig:
    """Decisions of the operator about the queue; a reload changes them between two rounds."""

    rules: SchedulerConfig = field(default_factory=SchedulerConfig)
    maintenance: tuple[Maintenance, ...] = ()
    utc_offset_s: Callable[[datetime], float] = lambda _now: 0.0  # of local time, for messages
    host: str = "this host"
    learns_levels: bool = False  # the limits of the service levels follow from the history of this machine


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that the control loop works with; ``server.composition`` makes them."""

    store: Store
    executor: Executor
    attempt_service: Agent
    clock: Clock
    capacity: Capacity
    work_queue: KeyedWork
    build_queue: KeyedWork  # separate: a build that takes minutes must not delay launches
    verification_queue: VerificationQueue  # separate: verifications of minutes must not delay launches
    past: UsageHistory
    inventory: Devices
    observe_every_s: float = 1.0
    boot: str | None = None  # id of the host's present boot
    watch_every_s: float = 5.0
    site: SiteConfig = field(default_factory=SiteConfig)
    disk: DiskRateSampler = field(default_factory=DiskRateSampler)
    silence_limits_s: Mapping[str, float | None] = field(default_factory=dict)  # by phase, see the settings
    silence_floor_s: float = FLOOR_S  # the watchdog holds no shorter silence against an attempt

    def moment(self) -> Instant:
        """Return the present moment by both clocks."""
        return Instant(self.clock.now(), self.clock.monotonic())

    def started_at(self, state: Allocated, at: datetime, monotonic: float | None) -> datetime | None:
        """Return the start of an attempt by a clock that shows ``at`` now; None if it has not started.

        The running time is measured with the monotonic clock of the boot, so setting the time of day uses up
        no time limit.  What an attempt of another boot has run is only known by the time of day.
        """
        started = state.since if isinstance(state, Running) else getattr(state, "started", None)
        launched_s = self.launched_s(state)
        if started is None or launched_s is None or monotonic is None:
            return started
        return at - timedelta(seconds=max(monotonic - launched_s, 0.0))

    def launched_s(self, state: Allocated) -> float | None:
        """Return the monotonic time of the launch of an attempt, None if it was in another boot."""
        attempt = state.attempt
        return attempt.launched_s if self.boot is not None and attempt.boot == self.boot else None

    def key(self, job_id: str, attempt: int) -> Key:
        """Return the key that names an attempt to the executor."""
        return Key(self.store.instance, job_id, attempt)


@dataclass(slots=True)
class TrackedJob:
    """An unfinished job, with what only this process knows about it."""

    row: JobRow
    since: Instant  # when this process came to know of the present state
    why: str = ""  # what the job waits for outside of the queue; empty: for nothing
    unknown: str = ""  # why its attempt cannot be observed
    accepted: tuple[int, ProgramStart | None] | None = None  # by the engine: attempt, and where it resumes
    waiting: Waiting | None = None  # what its attempt waits for in the engine's own queue
    suspended: bool = False  # the engine has stopped its processes for a while
    misses: int = 0  # observations in a row that did not show its attempt
    examined: int = 0  # attempt whose exit is being examined
    numbered: bool = False  # its attempts have been compared with its directory
    image_misses: int = 0  # launches in a row that did not find the image
    advised: tuple[int, frozenset[str]] | None = None  # attempt, and the rules whose advice was passed on


def as_started(context: Context, row: JobRow) -> JobRow:
    """Return a job in the revision that its attempt began with: the next one may have another."""
    state = row.job.state
    if isinstance(state, Allocated) and state.attempt.revision != row.job.revision:
        text = context.store.revision(row.job.id, state.attempt.revision)
        return row if text is None else replace(row, text=text)
    return row
