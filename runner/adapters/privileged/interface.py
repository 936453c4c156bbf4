"""All that root does for a daemon without rights; anything else is refused.

A privileged operation is a method here and in its implementation, no more: messages, proxies and dispatcher
follow from the signatures.  No value names a file of the host, except the path of a mount source, which is
opened with the rights of a user: run directories are named by the number of their job, and pins, secrets and
logs by names of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, TypeAdapter

from jobs.contract import AttemptSpec, RunPaths
from runner.adapters.host.opening import RUN_NAME
from runner.adapters.host.paths import PathRefusedError
from runner.adapters.rpc.calls import Calls, Descriptor, HostPath, Interface
from runner.adapters.rpc.errors import ErrorKinds, text_alone
from runner.base.identity import MAX_ID
from runner.core.ports.disk import DiskCounters
from runner.core.ports.disk_use import DiskUse
from runner.core.ports.exec import ExecRequest
from runner.core.ports.executor import (
    Alive,
    Created,
    Gone,
    HostFault,
    ImageGone,
    ImageUnfit,
    Key,
    LaunchRefused,
    LaunchRequest,
    LaunchResult,
    Observation,
    OptionsUnfit,
    Unknown,
    Waiting,
)
from runner.core.ports.images import Accelerator, BuildFailed, ImageRefused, PullPolicy
from runner.core.ports.network import NetworkState
from runner.core.ports.packages import DockerfileRequest, PackageRequest, Unresolvable
from runner.core.ports.users import User

# --- values

MAX_PATH: Final = 4096

JobId: TypeAlias = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")]
ResolutionId: TypeAlias = Annotated[str, Field(pattern=r"^packages-[0-9]{1,18}$")]
RunName: TypeAlias = Annotated[str, Field(pattern=RUN_NAME)]

FileName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$")]
SocketName: TypeAlias = Annotated[str, Field(pattern=r"^[.]?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}$")]
RelativePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]
"""A path below a run directory; the kernel keeps it from leading out of it."""

Instance: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
ExecutorKind: TypeAlias = Literal["docker", "process"]
Number: TypeAlias = Annotated[int, Field(ge=1, le=2**31)]
Size: TypeAlias = Annotated[int, Field(ge=0)]
Snapshot: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{1,128}$")]
UserId: TypeAlias = Annotated[int, Field(ge=0, le=MAX_ID)]
PinName: TypeAlias = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}-[0-9]{1,10}$")]
PinPlace: TypeAlias = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}-[0-9]{1,10}/[0-9]{1,6}$")]

Unsent: TypeAlias = Annotated[
    Path, PlainSerializer(lambda _: None), PlainValidator(lambda _: Path("/nowhere"))
]
"""A path that stays here: the other end knows its own."""


def _of_a_user(request: DockerfileRequest) -> DockerfileRequest:
    if not (0 <= request.uid <= MAX_ID and 0 < len(request.path) <= MAX_PATH):
        raise ValueError("no uid, or no path")
    return request


Dockerfile: TypeAlias = Annotated[DockerfileRequest, AfterValidator(_of_a_user)]


@dataclass(frozen=True, slots=True)
class AttemptNumbers:
    """``RunPaths`` without their root, which the other end knows."""

    attempt: Number
    lineage: Number


_NUMBERS: Final = TypeAdapter(AttemptNumbers)


def _paths_from(value: object) -> RunPaths:
    numbers = {"attempt": value.attempt, "lineage": value.lineage} if isinstance(value, RunPaths) else value
    found = _NUMBERS.validate_python(numbers)
    return value if isinstance(value, RunPaths) else RunPaths(Path("/nowhere"), found.attempt, found.lineage)


Paths: TypeAlias = Annotated[
    RunPaths,
    PlainSerializer(lambda paths: {"attempt": paths.attempt, "lineage": paths.lineage}),
    PlainValidator(_paths_from),
]

_OBSERVATIONS: Final[dict[str, TypeAdapter[Any]]] = {
    kind.__name__: TypeAdapter(kind) for kind in (Alive, Created, Gone, Unknown, Waiting)
}
Observations: TypeAlias = Annotated[
    tuple[Observation, ...],
    PlainSerializer(
        lambda observed: [
            [type(each).__name__, _OBSERVATIONS[type(each).__name__].dump_python(each, mode="json")]
            for each in observed
        ]
    ),
    PlainValidator(
        lambda values: tuple(_OBSERVATIONS[kind].validate_python(value) for kind, value in values)
    ),
]


@dataclass(frozen=True, slots=True)
class NetworkDescription:
    """Fixed properties of the network of jobs that may reach the outside."""

    name: str
    dns: tuple[str, ...]
    is_for_all: bool


@dataclass(frozen=True, slots=True)
class RunOf:
    """One run directory, whose leaves belong to a user."""

    run: RunName
    uid: UserId
    gid: UserId


# --- interfaces


class PrivilegedAttempts(Protocol):
    """Attempts, and commands inside of them."""

    def use(self, kind: ExecutorKind, instance: Instance) -> None:
        """Say where attempts run, and the name of the store; later requests cannot change either."""

    def plan(self, request: LaunchRequest) -> Mapping[str, object]: ...

    def launch(self, request: LaunchRequest) -> LaunchResult: ...

    def signal(self, key: Key, signal: Annotated[int, Field(ge=1, le=64)]) -> None: ...

    def observe(self) -> Observations: ...

    def remove(self, key: Key) -> None: ...

    def watch(self) -> socket:
        """Return a socket that has a byte whenever an attempt may have changed; closing it ends that."""

    def execute(self, key: Key, request: ExecRequest) -> socket:
        """Run a command inside of an attempt, and return the socket of its session."""

    def disk_counters(
        self, keys: Annotated[tuple[Key, ...], Field(max_length=10_000)]
    ) -> tuple[tuple[Key, DiskCounters], ...]:
        """Return the bytes that the processes of attempts have read from disks and written to them."""


class PrivilegedImages(Protocol):
    """Satisfies ``runner.core.ports.images.Images``; only what the settings offer is resolved."""

    def ensure(self, accelerator: Accelerator, log: Unsent, job_id: JobId) -> str: ...

    def leave(self, job_id: JobId) -> None: ...

    def close(self) -> None: ...

    def resolve(self, reference: str) -> str: ...

    def pin(self, reference: str, pull: PullPolicy) -> str: ...

    def fetch(self, reference: str, log: Unsent, job_id: JobId) -> str: ...

    def digest(self, accelerator: Accelerator) -> str: ...


class PrivilegedPackages(Protocol):
    """Packages of jobs."""

    def resolve(self, request: PackageRequest, uid: UserId, gid: UserId, job_id: ResolutionId) -> str: ...

    def ensure(self, lock: str, image: str, accelerator: Accelerator, job_id: JobId) -> str: ...

    def build(self, request: Dockerfile, context: Descriptor, job_id: JobId) -> str:
        """Build the image of a Dockerfile in a context, a tar."""

    def environment(self, lock: str) -> Path | None: ...

    def evict(self, needed: frozenset[str]) -> None: ...

    def leave(self, job_id: JobId | ResolutionId) -> None: ...

    def close(self) -> None: ...


class PrivilegedPins(Protocol):
    """Satisfies ``runner.core.ports.users.MountPins``; the groups of a user are looked up again."""

    def pin(self, who: User, path: HostPath, name: PinPlace) -> Path: ...

    def release(self, name: PinName) -> None: ...

    def names(self) -> tuple[str, ...]: ...


class PrivilegedNetwork(Protocol):
    """The network of jobs that may reach the outside."""

    def describe(self) -> NetworkDescription | None:
        """Return its description, None where attempts have the network of this host."""

    def state(self) -> NetworkState: ...

    def prepare(self) -> str: ...

    def close(self) -> None: ...


class PrivilegedRun(Protocol):
    """Operations of root on one run directory; see ``runner.agent.ports.RunDirectory``."""

    def create(self) -> None: ...

    def prepare(self, spec: AttemptSpec, secrets: Mapping[FileName, bytes], said: str = "") -> Paths: ...

    def is_lineage_locked(self, paths: Paths) -> bool: ...

    def begin_seed(self, lineage: Number) -> Path:
        """Make the draft of a lineage, which belongs to its owner."""

    def publish_seed(self, lineage: Number) -> None:
        """Put the draft of a lineage in its place."""

    def begin_work(self, lineage: Number, *, afresh: Number | None = None) -> str | None:
        """Make the draft of a working directory, which the daemon may write to, unless there is one.

        For the attempt ``afresh``, one that is there is set aside.
        """

    def note_work(self, lineage: Number, snapshot: Snapshot) -> None:
        """Note which snapshot a working directory has been brought to."""

    def publish_work(self, lineage: Number, snapshot: Snapshot) -> None:
        """Give the draft of a working directory to its owner, and put it in its place."""

    def note_log_size(self, paths: Paths, now_s: Annotated[float, Field(ge=0, le=1e12)]) -> None: ...

    def move(self, name: JobId) -> None: ...

    def remove(self) -> None:
        """Remove a run directory that no job has."""

    def forget_secrets(self) -> None: ...

    def remove_drafts(self) -> None: ...

    def there(self, paths: Paths) -> frozenset[str]: ...

    def limit_log(self, paths: Paths, quota_bytes: Size, keep_head: Size, keep_tail: Size) -> int: ...

    def terminals(self, paths: Paths) -> tuple[str, ...]: ...

    def terminal_touched(self, paths: Paths) -> float | None: ...

    def tell_terminals(self, paths: Paths, text: Annotated[str, Field(max_length=4096)]) -> None: ...

    def connect(self, paths: Paths, name: SocketName) -> socket: ...

    def open_kept(self, lineage: Number) -> Descriptor:
        """Open what only the workers of the job's user reach: versions of checkpoints, and notes."""

    def keep(self, attempt: Annotated[int, Field(ge=0, le=2**31)], name: FileName, text: str) -> None: ...


class PrivilegedRuns(Protocol):
    """All run directories, and the files in them, which are opened without following a link."""

    def size(self, job_id: JobId) -> int: ...

    def use(self, job_id: JobId, most: DiskUse) -> DiskUse: ...

    def set_aside(self, job_id: JobId) -> None: ...

    def remove(self, job_id: JobId) -> None: ...

    def sweep(self) -> None: ...

    def open_below(self, run: RunName, path: RelativePath, *, directory: bool) -> Descriptor:
        """Open a regular file or a directory below a run directory for reading."""


class PrivilegedHost(Protocol):
    """Operations that belong to none of the others."""

    def open_spawner(self) -> socket:
        """Return a socket to a process that opens files with the rights of users."""

    def reload_settings(self) -> None: ...


PRIVILEGED: Final = Calls(
    {
        "attempts": Interface(PrivilegedAttempts),
        "images": Interface(PrivilegedImages),
        "packages": Interface(PrivilegedPackages),
        "pins": Interface(PrivilegedPins),
        "network": Interface(PrivilegedNetwork),
        "run": Interface(PrivilegedRun, RunOf),
        "runs": Interface(PrivilegedRuns),
        "host": Interface(PrivilegedHost),
    },
    ErrorKinds(
        {
            **dict.fromkeys(
                (
                    ImageGone,
                    ImageUnfit,
                    LaunchRefused,
                    OptionsUnfit,
                    HostFault,
                    BuildFailed,
                    ImageRefused,
                    PathRefusedError,
                ),
                text_alone,
            ),
            Unresolvable: lambda error: (str(error), error.details),
        }
    ),
)
