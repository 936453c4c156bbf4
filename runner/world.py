"""What the daemon is given and what reaches it: its parts, the messages on its queue, a job as it holds it.

Values and Protocols alone, so that whoever observes, decides or acts agrees on them without
knowing the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from runner.core.job import Attempt, Event
from runner.core.placement import Needs
from runner.core.retry import Ended
from runner.ports import Clock, Device, Executor, Gone, JobRow, Key, LaunchRequest, Observation, Store


class Lanes(Protocol):
    """Work for other threads: in order per key, side by side between keys."""

    def put(self, key: str, work: Callable[[], None]) -> None: ...

    def busy(self, key: str) -> bool: ...

    def close(self) -> None: ...


class Workshop(Protocol):
    """What the daemon asks others to do with a job: slow, blocking, in lanes of their own."""

    def needs(self, row: JobRow) -> Needs: ...

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image, building it if need be; may raise BuildFailed, Unavailable."""

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made; may raise Unavailable, Refused."""

    def let_go(self, row: JobRow) -> None:
        """Take back what was held for a launch alone; the next try holds it anew."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> Ended:
        """Return the evidence about an attempt that has ended."""

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Look after a running attempt: keep its log within the quota."""

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended."""

    def close(self) -> None:
        """End what may take minutes: the daemon leaves."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this daemon lends."""

    cpus: float
    memory_bytes: int
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by both clocks: the time of day, which may be set, and the one that only goes on."""

    at: datetime
    monotonic: float

    def later(self, monotonic: float) -> datetime:
        """Return the time of day at ``monotonic``, as if nobody had set the clock since this moment."""
        return self.at + timedelta(seconds=monotonic - self.monotonic)


@dataclass(frozen=True, slots=True)
class World:
    """The parts of the daemon, made elsewhere."""

    store: Store
    executor: Executor
    workshop: Workshop
    clock: Clock
    capacity: Capacity
    lanes: Lanes
    builds: Lanes  # of their own: whoever waits for an image must not keep launches waiting
    observe_every_s: float = 1.0

    def moment(self) -> Moment:
        """Return this moment."""
        return Moment(self.clock.now(), self.clock.monotonic())

    def key(self, job_id: str, attempt: int) -> Key:
        """Return what names an attempt in all the world."""
        return Key(self.store.instance, job_id, attempt)


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at the executor, with the time when it began (monotonic)."""

    began: float
    found: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    job_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Asked:
    """A call from another thread, to be answered on the loop's."""

    work: Callable[[], None]


Message: TypeAlias = Observed | Happened | Asked


@dataclass(slots=True)
class Entry:
    """A job that is not finished, with what only this process knows about it."""

    row: JobRow
    since: Moment  # when this process came to know of the present state
    why: str = ""
    misses: int = 0
    examined: int = 0  # attempt whose end is being looked into
    imageless: int = 0  # launches in a row that did not find the image
