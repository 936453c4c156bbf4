"""What the daemon needs from the world, as Protocols over frozen values.

Every adapter satisfies one of these and passes its contract suite; so does the fake beside it.
A batch system that can start, list, signal and forget an attempt can be an executor too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol, TypeAlias

from runner.core.job.model import Event, Job
from runner.core.ports.devices import Device, DeviceHealth, DeviceProbe, DeviceProcess, Health, Vitals

Accelerator: TypeAlias = Literal["cuda", "rocm", "cpu"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asked for a job, and as whom it runs: both numbers, always."""

    uid: int
    gid: int
    name: str


@dataclass(frozen=True, slots=True)
class Key:
    """Names one attempt in all the world: the executor derives every name from it."""

    instance: str  # of the store, so that two daemons never touch each other's containers
    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory or file shown to the job."""

    source: Path
    target: Path
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What one attempt may use."""

    cpus: float
    memory_bytes: int
    shm_bytes: int = 64 * 1024**2
    pids: int = 4096
    tmp_bytes: int = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything an executor may know about an attempt."""

    key: Key
    job_name: str
    owner: Owner
    image: str  # image id; the process executor ignores it
    argv: tuple[str, ...]
    run_dir: Path  # on the host; /job in a container
    log: Path  # on the host, below run_dir; the attempt's output is appended to it
    limits: Limits
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    network: str | None = None  # an operator's network; None: no network
    directory: PurePosixPath | None = None  # where argv starts, as it sees it; None: the run directory


@dataclass(frozen=True, slots=True)
class Alive:
    """The attempt exists and has not ended."""

    key: Key
    pid: int | None = None  # of its first process, on the host
    container: str | None = field(default=None, compare=False)  # its whole id, which control groups carry


@dataclass(frozen=True, slots=True)
class Created:
    """The container exists and was never started."""

    key: Key


@dataclass(frozen=True, slots=True)
class Gone:
    """The attempt has ended; what the executor knows about how."""

    key: Key
    exit_code: int | None  # None: unknown, for instance after a power cut
    oom_seen: bool = False  # the kernel killed a process of it for memory; not derived from the code
    error: str = ""  # the engine's own words, when it has any
    at: datetime | None = None


Observation: TypeAlias = Alive | Created | Gone


class ImageGone(Exception):
    """The image of a launch is not in the engine; it must be built again."""


class LaunchRefused(Exception):
    """The engine answered a launch with no; trying again unchanged would not help.  One line."""


class BuildFailed(Exception):
    """An image build ended in an error; the text is the last lines of its log."""


class Executor(Protocol):
    """Where attempts run.  Every call may raise ``base.errors.Unavailable``, which is never evidence."""

    @property
    def kind(self) -> str: ...

    def launch(self, request: LaunchRequest) -> None:
        """Create and start the attempt, or find that it was started already.

        Idempotent: however often it is called for one key, the program starts at most once.

        Raises:
            ImageGone: the image must be prepared again.
            LaunchRefused: the engine says no (bad mount, no such device).
            Unavailable: the engine does not answer; nothing is known.
        """

    def signal(self, key: Key, signal: int) -> None:
        """Send a signal to the attempt's program; no error if it is gone.  SIGKILL reaches all processes."""

    def observe(self) -> tuple[Observation, ...]:
        """Return every attempt of this instance that the executor knows, ended ones too."""

    def remove(self, key: Key) -> None:
        """Forget an attempt that has ended; no error if it is forgotten already."""

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        """Return the exact arguments that ``launch`` would give to the engine, as JSON values."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` from another thread whenever something may have changed; return how to stop that.

        Only a hint, to observe sooner: the truth is ``observe``.
        """


class Images(Protocol):
    """Where images come from."""

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        """Return the image id for an accelerator, building it if nothing in the store has its digest.

        Blocks, possibly for minutes; the build's output is appended to ``log`` as it comes.

        Raises:
            BuildFailed: with the last lines of the log.
            Unavailable: the engine does not answer, or all who waited have left.
        """

    def leave(self, job_id: str) -> None:
        """Wait no longer for an image; a build that no job waits for is broken off.  Does not block."""

    def close(self) -> None:
        """Break off every build; does not block."""

    def resolve(self, reference: str) -> str:
        """Return the id of an image that is there under a tag or an id; a tag may move, an id cannot.

        Raises:
            BuildFailed: there is none.
            Unavailable: the engine does not answer.
        """

    def digest(self, accelerator: Accelerator) -> str:
        """Return the content address of what ``ensure`` would give."""


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the time of day, UTC, for people and for the store."""

    def monotonic(self) -> float:
        """Return seconds that never jump, for intervals."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """What the store keeps of one attempt."""

    job_id: str
    number: int
    lineage: int
    image: str
    placed_at: datetime
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: str | None = None
    message: str | None = None
    verdict: str | None = None
    checkpoint_step: int | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with what is not needed to decide about it."""

    job: Job
    name: str
    owner: Owner
    submitted_at: datetime
    priority: int
    revision: str  # the resolved job file, JSON
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventRow:
    seq: int
    job_id: str
    at: datetime
    kind: str
    text: str  # one line for people
    body: str  # JSON


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """What a policy has decided about an attempt, with everything that led to it."""

    job_id: str
    attempt: int
    moment: str
    at: datetime
    body: str  # JSON, see runner.core.policy.explain


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One version of a job's file."""

    number: int
    at: datetime
    by: str
    why: str
    text: str  # resolved, JSON
    lineage: int | None = None  # of its last attempt, once another revision has taken its place


@dataclass(frozen=True, slots=True)
class Lending:
    """What one attempt held, and when."""

    job_id: str
    attempt: int
    owner: str
    team: str
    gpus: int
    cpus: float
    devices: tuple[str, ...]
    placed_at: datetime
    ended_at: datetime | None = None  # None: it has it still


@dataclass(frozen=True, slots=True)
class Recorded:
    """A change to a job as it is written down: the event, and the state before and after it."""

    before: Job
    after: Job
    event: Event
    decision: DecisionRow | None = None  # from which the event follows
    lending: Lending | None = None  # what an attempt that is placed gets


Alike: TypeAlias = Literal["name", "matrix", "schedule"]
"""What jobs have in common: a name, the first job of a matrix, the id of a schedule."""


class Past(Protocol):
    """What the queue remembers of earlier jobs."""

    def since(self, at: datetime) -> Iterable[Lending]:
        """Return what was held at some time after ``at``."""

    def lasted_s(self, owner: str, alike: Alike, which: str) -> tuple[float, ...]:
        """Return how long the latest jobs that are alike held what they had, those that succeeded."""


class Store(Protocol):
    """What survives a crash.  One thread at a time writes; each call is one transaction."""

    @property
    def instance(self) -> str: ...

    def add(self, row: JobRow, text: str, token: str | None = None) -> None: ...

    def add_all(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Write new jobs with the events of their submission, all in one transaction."""

    def record_all(self, changes: Sequence[Recorded]) -> None:
        """Write changes to different jobs, and what they say about attempts, durably, or nothing of them."""

    def decided(self, decision: DecisionRow) -> None:
        """Write a decision that changes no state."""

    def decisions(self, job_id: str, attempt: int | None = None) -> tuple[DecisionRow, ...]:
        """Return what was decided about a job, the oldest first; about one attempt where it is given."""

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        """Write something that users care about and that changes no state."""

    def noted(self, job_id: str, kind: str) -> tuple[str, ...]:
        """Return the lines of one kind that were written about a job, the oldest first."""

    def unfinished(self) -> tuple[JobRow, ...]: ...

    def revision(self, job_id: str, number: int) -> str | None:
        """Return one version of a job's file."""

    def get(self, job_id: str) -> JobRow | None: ...


__all__ = [
    "Alike",
    "Alive",
    "AttemptRow",
    "BuildFailed",
    "Clock",
    "Created",
    "DecisionRow",
    "Device",
    "DeviceHealth",
    "DeviceProbe",
    "DeviceProcess",
    "EventRow",
    "Executor",
    "Gone",
    "Health",
    "ImageGone",
    "Images",
    "JobRow",
    "Key",
    "LaunchRefused",
    "LaunchRequest",
    "Lending",
    "Limits",
    "Mount",
    "Observation",
    "Owner",
    "Past",
    "Recorded",
    "RevisionRow",
    "Store",
    "Vitals",
]
