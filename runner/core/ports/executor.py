"""The executor: the port to what runs attempts, such as containers, plain processes, jobs of a batch system.

Every adapter passes the contract suite of this port; so do the fakes beside it.  An engine with a queue of
its own accepts an attempt and begins it later (``LaunchResult.ACCEPTED``, ``Waiting``), chooses its host and
devices, and may end it for reasons of its own (``EndReason``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias

from runner.base.errors import Unavailable
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
    """Limits of the resources of one attempt."""

    cpus: float
    memory_bytes: int
    shm_bytes: int = 64 * 1024**2
    pids: int = 4096
    tmp_bytes: int = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a job file for a batch system; None: as the operator's settings or the batch system say."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    extra: tuple[str, ...] = ()  # further options, as the batch system's own command takes them


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs that an engine with a queue of its own shall choose."""

    count: int = 0
    models: tuple[str, ...] = ()  # any of which will do; (): any model
    vendor: str = "nvidia"  # or "amd"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Requirements of an attempt by which a batch system finds a place for it."""

    limits: Limits
    gpus: GpuRequest = GpuRequest()
    options: BatchOptions = BatchOptions()
    time_left: timedelta | None = None  # of the job's time limit; None: it has none
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    nodes: int = 1  # that the attempt runs on together; limits and gpus are those of each
    priority: int = 50  # of the job, from 0 to 100
    priority_class: str = "normal"
    places: tuple[str, ...] = ("slurm",)  # local: the daemon's machine, where the daemon offers it; slurm
    outbound: bool = False  # the job may reach the outside


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
    groups: tuple[int, ...] = ()  # supplementary ones, beside that of the owner
    name_servers: tuple[str, ...] = ()  # in that network; none: those of the engine
    directory: PurePosixPath | None = None  # where argv starts, as it sees it; None: the run directory
    batch: BatchRequest | None = None  # for an engine that places attempts itself; None: limits alone


class LaunchResult(StrEnum):
    """Result of ``launch``."""

    BEGUN = "begun"
    ACCEPTED = "accepted"  # the engine has the attempt; ``observe`` says when it has begun


@dataclass(frozen=True, slots=True)
class Alive:
    """The attempt exists and has not ended."""

    key: Key
    pid: int | None = None  # of its first process, on the daemon's host
    container: str | None = field(default=None, compare=False)  # its whole id, which control groups carry
    host: str | None = field(default=None, compare=False)  # None: the daemon's own
    devices: tuple[str, ...] = field(default=(), compare=False)  # that the engine has chosen, by its names
    suspended: bool = False  # the engine has stopped its processes for a while: silence proves nothing


@dataclass(frozen=True, slots=True)
class Waiting:
    """The engine has accepted the attempt, which waits in the engine's own queue."""

    key: Key
    why: str  # one line
    starts_at: datetime | None = None  # the engine's estimate; None: it has none


@dataclass(frozen=True, slots=True)
class Created:
    """The container exists and was never started."""

    key: Key


class EndReason(StrEnum):
    """Reason, not the program's own, for which an engine or a person using it has ended an attempt."""

    PREEMPTED = "preempted"  # for another job of the engine's queue
    NODE_FAILED = "node_failed"  # its node was lost, or never booted
    OUT_OF_TIME = "out_of_time"  # a time limit of the engine
    CANCELLED_ELSEWHERE = "cancelled_elsewhere"  # by a person, with the engine's own commands
    STARTED_TWICE = (
        "started_twice"  # it was begun again, from outside or by the engine, and not by the runner
    )


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
    reason: EndReason | None = None  # None: the program ended, or the engine does not say


@dataclass(frozen=True, slots=True)
class Unknown:
    """The attempt exists, and the executor cannot tell whether or how it has ended.  No evidence."""

    key: Key
    why: str  # one line


Observation: TypeAlias = Alive | Waiting | Created | Gone | Unknown


class ImageGone(Exception):
    """The image of a launch is not in the engine; it must be built again."""


class LaunchRefused(Exception):
    """The engine refused a launch; the same launch would be refused again.  One line."""


class OptionsUnfit(LaunchRefused):
    """The batch system does not know what the job file names, such as a partition; the host is not blamed."""


class ImageUnfit(LaunchRefused):
    """The image has something in the way of what each container gets; no fault of the host looks so."""


class HostFault(Unavailable):
    """The host cannot run a container: it lacks a runtime, a driver, a profile, a specification of devices.

    The attempt is not blamed, and its devices are not allocated until they are looked at again.
    """


class Executor(Protocol):
    """Port to an engine for attempts.  Every call may raise ``base.errors.Unavailable``: no evidence."""

    @property
    def kind(self) -> str: ...

    @property
    def in_container(self) -> bool:
        """Return True if attempts have an image, and the paths of a container."""

    @property
    def queues(self) -> bool:
        """Return True if the engine has a queue of its own, and chooses hosts and devices itself."""

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Create and start the attempt, or hand it to the engine's queue, or find that this was done already.

        Idempotent: however often it is called for one key, the program starts at most once.

        Raises:
            ImageGone: the image must be prepared again.
            LaunchRefused: the engine says no to what the job asks for, such as a mount.
            HostFault: the host cannot run the container, or give it its devices.
            Unavailable: the engine does not answer; nothing is known.
        """

    def signal(self, key: Key, signal: int) -> None:
        """Send a signal to the attempt's program; no error if it is gone.  SIGKILL reaches all processes."""

    def observe(self) -> tuple[Observation, ...]:
        """Return every attempt of this instance that the executor knows, with those that have ended."""

    def remove(self, key: Key) -> None:
        """Forget an attempt that has ended; no error if it is forgotten already, Unavailable if it runs."""

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        """Return the exact arguments that ``launch`` would give to the engine, as JSON values."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` from another thread when an attempt may have changed; return how to end that.

        It is only a hint to observe sooner: ``observe`` tells what is so.
        """
