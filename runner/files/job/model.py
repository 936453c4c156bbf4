"""What a user may say about a job: the models of the job file and the way into them.

Everything is checked at once, and every complaint has a line and a column.  What is not
here: whether paths exist (``spec_paths``: that must be asked as the job's owner), and
which images and devices the operator offers (the settings).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from jobs import contract
from runner.base import yaml as yaml_tree
from runner.base.textfile import Problem, SpecError, quoted, read_source
from runner.base.units import format_duration, format_size
from runner.files import validation as parsing
from runner.files import validators as rules
from runner.files.job import matrix as spec_matrix
from runner.files.job import shorthand as forms
from runner.files.job.queue import DeviceChoice, Matrix, Queueing, Schedule, contradictions
from runner.files.profiles import conflicts as switches
from runner.files.profiles import load as spec_profiles
from runner.files.profiles.load import Accelerator, ProfileChoice
from runner.files.types import (
    GIB,
    MIB,
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

WORKLOADS: Final = contract.KINDS
"""The kinds that ``workload.kind`` may be."""


class Resources(contract.Spec):
    """What one attempt may use."""

    gpus: int = Field(0, ge=0, le=64, description="Whole GPUs, lent to this job alone.")
    cpus: float = Field(1.0, ge=0.1, le=1024, description="CPU cores; 1.5 is one and a half.")
    memory: Memory = Field(4 * GIB, description="Memory limit; /dev/shm and /tmp count.")
    shm: Shm = Field(64 * MIB, description="Size of the job's own /dev/shm.")
    time_limit: TimeLimit | None = Field(
        None, description="Running time, after which the job is stopped; null: no limit."
    )


class ImageChoice(contract.Spec):
    """Which image runs the job."""

    name: Name = Field("auto", description="auto, or the name of an image that the operator offers.")


class MountEntry(contract.Spec):
    """A file or directory of the host, shown to the job."""

    source: HostPath = Field(description="File or directory on the host; relative to the job file.")
    target: Target = Field(description="Where the job sees it: a path below /data.")
    read_only: bool = Field(default=True, description="false lets the job write there, as its owner.")


class Checkpoints(contract.Spec):
    """When to save; whichever clock is due first."""

    every_steps: int | None = Field(None, ge=1, description="Steps between checkpoints; null: by time alone.")
    every: SaveInterval | None = Field(
        "auto",
        description="Time between checkpoints; auto: by what one costs and how often this host interrupts"
        " jobs; null: by steps alone.",
    )
    on_stop: bool = Field(
        default=True, description="Save when asked to stop; false: leave at once, whatever is lost."
    )
    keep: int = Field(3, ge=2, le=1000, description="Newest checkpoints to keep; the last may be torn.")
    milestone_every: int | None = Field(
        None, ge=1, description="Steps between checkpoints that are never deleted."
    )


class Retry(contract.Spec):
    """What the job itself says about further attempts: ceilings below those of its policy, and its waits."""

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
class Origin:
    """The file a job was read from.  All origins are equal: layout does not make two jobs differ."""

    path: Path = field(default=Path("job.yaml"), compare=False)
    tree: yaml_tree.Node | None = field(default=None, compare=False)

    def problem(self, path: tuple[yaml_tree.Part, ...], fact: str) -> Problem:
        """Return something that is wrong with the value at a path, with its place where that is known."""
        at = yaml_tree.place(self.tree, path) if self.tree else None
        return Problem(at, parsing.dotted(path), fact)


class JobFile(contract.Spec):
    """One job, as its owner wants it."""

    name: JobName = Field(description="Name of the job; the file's own name where this is left out.")
    workload: Annotated[
        contract.Plan, BeforeValidator(forms.known_kind), AfterValidator(forms.checked_paths)
    ] = Field(description="What is trained.")
    profile: Annotated[ProfileChoice, BeforeValidator(forms.profile)] = Field(
        ProfileChoice(), description="How it is run fast: the name of a profile, or changes to one."
    )
    accelerator: Literal["auto", "cuda", "rocm", "cpu"] = Field(
        "auto", description="auto: whatever GPUs the machine has if some are asked for, else cpu."
    )
    resources: Resources = Field(Resources(), description="What one attempt may use.")
    image: Annotated[ImageChoice, BeforeValidator(forms.image)] = Field(
        ImageChoice(), description="auto, or the name of an image that the operator offers."
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
    checkpoint: Checkpoints = Field(Checkpoints(), description="When to save, and how many to keep.")
    policy: PolicyChoice = Field(
        "default", description="What follows when an attempt ends or hangs: a policy's name, or its file."
    )
    retry: Retry = Field(Retry(), description="Ceilings below those of the policy, and waits.")
    allow: tuple[Literal["changed_training"], ...] = Field(
        (), description="What a change of this file may do to a training that runs: changed_training."
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Seed of everything that is random.")
    priority: int = Field(50, ge=0, le=100, description="Higher goes first in the queue.")
    queue: Queueing = Field(Queueing(), description="When it may start, and before whom.")
    devices: DeviceChoice = Field(DeviceChoice(), description="On which GPUs it can run.")
    matrix: Matrix | None = Field(None, description="Many jobs from this file, one for each combination.")
    schedule: Schedule | None = Field(None, description="When it is submitted again, on its own.")
    labels: dict[LabelKey, LabelValue] = Field(
        {}, max_length=32, description="Your own words about the job, to find it by."
    )
    stop_grace: Grace = Field(
        timedelta(seconds=30), description="Time to save and leave when asked to stop; then it is killed."
    )

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        return self._origin

    def read_from(self, origin: Origin) -> "JobFile":
        """Return this job with the knowledge of where each field stands."""
        self._origin = origin
        return self


# --- In -----------------------------------------------------------------------------------------------


Besides: TypeAlias = Callable[[JobFile], Iterable[Problem]] | None  # what looks at paths and policies


@dataclass(frozen=True, slots=True)
class Written:
    """What one file asks for: a job, or one for each combination of its matrix."""

    jobs: tuple[JobFile, ...]
    matrix: Matrix | None = None
    values: tuple[spec_matrix.Combination, ...] = ({},)  # of the matrix, job by job


def load(text: bytes, path: Path, profiles: Path | None = None) -> JobFile:
    """Return the job that a YAML text describes, of a matrix the first one with the matrix in it.

    ``path`` serves for messages and for the default name.

    Raises:
        SpecError: with every problem at once.
    """
    written = load_all(text, path, profiles)
    return written.jobs[0].model_copy(update={"matrix": written.matrix})


def load_all(
    text: bytes, path: Path, profiles: Path | None = None, name: str | None = None, besides: Besides = None
) -> Written:
    """Return all the jobs that a YAML text describes; ``name`` is another one than the file gives them.

    ``besides`` tells what is wrong with what a job names, where all its fields can be understood.

    Raises:
        SpecError: with every problem at once, each at its place; those of a matrix's value in the matrix.
    """
    profiles = profiles or contract.profiles_dir()
    tree, problems = parsing.mapping(text, path)
    matrix = spec_matrix.matrix_of(tree)
    problems += (*forms.long_arguments(tree), *(() if name else forms.numbered(tree)))
    problems += spec_matrix.problems(tree, matrix) if matrix else ()
    variants: tuple[spec_matrix.Variant, ...] = (spec_matrix.Variant(tree, {}),)
    if matrix:
        variants = spec_matrix.variants(tree, matrix, name or _name(tree, path), {p.field for p in problems})
    jobs = []
    for variant in variants:
        job, found = _read(variant, path, profiles)
        problems += found
        problems += besides(job) if job and besides else ()
        jobs += [job] if job else []
    if problems:
        raise SpecError(path, problems)
    return Written(tuple(jobs), matrix, tuple(variant.values for variant in variants))


def _name(tree: yaml_tree.Mapping, path: Path) -> str:
    written = tree.entries.get("name")
    return written.text if isinstance(written, yaml_tree.Scalar) else rules.name_from(path.stem)


def _read(variant: spec_matrix.Variant, path: Path, profiles: Path) -> tuple[JobFile | None, list[Problem]]:
    """Return the job that a tree describes, and every problem with it."""
    tree = variant.tree
    unknown = spec_profiles.unknown_profile(tree, profiles)
    written = {"name": rules.name_from(path.stem), **_as_written(tree)}
    if variant.values:  # a job of a matrix has none
        del written["matrix"]
    job, problems = parsing.validated(JobFile, written, tree)
    if job is not None:
        problems += _conflicts(job.read_from(Origin(path, tree)))
        problems += () if unknown else _clashes_everywhere(job, profiles)
    return job, [*unknown, *problems]


def read(path: Path, profiles: Path | None = None) -> JobFile:
    """Return the job in a file.

    Raises:
        SpecError: it cannot be read, is too large or is not right.
    """
    return load(read_source(path), path, profiles)


def dump(job: JobFile) -> str:
    """Return a job as JSON in which every default is written out; ``undump`` reads it back."""
    return job.model_dump_json()


def undump(text: str) -> JobFile:
    return JobFile.model_validate_json(text)


def _as_written(tree: yaml_tree.Mapping) -> dict[str, yaml_tree.Plain]:
    """Return the file as values, numbers in texts as they were typed: ``1.10`` stays ``1.10``."""
    values = {key: yaml_tree.plain(node) for key, node in tree.entries.items()}
    for section in ("environment", "labels"):
        node = tree.entries.get(section)
        if isinstance(node, yaml_tree.Mapping):
            values[section] = {key: _typed(value) for key, value in node.entries.items()}
    return values


def _typed(node: yaml_tree.Node) -> yaml_tree.Plain:
    is_number = isinstance(node, yaml_tree.Scalar) and type(node.value) in (int, float)
    return node.text if isinstance(node, yaml_tree.Scalar) and is_number else yaml_tree.plain(node)


# --- Fields that contradict each other ----------------------------------------------------------------


def _conflicts(job: JobFile) -> Iterator[Problem]:
    say = job.origin.problem
    resources, retry = job.resources, job.retry
    if job.accelerator == "cpu" and resources.gpus:
        yield say(("resources", "gpus"), 'must be 0 where the accelerator is "cpu"')
    if job.accelerator in ("cuda", "rocm") and not resources.gpus:
        yield say(
            ("accelerator",), f"{quoted(job.accelerator)} needs a GPU; set resources.gpus to at least 1"
        )
    if resources.shm > resources.memory:
        size, limit = format_size(resources.shm), format_size(resources.memory)
        yield say(
            ("resources", "shm"), f"{size} does not fit into the memory limit of {limit}, of which it is part"
        )
    if retry.backoff is not None and retry.backoff_max is not None and retry.backoff > retry.backoff_max:
        longest = format_duration(retry.backoff_max)
        yield say(
            ("retry", "backoff"), f"{format_duration(retry.backoff)} is longer than backoff_max, {longest}"
        )
    if job.checkpoint.every is None and job.checkpoint.every_steps is None:
        yield say(("checkpoint",), "would never save: give every, every_steps or both")
    for path, fact in contradictions(
        gpus=resources.gpus,
        queueing=job.queue,
        devices=job.devices,
        matrix=job.matrix,
        schedule=job.schedule,
    ):
        yield say(path, fact)
    yield from _overlaps(job)


def _overlaps(job: JobFile) -> Iterator[Problem]:
    targets = [(i, PurePosixPath(mount.target)) for i, mount in enumerate(job.mounts)]
    for (_, first), (i, second) in combinations(targets, 2):
        if first.is_relative_to(second) or second.is_relative_to(first):
            fact = f"{quoted(str(second))} and {quoted(str(first))} overlap; choose separate places"
            yield job.origin.problem(("mounts", i, "target"), fact)


def _clashes_everywhere(job: JobFile, profiles: Path) -> Iterator[Problem]:
    """Yield what is wrong with the profile on every accelerator that the job could still get."""
    found = [list(_clashes(job, each, profiles)) for each in _accelerators(job)]
    sides = [{(clash.switch, clash.other) for clash in each} for each in found]
    for clash in found[0]:
        if all((clash.switch, clash.other) in each for each in sides):
            yield job.origin.problem(("profile", clash.switch), clash.fact)


def _accelerators(job: JobFile) -> tuple[Accelerator, ...]:
    if job.accelerator != "auto":
        return (job.accelerator,)
    return ("cuda", "rocm") if job.resources.gpus else ("cpu",)


def clashes(job: JobFile, accelerator: Accelerator, profiles: Path | None = None) -> Iterator[Problem]:
    """Yield what is wrong with the job's profile on an accelerator: contradictory and impossible settings.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    for clash in _clashes(job, accelerator, profiles or contract.profiles_dir()):
        yield job.origin.problem(("profile", clash.switch), clash.fact)


def _clashes(job: JobFile, accelerator: Accelerator, profiles: Path) -> Iterator[switches.Clash]:
    tree = job.origin.tree
    said = spec_profiles.chosen(job.profile, tree, profiles, accelerator)
    decided_by = ("accelerator",) if job.accelerator != "auto" else ("resources", "gpus")
    node = yaml_tree.at_path(tree, decided_by) if tree else None
    return switches.clashes(said, accelerator, f" (line {node.at.line})" if node else "")


# --- Out: what the rest of the house wants ------------------------------------------------------------


def resolve_profile(job: JobFile, accelerator: Accelerator, profiles: Path | None = None) -> contract.Profile:
    """Return the settings that the job's profile comes to on an accelerator.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    return spec_profiles.resolve(job.profile, profiles or contract.profiles_dir(), accelerator)


FIRST_SAVE: Final = timedelta(minutes=2)
"""Until a save has been measured, ``checkpoint.every: auto`` comes to this."""


def checkpoint_plan(job: JobFile, mean_between_s: float) -> contract.CheckpointPlan:
    """Return when to save; ``mean_between_s`` is how long this host leaves attempts alone, in seconds."""
    automatic = job.checkpoint.every == "auto"
    every = FIRST_SAVE if job.checkpoint.every == "auto" else job.checkpoint.every
    return contract.CheckpointPlan(
        every_steps=job.checkpoint.every_steps,
        every_s=every.total_seconds() if every else None,
        mean_between_s=mean_between_s if automatic else None,
        on_stop=job.checkpoint.on_stop,
        keep=job.checkpoint.keep,
        milestone_every=job.checkpoint.milestone_every,
    )
