"""The models of the job file.

They validate the form of each field. Left out: fields that contradict each other (``conflicts``), whether
paths exist, which is checked with the rights of the job's owner, and which images and devices the operator
offers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from jobs import contract
from runner.base import yaml
from runner.base.textfile import Position, Problem
from runner.files.field_checks import check_umask
from runner.files.job.image import ImageChoice
from runner.files.job.parallel import ParallelFields
from runner.files.job.program_files import check_checkpoint_files, check_resume_args
from runner.files.job.progress import LogProgress
from runner.files.job.queue import DeviceRequest, Matrix, QueueFields, Schedule
from runner.files.job.shorthand import check_kind, check_plan_paths, expand_image, expand_profile
from runner.files.job.slurm import SlurmFields
from runner.files.job.sweep import Sweep
from runner.files.job.track import Trackers
from runner.files.profiles.load import Accelerator, ProfileChoice, resolve_choice
from runner.files.types import (
    GIB,
    Grace,
    HostPath,
    JobName,
    LabelKey,
    LabelValue,
    Memory,
    Name,
    PolicyChoice,
    SaveInterval,
    Shm,
    Target,
    Text,
    TimeLimit,
    Variable,
    Wait,
)
from runner.files.validation import format_path

WORKLOADS: Final = contract.KINDS
"""The values of ``workload.kind``."""


ExecutorPlace = Literal["local", "slurm"]


def _places(value: tuple[ExecutorPlace, ...]) -> tuple[ExecutorPlace, ...]:
    if len(set(value)) < len(value):
        raise ValueError("names a place twice; leave one out")
    return value


Places = Annotated[tuple[ExecutorPlace, ...], AfterValidator(_places), Field(min_length=1)]


class Resources(contract.Spec):
    """Limits of one attempt; of each of its nodes, where it has several."""

    nodes: int = Field(
        1,
        ge=1,
        le=contract.MAX_PROCESSES,
        description="Nodes of a Slurm cluster that an attempt runs on together; gpus, cpus and memory are"
        " those of each.",
    )
    gpus: int = Field(0, ge=0, le=64, description="Whole GPUs, allocated to this job alone.")
    cpus: float = Field(1.0, ge=0.1, le=1024, description="CPU cores; 1.5 is one and a half.")
    memory: Memory = Field(4 * GIB, description="Memory limit; /dev/shm and /tmp count.")
    shm: Shm | None = Field(None, description="Size of /dev/shm, a part of memory; null: half of it.")
    time_limit: TimeLimit | None = Field(
        None, description="Running time, after which the job is stopped; null: no limit."
    )

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm: as the job file says, else half of the memory limit, as Linux does."""
        return self.memory // 2 if self.shm is None else self.shm


class MountEntry(contract.Spec):
    """A file or directory of the host, shown to the job."""

    source: HostPath = Field(description="File or directory on the host; relative to the job file.")
    target: Target = Field(description="Where the job sees it: a path below /data.")
    read_only: bool = Field(default=True, description="false lets the job write there, as its owner.")


class Checkpoints(contract.Spec):
    """Times of saves; the clock that is due first decides."""

    every_steps: int | None = Field(None, ge=1, description="Steps between checkpoints; null: by time alone.")
    every: SaveInterval | None = Field(
        "auto",
        description="Time between checkpoints; auto: by what one costs and how often this host interrupts"
        " jobs; null: by steps alone.",
    )
    on_stop: bool = Field(
        default=True, description="Save when asked to stop; false: exit at once, whatever is lost."
    )
    keep: int = Field(3, ge=2, le=1000, description="Newest checkpoints to keep; the last may be torn.")
    milestone_every: int | None = Field(
        None, ge=1, description="Steps between checkpoints that are never deleted."
    )
    before_eval: bool | None = Field(
        None,
        description="Save before each evaluation; null: where one takes longer than a save.",
    )
    files: Annotated[str, AfterValidator(check_checkpoint_files)] | None = Field(
        None,
        description="Pattern of the files or directories that a program saves on its own; relative to its"
        " working directory, below /job/home/ or below a mount; null: it saves none.",
    )
    keep_files: bool = Field(
        default=False,
        description="A further attempt of a program that has no checkpoint goes on in the files that the one"
        " before has left; false: it begins with the submitted code. checkpoint.files implies it.",
    )
    resume_args: Annotated[tuple[Text, ...], AfterValidator(check_resume_args)] = Field(
        (),
        max_length=20,
        description="Arguments that are appended to the command when a checkpoint of files is there; {newest}"
        " is its path, and {step} its step.",
    )


class Retry(contract.Spec):
    """Limits of further attempts by the job itself: ceilings below those of its policy, and its waits."""

    max_attempts: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Attempts that count, the first one included; null: as the policy says.",
    )
    no_progress: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Give up after so many that ended alike and saved nothing new; null: as the policy says.",
    )
    backoff: Wait | None = Field(
        None, description="Wait before the second attempt; null: as the policy says. It grows from there."
    )
    backoff_max: Wait | None = Field(
        None, description="Longest wait between two attempts; null: as the policy says."
    )


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """The file of a job and its tree. All origins are equal, so the layout does not make two jobs differ."""

    path: Path = field(default=Path("job.yaml"), compare=False)
    tree: yaml.Node | None = field(default=None, compare=False)
    find: Callable[[tuple[yaml.PathPart, ...]], Position | None] | None = field(default=None, compare=False)
    """Returns a position, where the tree is not in this process."""

    def problem(self, path: tuple[yaml.PathPart, ...], fact: str) -> Problem:
        """Return a problem of the value at a path, with its position if the tree is known."""
        if self.find is not None:
            at = self.find(path)
        else:
            at = yaml.find_position(self.tree, path) if self.tree else None
        return Problem(at, format_path(path), fact)


class JobFile(contract.Spec):
    """The job file: one job as its owner requests it."""

    name: JobName = Field(description="Name of the job; need not be unique.")
    workload: Annotated[contract.Plan, BeforeValidator(check_kind), AfterValidator(check_plan_paths)] = Field(
        description="What is trained."
    )
    profile: Annotated[ProfileChoice, BeforeValidator(expand_profile)] = Field(
        ProfileChoice(), description="A performance profile, or changes to one."
    )
    accelerator: Literal["auto", "cuda", "rocm", "cpu"] = Field(
        "auto", description="auto: that of the machine's GPUs if the job requests some, else cpu."
    )
    resources: Resources = Field(Resources(), description="What one attempt may use.")
    parallel: ParallelFields = Field(
        ParallelFields(), description="How several processes share a training, one per GPU."
    )
    image: Annotated[ImageChoice, BeforeValidator(expand_image)] = Field(
        ImageChoice(), description="auto, the name of an image that the operator offers, or packages."
    )
    network: Literal["none", "outbound"] | None = Field(
        None,
        description="none, or outbound: what lies beyond this host; null: as the operator's settings say.",
    )
    mounts: tuple[MountEntry, ...] = Field(
        (), max_length=32, description="Files and directories of the host, shown to the job."
    )
    environment: dict[Variable, Text] = Field(
        {}, max_length=200, description="Environment variables; nothing secret."
    )
    secrets: dict[Name, HostPath] = Field(
        {}, max_length=32, description="Files of the host, shown read-only as /run/secrets/NAME."
    )
    secret_env: tuple[Variable, ...] = Field(
        (), max_length=32, description="Secrets that the program also finds as environment variables."
    )
    umask: Annotated[str, AfterValidator(check_umask)] | None = Field(
        None, description="What its files deny: 022, 027, 002...; null: 022 with a writable mount, else 077."
    )
    checkpoint: Checkpoints = Field(Checkpoints(), description="When to save, and how many to keep.")
    progress: LogProgress = Field(LogProgress(), description="How the log of a program tells its progress.")
    track: Trackers = Field(
        contract.Tracking(),
        description="Experiment trackers that get the metrics, too: [tensorboard, {mlflow: URI}].",
    )
    policy: PolicyChoice = Field(
        "default", description="What follows when an attempt ends or hangs: a policy's name, or its file."
    )
    retry: Retry = Field(Retry(), description="Ceilings below those of the policy, and waits.")
    allow: tuple[Literal["changed_training"], ...] = Field(
        (), description="What a change of this file may do to a training that runs: changed_training."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Seed of everything that is random.")
    priority: int = Field(50, ge=0, le=100, description="Higher goes first, among your own jobs of a class.")
    queue: QueueFields = Field(QueueFields(), description="When it may start, and before whom.")
    devices: DeviceRequest = Field(DeviceRequest(), description="On which GPUs it can run.")
    executor: Places | None = Field(
        None,
        description="Where it may run: local, slurm, or both: then where it starts first; null: as the"
        " daemon does.",
    )
    slurm: SlurmFields = Field(SlurmFields(), description="What it asks of Slurm, where jobs run there.")
    matrix: Matrix | None = Field(None, description="Many jobs from this file, one for each combination.")
    sweep: Sweep | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that an earlier version reads the revision
        description="Many candidates from this file, of which the best go on.",
    )
    schedule: Schedule | None = Field(None, description="When it is submitted again, on its own.")
    labels: dict[LabelKey, LabelValue] = Field({}, max_length=32, description="Labels to find the job by.")
    stop_grace: Grace = Field(
        timedelta(seconds=30), description="Time to save and exit after a request to stop; then it is killed."
    )

    _origin: JobOrigin = PrivateAttr(default_factory=JobOrigin)

    @property
    def origin(self) -> JobOrigin:
        return self._origin

    def read_from(self, origin: JobOrigin) -> "JobFile":
        """Return this job with its origin, which gives problems their positions."""
        self._origin = origin
        return self


def resolve_profile(job: JobFile, accelerator: Accelerator) -> contract.Profile:
    """Return the resulting profile of the job on an accelerator.

    The loader processes that a named profile asks for are at most as many as the job has cores, because a
    profile serves jobs of any size; a number in the job file is taken as it is.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    found = resolve_choice(job.profile, contract.profiles_dir(), accelerator)
    most = contract.most_workers(job.resources.cpus)
    if "loader_workers" in job.profile.changes or found.loader_workers <= most:
        return found
    return found.model_copy(update={"loader_workers": most})


FIRST_SAVE: Final = timedelta(minutes=2)
"""The interval of ``checkpoint.every: auto`` until the duration of a save is known."""


def checkpoint_plan(job: JobFile, mean_between_s: float) -> contract.CheckpointPlan:
    """Return when to save; ``mean_between_s`` is this host's mean time between interruptions in seconds."""
    automatic = job.checkpoint.every == "auto"
    every = FIRST_SAVE if job.checkpoint.every == "auto" else job.checkpoint.every
    return contract.CheckpointPlan(
        every_steps=job.checkpoint.every_steps,
        every_s=every.total_seconds() if every else None,
        mean_between_s=mean_between_s if automatic else None,
        on_stop=job.checkpoint.on_stop,
        keep=job.checkpoint.keep,
        milestone_every=job.checkpoint.milestone_every,
        before_eval=job.checkpoint.before_eval,
        pauses=() if job.sweep is None or job.sweep.stop is None else job.sweep.stop.rungs,
    )
