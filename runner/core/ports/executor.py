"""The executor: the port to what runs attempts, implemented with Docker and with plain processes.

Every adapter passes the contract suite of this port; so does the fake beside it.  A batch system that can
start, list, signal and forget an attempt can be an executor, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias

from runner.core.ports.devices import Device
from runner.core.ports.users import Owner


@dataclass(frozen=True, slots=True)
class Key:
    """The name of an attempt, unique among all daemons: the executor derives every name from it."""

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
    """All that an executor is told about an attempt."""

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
    network: str | None = None  # a network of the engine; None: no network
    name_servers: tuple[str, ...] = ()  # in that network; none: those of the engine
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
    """The attempt has ended, with what the executor knows about its exit."""

    key: Key
    exit_code: int | None  # None: unknown, for instance after a power cut
    oom_seen: bool = False  # the kernel killed a process of it for memory; not derived from the code
    error: str = ""  # the engine's own words, when it has any
    at: datetime | None = None
    started: datetime | None = None  # the start that has ended; somebody may have started it again
    never_started: bool = False  # as far as the daemon and the executor know


@dataclass(frozen=True, slots=True)
class Unknown:
    """The attempt exists, and the executor cannot tell whether or how it has ended.  No evidence."""

    key: Key
    why: str  # one line


Observation: TypeAlias = Alive | Created | Gone | Unknown


class ImageGone(Exception):
    """The image of a launch is not in the engine; it must be built again."""


class LaunchRefused(Exception):
    """The engine refused a launch; the same launch would be refused again.  One line."""


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
        """Return every attempt of this instance that the executor knows, with those that have ended."""

    def remove(self, key: Key) -> None:
        """Forget an attempt that has ended; no error if it is forgotten already."""

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        """Return the exact arguments that ``launch`` would give to the engine, as JSON values."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` from another thread when an attempt may have changed; return how to end that.

        It is only a hint to observe sooner: ``observe`` tells what is so.
        """
