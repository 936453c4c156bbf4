"""What the daemon is given and what reaches it: its parts, the messages on its queue, a job as it holds it.

Values and Protocols alone, so that whoever observes, decides or acts agrees on them without
knowing the others.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from runner.core.policy.heartbeat import FLOOR_S
from runner.core.ports.attempts import Attempts
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device, Vitals
from runner.core.ports.executor import Executor, Key
from runner.core.ports.store import JobRow, Store, UsageHistory
from runner.core.scheduler import snapshot
from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.snapshot import Maintenance


class KeyedWork(Protocol):
    """Work for other threads: in order per key, side by side between keys."""

    def put(self, key: str, work: Callable[[], None]) -> None: ...

    def busy(self, key: str) -> bool: ...

    def together(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this daemon lends."""

    cpus: float
    memory_bytes: int
    devices: Sequence[Device] = ()  # as they are whenever somebody looks


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment by both clocks: the time of day, which may be set, and the one that only goes on."""

    at: datetime
    monotonic: float

    def later(self, monotonic: float) -> datetime:
        """Return the time of day at ``monotonic``, as if nobody had set the clock since this moment."""
        return self.at + timedelta(seconds=monotonic - self.monotonic)


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """What the operator has decided about the queue."""

    rules: SchedulerConfig = field(default_factory=SchedulerConfig)
    maintenance: tuple[Maintenance, ...] = ()
    utc_offset_s: Callable[[datetime], float] = lambda _now: 0.0  # of the clock on the wall, for words
    host: str = "this host"


class InventoryView(Protocol):
    """The devices as the queue sees them."""

    def pictured(self, lent: Mapping[str, str]) -> tuple[snapshot.SchedulableDevice, ...]:
        """Return all devices with their states; ``lent`` says which jobs hold which."""


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of the daemon, made elsewhere."""

    store: Store
    executor: Executor
    attempt_service: Attempts
    clock: Clock
    capacity: Capacity
    work_queue: KeyedWork
    build_queue: KeyedWork  # of their own: whoever waits for an image must not keep launches waiting
    observe_every_s: float = 1.0
    boot: str | None = None  # names the time since this machine was started last
    vitals: Vitals | None = None  # None: nobody looks at the devices
    watch_every_s: float = 5.0
    site: SiteConfig = field(default_factory=SiteConfig)
    past: UsageHistory | None = None  # None: nothing is remembered
    inventory: InventoryView | None = None  # None: devices are fit or they are not
    silence_floor_s: float = FLOOR_S  # no silence shorter than this is held against an attempt

    def moment(self) -> Instant:
        """Return this moment."""
        return Instant(self.clock.now(), self.clock.monotonic())

    def key(self, job_id: str, attempt: int) -> Key:
        """Return what names an attempt in all the world."""
        return Key(self.store.instance, job_id, attempt)


@dataclass(slots=True)
class TrackedJob:
    """A job that is not finished, with what only this process knows about it."""

    row: JobRow
    since: Instant  # when this process came to know of the present state
    why: str = ""
    misses: int = 0
    examined: int = 0  # attempt whose end is being looked into
    imageless: int = 0  # launches in a row that did not find the image
    advised: tuple[int, frozenset[str]] | None = None  # attempt, and the rules whose advice was passed on
