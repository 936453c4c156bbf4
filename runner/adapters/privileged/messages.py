"""What a daemon may ask its helper for; anything else is refused.

Each message is one typed value.  None of them names a file of the host, except the path of a mount source,
which is opened with the rights of a user: run directories are named by the number of their job, and pins,
secrets and logs by names of their own.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from jobs.contract import AttemptSpec
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.disk import DiskCounters
from runner.core.ports.exec import ExecRequest
from runner.core.ports.executor import (
    Alive,
    Created,
    Gone,
    Key,
    LaunchRequest,
    Observation,
    Unknown,
    Waiting,
)
from runner.core.ports.images import Accelerator
from runner.core.ports.packages import PackageRequest

JobId: TypeAlias = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}$")]
ResolutionId: TypeAlias = Annotated[str, Field(pattern=r"^packages-[0-9]{1,18}$")]
_RUN_NAME: Final = r"^([1-9][0-9]{0,17}|\.canary-[0-9a-f]{16})$"
RunName: TypeAlias = Annotated[str, Field(pattern=_RUN_NAME)]
"""The name of a run directory: a job's number, or that of a canary that has none yet."""

FileName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$")]
RelativePath: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]
"""A path below a run directory; the kernel keeps it from leading out of it."""

Instance: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
ExecutorKind: TypeAlias = Literal["docker", "process", "slurm"]
Number: TypeAlias = Annotated[int, Field(ge=1, le=2**31)]
UserId: TypeAlias = Annotated[int, Field(ge=0, lt=2**32 - 1)]
PinName: TypeAlias = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,17}-[0-9]{1,10}$")]


class Message(BaseModel):
    """A request of the daemon."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class UseExecutor(Message):
    """Say where attempts run, and the name of the store; later requests cannot change either."""

    op: Literal["use_executor"] = "use_executor"
    kind: ExecutorKind
    instance: Instance


class Plan(Message):
    op: Literal["plan"] = "plan"
    request: LaunchRequest


class Launch(Message):
    op: Literal["launch"] = "launch"
    request: LaunchRequest


class Signal(Message):
    op: Literal["signal"] = "signal"
    key: Key
    signal: Annotated[int, Field(ge=1, le=64)]


class Observe(Message):
    op: Literal["observe"] = "observe"


class MeasureDisk(Message):
    """Read what the processes of attempts have read from disks and written to them."""

    op: Literal["measure_disk"] = "measure_disk"
    keys: Annotated[tuple[Key, ...], Field(max_length=10_000)]


class Remove(Message):
    op: Literal["remove"] = "remove"
    key: Key


class Watch(Message):
    """Get an empty answer whenever an attempt may have changed, until the connection ends."""

    op: Literal["watch"] = "watch"


class EnsureImage(Message):
    op: Literal["ensure_image"] = "ensure_image"
    accelerator: Accelerator
    job: JobId


class LeaveImage(Message):
    op: Literal["leave_image"] = "leave_image"
    job: JobId


class CloseImages(Message):
    op: Literal["close_images"] = "close_images"


class ResolveImage(Message):
    """Find an image that the operator's settings offer."""

    op: Literal["resolve_image"] = "resolve_image"
    reference: str


class ImageDigest(Message):
    op: Literal["image_digest"] = "image_digest"
    accelerator: Accelerator


class ResolvePackages(Message):
    op: Literal["resolve_packages"] = "resolve_packages"
    request: PackageRequest
    uid: UserId
    gid: UserId
    job: ResolutionId


class EnsurePackages(Message):
    op: Literal["ensure_packages"] = "ensure_packages"
    lock: str
    image: str
    accelerator: Accelerator
    job: JobId


class BuildDockerfile(Message):
    """Build the image of a Dockerfile; the context, a tar, comes as a descriptor."""

    op: Literal["build_dockerfile"] = "build_dockerfile"
    path: RelativePath
    image: str
    accelerator: Accelerator
    uid: UserId
    job: JobId


class FindEnvironment(Message):
    op: Literal["find_environment"] = "find_environment"
    lock: str


class EvictPackages(Message):
    op: Literal["evict_packages"] = "evict_packages"
    needed: tuple[str, ...]


class LeavePackages(Message):
    op: Literal["leave_packages"] = "leave_packages"
    job: JobId | ResolutionId


class ClosePackages(Message):
    op: Literal["close_packages"] = "close_packages"


class OpenBroker(Message):
    """Get a socket to a process that opens files with the rights of users."""

    op: Literal["open_broker"] = "open_broker"


class Pin(Message):
    op: Literal["pin"] = "pin"
    uid: UserId
    gid: UserId
    path: bytes
    pin: PinName
    number: Annotated[int, Field(ge=0, le=10**6)]


class ReleasePins(Message):
    op: Literal["release_pins"] = "release_pins"
    pin: PinName


class PinNames(Message):
    op: Literal["pin_names"] = "pin_names"


class InRunDirectory(Message):
    """A request about one run directory, whose leaves belong to a user."""

    run: RunName
    uid: UserId
    gid: UserId


class CreateRun(InRunDirectory):
    op: Literal["create_run"] = "create_run"


class PrepareRun(InRunDirectory):
    op: Literal["prepare_run"] = "prepare_run"
    spec: AttemptSpec
    secrets: dict[FileName, bytes]
    said: str = ""


class BeginSeed(InRunDirectory):
    """Make the draft of a lineage, which the daemon may write to."""

    op: Literal["begin_seed"] = "begin_seed"
    lineage: Number


class PublishSeed(InRunDirectory):
    """Give the draft of a lineage to its owner, and put it in its place."""

    op: Literal["publish_seed"] = "publish_seed"
    lineage: Number


class MoveRun(InRunDirectory):
    op: Literal["move_run"] = "move_run"
    to: JobId


class RemoveRun(InRunDirectory):
    """Remove a run directory that no job has."""

    op: Literal["remove_run"] = "remove_run"
    run: Annotated[str, Field(pattern=r"^\.canary-[0-9a-f]{16}$")]


class ForgetSecrets(InRunDirectory):
    op: Literal["forget_secrets"] = "forget_secrets"


class RemoveDrafts(InRunDirectory):
    op: Literal["remove_drafts"] = "remove_drafts"


class IsLineageLocked(InRunDirectory):
    op: Literal["is_lineage_locked"] = "is_lineage_locked"
    attempt: Number
    lineage: Number


class FindReports(InRunDirectory):
    op: Literal["find_reports"] = "find_reports"
    attempt: Number
    lineage: Number


class LimitLog(InRunDirectory):
    op: Literal["limit_log"] = "limit_log"
    attempt: Number
    lineage: Number
    quota_bytes: Annotated[int, Field(ge=0)]
    keep_head: Annotated[int, Field(ge=0)]
    keep_tail: Annotated[int, Field(ge=0)]


class Keep(InRunDirectory):
    op: Literal["keep"] = "keep"
    attempt: Annotated[int, Field(ge=0, le=2**31)]
    name: FileName
    text: str


class BeginWork(InRunDirectory):
    """Make the draft of a working directory, which the daemon may write to, unless there is one."""

    op: Literal["begin_work"] = "begin_work"
    lineage: Number


class NoteWork(InRunDirectory):
    """Note which snapshot a working directory has been brought to."""

    op: Literal["note_work"] = "note_work"
    lineage: Number
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{1,128}$")]


class PublishWork(InRunDirectory):
    """Give the draft of a working directory to its owner, and put it in its place."""

    op: Literal["publish_work"] = "publish_work"
    lineage: Number
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{1,128}$")]


class NoteLogSize(InRunDirectory):
    op: Literal["note_log_size"] = "note_log_size"
    attempt: Number
    lineage: Number
    now_s: Annotated[float, Field(ge=0, le=1e12)]


class DescribeNetwork(Message):
    op: Literal["describe_network"] = "describe_network"


class FindNetworkState(Message):
    op: Literal["find_network_state"] = "find_network_state"


class PrepareNetwork(Message):
    op: Literal["prepare_network"] = "prepare_network"


class CloseNetwork(Message):
    op: Literal["close_network"] = "close_network"


class Exec(Message):
    """Run a command inside of an attempt; the connection belongs to it from now on."""

    op: Literal["exec"] = "exec"
    key: Key
    request: ExecRequest


class FindTerminals(InRunDirectory):
    op: Literal["find_terminals"] = "find_terminals"
    attempt: Number
    lineage: Number


class FindTerminalUse(InRunDirectory):
    op: Literal["find_terminal_use"] = "find_terminal_use"
    attempt: Number
    lineage: Number


class TellTerminals(InRunDirectory):
    op: Literal["tell_terminals"] = "tell_terminals"
    attempt: Number
    lineage: Number
    text: Annotated[str, Field(max_length=4096)]


class FindProgramCheckpoints(InRunDirectory):
    op: Literal["find_program_checkpoints"] = "find_program_checkpoints"
    attempt: Number
    lineage: Number
    wanted: ProgramFiles
    how: Verification


class ChooseProgramCheckpoint(InRunDirectory):
    op: Literal["choose_program_checkpoint"] = "choose_program_checkpoint"
    attempt: Number
    lineage: Number
    wanted: ProgramFiles
    step: int | None
    is_first: bool


class Connect(InRunDirectory):
    """Get a connection to a socket that a process of the owner holds in an attempt."""

    op: Literal["connect"] = "connect"
    attempt: Number
    lineage: Number
    name: Annotated[str, Field(pattern=r"^[.]?[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}$")]


class MeasureRun(Message):
    op: Literal["measure_run"] = "measure_run"
    job: JobId


class UseOfRun(Message):
    op: Literal["use_of_run"] = "use_of_run"
    job: JobId
    most_size: Annotated[int, Field(ge=0, le=2**63)]
    most_files: Annotated[int, Field(ge=0, le=2**63)]


class RemoveEndedRun(Message):
    op: Literal["remove_ended_run"] = "remove_ended_run"
    job: JobId


class SweepRuns(Message):
    op: Literal["sweep_runs"] = "sweep_runs"


class ReloadSettings(Message):
    """Read the settings file again."""

    op: Literal["reload_settings"] = "reload_settings"


class OpenInRun(Message):
    """Open a regular file or a directory below a run directory for reading; no link is followed."""

    op: Literal["open_in_run"] = "open_in_run"
    run: RunName
    path: RelativePath
    directory: bool


class OpenInDirectory(Message):
    """Do the same in a directory that comes with the message and lies in a run directory."""

    op: Literal["open_in_directory"] = "open_in_directory"
    path: RelativePath
    directory: bool


Request: TypeAlias = Annotated[
    UseExecutor
    | Plan
    | Launch
    | Signal
    | Observe
    | MeasureDisk
    | Remove
    | Watch
    | EnsureImage
    | LeaveImage
    | CloseImages
    | ResolveImage
    | ImageDigest
    | ResolvePackages
    | EnsurePackages
    | BuildDockerfile
    | EvictPackages
    | FindEnvironment
    | LeavePackages
    | ClosePackages
    | OpenBroker
    | Pin
    | ReleasePins
    | PinNames
    | CreateRun
    | PrepareRun
    | BeginSeed
    | PublishSeed
    | MoveRun
    | RemoveRun
    | ForgetSecrets
    | RemoveDrafts
    | IsLineageLocked
    | FindReports
    | LimitLog
    | Keep
    | BeginWork
    | PublishWork
    | NoteWork
    | NoteLogSize
    | DescribeNetwork
    | FindNetworkState
    | PrepareNetwork
    | CloseNetwork
    | Exec
    | FindTerminals
    | FindTerminalUse
    | TellTerminals
    | FindProgramCheckpoints
    | ChooseProgramCheckpoint
    | Connect
    | MeasureRun
    | UseOfRun
    | RemoveEndedRun
    | SweepRuns
    | ReloadSettings
    | OpenInRun
    | OpenInDirectory,
    Field(discriminator="op"),
]

SAVED: Final = TypeAdapter(SavedCheckpoints)
COUNTERS: Final = TypeAdapter(tuple[tuple[Key, DiskCounters], ...])
CHOSEN: Final = TypeAdapter(ProgramCheckpoint | None)
REQUESTS: Final[TypeAdapter[Any]] = TypeAdapter(Request)


def is_run_name(name: str) -> bool:
    """Return whether a directory of this name is that of a job or a canary."""
    return re.fullmatch(_RUN_NAME, name) is not None


_OBSERVATIONS: Final[dict[str, TypeAdapter[Any]]] = {
    kind.__name__: TypeAdapter(kind) for kind in (Alive, Created, Gone, Unknown, Waiting)
}


def observations_to_json(observed: tuple[Observation, ...]) -> list[Any]:
    """Return observations as JSON values."""
    return [
        [type(each).__name__, _OBSERVATIONS[type(each).__name__].dump_python(each, mode="json")]
        for each in observed
    ]


def observations_from_json(values: list[Any]) -> tuple[Observation, ...]:
    """Return the observations in an answer of the helper."""
    return tuple(_OBSERVATIONS[kind].validate_python(value) for kind, value in values)
