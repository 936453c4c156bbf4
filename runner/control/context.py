"""What the daemon is given and what reaches it: its parts, the messages on its queue, a job as it holds it.

Values and Protocols alone, so that whoever observes, decides or acts agrees on them without
knowing the others.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from runner.core.job.model import Attempt, Ended, Event
from runner.core.policy.facts import Facts
from runner.core.policy.heartbeat import FLOOR_S, Sign
from runner.core.policy.model import Policy
from runner.core.ports.all import (
    Clock,
    DecisionRow,
    Device,
    Executor,
    Gone,
    JobRow,
    Key,
    LaunchRequest,
    Observation,
    Past,
    Store,
    Vitals,
)
from runner.core.scheduler import snapshot
from runner.core.scheduler.config import Rules
from runner.core.scheduler.snapshot import After, Maintenance, Needs, Sweep


class Lanes(Protocol):
    """Work for other threads: in order per key, side by side between keys."""

    def put(self, key: str, work: Callable[[], None]) -> None: ...

    def busy(self, key: str) -> bool: ...

    def together(self) -> AbstractContextManager[None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Pinned:
    """The policy of a job as it was when the job was submitted, under the ceilings of its job file."""

    policy: Policy
    digest: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about the end of an attempt."""

    ended: Ended
    pinned: Pinned
    facts: Facts = field(default_factory=dict)
    steps: tuple[int, ...] = ()  # of valid checkpoints, the newest first
    effective: str = ""  # digest of the spec as it really ran
    poisoned_at: int | None = None  # the step after which loss or gradient was not finite


@dataclass(frozen=True, slots=True)
class Glance:
    """What one look at the directory of a running attempt shows."""

    sign: Sign | None = None  # what it said last; None: nothing that could be read
    facts: Facts = field(default_factory=dict)
    effective: str = ""  # digest of the spec as it really runs


@dataclass(frozen=True, slots=True)
class Terms:
    """What a revision asks of the queue beside what an attempt takes."""

    team: str = ""
    priority_class: str = "normal"
    not_before: datetime | None = None
    after: tuple[After, ...] = ()
    sweep: Sweep | None = None
    saves_when_asked: bool = True


class Workshop(Protocol):
    """What the daemon asks others to do with a job: slow, blocking, in lanes of their own."""

    def needs(self, row: JobRow) -> Needs:
        """Return what an attempt takes; does not block."""

    def terms(self, row: JobRow) -> Terms:
        """Return what the job asks of the queue; does not block."""

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image, building it if need be; may raise BuildFailed, Unavailable."""

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made; may raise Unavailable, Refused."""

    def let_go(self, row: JobRow) -> None:
        """Take back what was held for a launch alone; the next try holds it anew."""

    def policy(self, row: JobRow) -> Pinned:
        """Return the policy of a job; cheap, for it is asked for again and again."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> Findings:
        """Return the evidence about an attempt that has ended."""

    def glance(self, row: JobRow, attempt: Attempt) -> Glance:
        """Return what a running attempt shows of itself; asked every few seconds, on a thread of its own."""

    def keep(self, row: JobRow, decision: DecisionRow) -> None:
        """Leave a copy of a decision beside its attempt."""

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Look after an attempt that runs or has just ended: keep its log within the quota."""

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended."""

    def close(self) -> None:
        """End what may take minutes: the daemon leaves."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this daemon lends."""

    cpus: float
    memory_bytes: int
    devices: Sequence[Device] = ()  # as they are whenever somebody looks


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by both clocks: the time of day, which may be set, and the one that only goes on."""

    at: datetime
    monotonic: float

    def later(self, monotonic: float) -> datetime:
        """Return the time of day at ``monotonic``, as if nobody had set the clock since this moment."""
        return self.at + timedelta(seconds=monotonic - self.monotonic)


@dataclass(frozen=True, slots=True)
class Site:
    """What the operator has decided about the queue."""

    rules: Rules = field(default_factory=Rules)
    maintenance: tuple[Maintenance, ...] = ()
    utc_offset_s: Callable[[datetime], float] = lambda _now: 0.0  # of the clock on the wall, for words
    host: str = "this host"


class Inventory(Protocol):
    """The devices as the queue sees them."""

    def pictured(self, lent: Mapping[str, str]) -> tuple[snapshot.Device, ...]:
        """Return all devices with their states; ``lent`` says which jobs hold which."""


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
    boot: str | None = None  # names the time since this machine was started last
    vitals: Vitals | None = None  # None: nobody looks at the devices
    watch_every_s: float = 5.0
    site: Site = field(default_factory=Site)
    past: Past | None = None  # None: nothing is remembered
    inventory: Inventory | None = None  # None: devices are fit or they are not
    silence_floor_s: float = FLOOR_S  # no silence shorter than this is held against an attempt

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
class Examined:
    """The end of an attempt has been looked into; what follows is for the policy to say."""

    job_id: str
    attempt: int
    at: datetime
    findings: Findings


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The executor has refused to start an attempt."""

    job_id: str
    attempt: int
    at: datetime
    why: str
    pinned: Pinned


@dataclass(frozen=True, slots=True)
class Watched:
    """A running attempt has been looked at; what follows is for the policy to say."""

    job_id: str
    attempt: int
    at: datetime
    facts: Facts
    effective: str = ""
    start_s: float | None = None  # from its launch to its first step, where that has been seen


News: TypeAlias = Happened | Examined | Unstarted


@dataclass(frozen=True, slots=True)
class Asked:
    """A call from another thread, to be answered on the loop's."""

    work: Callable[[], None]


Message: TypeAlias = Observed | Watched | News | Asked


@dataclass(slots=True)
class Entry:
    """A job that is not finished, with what only this process knows about it."""

    row: JobRow
    since: Moment  # when this process came to know of the present state
    why: str = ""
    misses: int = 0
    examined: int = 0  # attempt whose end is being looked into
    imageless: int = 0  # launches in a row that did not find the image
    advised: tuple[int, frozenset[str]] | None = None  # attempt, and the rules whose advice was passed on
