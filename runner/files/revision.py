"""A revision: a job file made independent of the place and time of its submission.

Paths are absolute, ``auto`` is decided, and the submitter is part of it.  The store keeps it as JSON, and
every attempt is derived from it alone.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path, PurePath, PurePosixPath
from typing import Final, Literal, TypeVar
from weakref import WeakKeyDictionary

from pydantic import Field

from jobs.contract import AttemptSpec, Parallel, Plan, Profile, Program, ProgramCode, excess_workers
from runner.base.text_cache import cached_by_text
from runner.base.textfile import FileError, quoted
from runner.core.job.attempt import Attempt, StartFrom
from runner.core.job.revision_text import RevisionText, SharedText
from runner.core.policy.adjustments import Overrides
from runner.core.policy.economics import PRIOR_S
from runner.core.policy.model import Policy
from runner.core.ports.code import CodeSnapshot, GitState, LeftOut, WorkingDirectory
from runner.core.ports.network import NetworkAccess
from runner.core.scheduler.snapshot import DependencyCondition, DeviceKind, ResourceRequest
from runner.files import left_out, shell
from runner.files.datasets import content_digest, dataset_dir, is_prepared
from runner.files.field_checks import CODE_TARGET, INPUT_TARGET, SECRETS_TARGET, WORKLOAD_TARGET
from runner.files.job import paths
from runner.files.job.model import JobFile, checkpoint_plan, resolve_profile
from runner.files.own_project import OwnProject
from runner.files.package_lock import locked_torch
from runner.files.policy import job_policy as of_job
from runner.files.profiles.conflicts import OWN_PROGRAM, find_oversized, find_unused_switches
from runner.files.profiles.environment import build_environment
from runner.files.profiles.load import AUTO, ProfileChoice
from runner.files.types import ClosedModel

T = TypeVar("T")

VENDORS = {"cuda": "nvidia", "rocm": "amd"}

_DATA: Final = ("workload", "data")


class DataReference(ClosedModel):
    """Place on the host of the data of a workload."""

    path: str
    is_file: bool = False
    prepared: bool = False
    """A prepared data set in the state directory of the daemon; no user can have swapped it."""
    digest: str | None = None
    """Of the content of a prepared data set; other data may be as large as a disk, and are not read."""


class InitialWeights(ClosedModel):
    """The weights that a training begins with: those of a job, by id, or a directory of the host."""

    job: str | None = None
    kind: Literal["best", "final"] = "final"
    path: str | None = None

    @property
    def text(self) -> str:
        """Path for the spec of an attempt: the same wherever the attempt runs."""
        return f"job/{self.job}/{self.kind}" if self.path is None else self.path


@dataclass(frozen=True, slots=True)
class ResolvedMount:
    """A host path that is mounted into a job."""

    source: Path
    target: PurePosixPath
    read_only: bool = True
    trusted: bool = False  # belongs to the daemon; other paths are opened with the rights of the owner


def find_data(job: JobFile, base: Path, state_dir: Path, check: paths.PathCheck) -> DataReference | None:
    """Return the place of a job's data, None when they come with the image or are made up.

    ``check`` returns why a path cannot be used, or None.

    Raises:
        FileError: they are a set that has not been prepared.
    """
    name = paths.prepared_dataset(job.workload)
    if name is not None and not is_prepared(state_dir, name):
        fact = f"the data set {quoted(name)} is not prepared; run: runner data prepare {name}"
        raise FileError(job.origin.path, [job.origin.problem(_DATA, fact)])
    if name is not None:
        place = str(dataset_dir(state_dir, name))
        return DataReference(path=place, prepared=True, digest=content_digest(state_dir, name))
    written = paths.data_path(job.workload)
    if written is None:
        return None
    path = base / written
    return DataReference(path=str(path), is_file=check(path, "file") is None)


def find_inputs(job: JobFile, base: Path, check: paths.PathCheck) -> dict[str, DataReference]:
    """Return the places of the files that a workload names besides its data, by field."""
    found = {name: base / written for name, written in paths.input_paths(job.workload).items()}
    return {
        name: DataReference(path=str(path), is_file=check(path, "file") is None)
        for name, path in found.items()
    }


class ArrayMembership(ClosedModel):
    """The place of a job in its matrix."""

    id: str
    """The id of its first job: the others follow it."""
    values: dict[str, bool | int | float | str]
    at_a_time: int | None = None
    max_failures: int | None = Field(default=None, exclude_if=lambda value: value is None)
    number: int = 1
    """Number of this one among its jobs, from 1."""
    count: int = 1


class CodeReference(ClosedModel):
    """The snapshot of a program's code, and where in git its directory was."""

    snapshot: str
    files: int
    bytes: int
    commit: str | None = None
    branch: str | None = None
    remote: str | None = None
    """The name of the remote that the branch follows."""
    dirty: bool | None = None
    """True if something differed from the commit; None: there is no commit, or git did not say."""
    left_out: tuple[LeftOut, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Files of the directory that are not in the snapshot, as far as it is worth telling."""


def code_reference(taken: CodeSnapshot) -> CodeReference:
    """Return the reference to a snapshot in a revision."""
    git = taken.git or GitState()
    return CodeReference(
        snapshot=taken.id,
        files=taken.files,
        bytes=taken.bytes,
        commit=git.commit,
        branch=git.branch,
        remote=git.remote,
        dirty=git.dirty,
        left_out=taken.left_out,
    )


def path_below(path: Path, directory: Path) -> str | None:
    """Return a path as it is below a directory, without looking at either; None: it is not."""
    whole, above = Path(os.path.normpath(path)), Path(os.path.normpath(directory))
    return whole.relative_to(above).as_posix() if whole.is_relative_to(above) else None


class Revision(ClosedModel):
    """One version of a job, ready to run at any time."""

    job: JobFile
    path: str
    accelerator: Literal["cuda", "rocm", "cpu"]
    uid: int
    gid: int
    groups: tuple[int, ...]
    """As they were at submission, for the record; a launch looks the submitter up anew."""
    user: str
    data: DataReference | None = None
    inputs: dict[str, DataReference] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """The paths that the workload names besides its data, by field."""
    policy: str | None = None
    """The text of the policy, with all that it extends, as it was when the job was submitted."""
    team: str = ""
    """The submitter's primary group by name: whose share and quota it uses up; empty: nobody's."""
    after: tuple[tuple[str, DependencyCondition], ...] = ()
    """Ids of the jobs that must have ended first, and how."""
    one_failed: tuple[tuple[str, ...], ...] = Field(default=(), exclude_if=lambda value: not value)
    """Ids of the jobs of matrices of which at least one must have failed; ``after`` has them, too."""
    sweep: ArrayMembership | None = None
    """The matrix that it is one job of."""
    network: NetworkAccess | None = None
    """Reach of the job, as the settings allowed at submission; None in revisions that are older than this
    field: ``outbound`` exactly if the operator names an engine network."""
    code: CodeReference | None = None
    """The snapshot that every attempt runs; None: the directory as it is then, if there is one."""
    image: str | None = None
    """The image that it names, by the digest or the id that it had then; None: it names none, or the engine
    did not answer."""
    lock: str | None = None
    """The packages of the job, in the format of PEP 751, as they were resolved on submission."""
    lock_request: str | None = None
    """The digest of what was resolved: a change that asks for the same keeps the lock."""
    own: tuple[OwnProject, ...] = Field(default=(), exclude_if=lambda value: not value)
    """The projects in the code whose sources are on the path of the program; their directories below it."""
    init: InitialWeights | None = None
    """The weights that it begins with; None: random ones."""
    settings: Profile | None = None
    """Result of the profile at that time; None in revisions that are older than this field."""

    @property
    def base(self) -> Path:
        return Path(self.path).parent

    def needs(self, turned: Overrides | None = None) -> ResourceRequest:
        """Return the resource request of an attempt on all its nodes, with the properties of its devices."""
        resources, devices, nodes = self.job.resources, self.job.devices, self.nodes(turned)
        return ResourceRequest(
            cpus=resources.cpus * nodes,
            memory_bytes=self.memory(turned or Overrides()) * nodes,
            gpus=resources.gpus * nodes,
            vendor=VENDORS.get(self.accelerator),
            models=devices.model,
            device_bytes=devices.memory or 0,
            capability=devices.least_capability,
            linked=devices.linked,
            kind=devices.lent_as,
        )

    def policy_in_force(self) -> Policy:
        """Return the policy of the job, under the ceilings and with the backoff of its job file."""
        return of_job.apply_job_limits(self.job, of_job.deserialize_policy(self.policy))

    def profile(self, turned: Overrides | None = None) -> Profile:
        """Return the resolved profile of the job with the overrides of policy adjustments."""
        turned = turned or Overrides()
        settings, changes = self._settings(turned), turned.switches
        if not changes:
            return settings
        name = "+".join([settings.name, *(each for each in changes if each not in settings.name)])
        return Profile.model_validate({**settings.model_dump(), **changes, "name": name[:200]})

    def _settings(self, turned: Overrides) -> Profile:
        """Return the profile as it was resolved on submission: an upgrade of the runner changes no job."""
        job = self.job
        if turned.profile is None:
            return self.settings or resolve_profile(job, self.accelerator)
        choice = ProfileChoice.model_validate({**job.profile.model_dump(), "extends": turned.profile})
        return resolve_profile(job.model_copy(update={"profile": choice}), self.accelerator)

    def profile_name(self, turned: Overrides) -> str:
        """Return the name of the profile that the job starts from."""
        written = turned.profile or self.job.profile.extends
        return self.accelerator if written == AUTO else written

    @property
    def warnings(self) -> tuple[str, ...]:
        """The settings of the job file that have no effect or make the job slow, one line each."""
        idle = find_unused_switches(self.profile(), self.job.workload.kind, self.accelerator)
        asked = self.job.profile.changes
        vain = [f"profile.{name}: has no effect: {why}" for name, why in idle.items() if name in asked]
        vain += of_job.find_ineffective_limits(self.job, of_job.deserialize_policy(self.policy))
        plan = self.job.workload
        if isinstance(plan, Program):
            if (torch := None if self.lock is None else locked_torch(self.lock)) is not None:
                fact = f"another torch than the image's is needed, so the job gets torch {torch}"
                vain.append(f"image.requirements: {fact}, and no package of the image")
            lacking = () if self.code is None else self.code.left_out
            told = left_out.describe(lacking, self.code_directory(), tuple(self.places_in_job()))
            return (*vain, *self._vain_profile(idle), *shell.find_shell_warnings(plan.command), *told)
        excess = excess_workers(self.profile(), self.job.resources.cpus)
        vain += [excess] if excess else []
        return (*vain, *find_oversized(self.profile(), plan, asked))

    def _vain_profile(self, idle: Collection[str]) -> Iterator[str]:
        """Yield a line if the named profile of a program has switches that only the program can apply."""
        named, found, plain = self.job.profile.extends, self.profile(), Profile()
        there = [
            name
            for name in idle
            if name not in self.job.profile.changes and getattr(found, name) != getattr(plain, name)
        ]
        if named != AUTO and there:
            yield f"profile: {named}: {', '.join(there)}: has no effect: {OWN_PROGRAM}"

    def environment(
        self, root: PurePath, scratch: PurePath, turned: Overrides | None = None
    ) -> Mapping[str, str]:
        """Return the environment of the job: its own variables, those of its profile, and of its switches.

        ``root`` is the run directory and ``scratch`` a directory of the attempt, as the attempt sees them.
        """
        cpus, shares = self.job.resources.cpus, self.parallel(turned).cpu_shares
        profile, cache = self.profile(turned), root / "cache"
        ours = build_environment(profile, self.accelerator, cpus, cache, scratch, cpu_shares=shares)
        return {**profile.environment, **self.job.environment, **ours}

    def facts(self, secrets_dir: PurePath) -> Mapping[str, str]:
        """Return variables that tell of the code and the secrets of a job, and the umask of its files."""
        code, job = self.code, self.job
        writes = any(not mount.read_only for mount in job.mounts)  # where others may read
        found = {
            "RUNNER_CODE_DIGEST": code and code.snapshot,
            "RUNNER_GIT_COMMIT": code and code.commit and code.commit + ("-dirty" if code.dirty else ""),
            "RUNNER_SECRETS_DIR": str(secrets_dir) if job.secrets else None,
            "RUNNER_SECRET_ENV": " ".join(job.secret_env),
            "RUNNER_UMASK": job.umask or ("022" if writes else None),
        }
        return {name: value for name, value in found.items() if value}

    def spec(self, job_id: str, attempt: Attempt, *, in_container: bool) -> AttemptSpec:
        """Return the spec of one attempt, without the mean time between interruptions of the host."""
        return AttemptSpec(
            job_id=job_id,
            attempt=attempt.number,
            lineage=attempt.lineage,
            revision=attempt.revision,
            seed=self.job.seed,
            workload=self._workload(in_container=in_container),
            profile=self.profile(attempt.turned),
            checkpoint=checkpoint_plan(self.job, PRIOR_S),
            resume_step=attempt.start.step if attempt.start.source is StartFrom.STEP else None,
            accelerator=self.accelerator,
            cpus=self.job.resources.cpus,
            parallel=self.parallel(attempt.turned),
            device_bytes=self._shared_memory(),
            track=self.job.track.model_copy(update={"name": self.job.name})
            if self.job.track.trackers
            else None,
        )

    def parallel(self, turned: Overrides | None = None) -> Parallel:
        """Return the share of each process in the training, or the number that a program starts."""
        plan, nodes = self.job.workload, self.nodes(turned)
        if isinstance(plan, Program):
            return Parallel(processes=plan.processes * nodes, nodes=nodes)
        return self.job.parallel.resolve(self.job.resources.gpus, nodes)

    def nodes(self, turned: Overrides | None = None) -> int:
        """Return on how many nodes an attempt runs together; the policy may go on with fewer."""
        asked = self.job.resources.nodes
        return asked if turned is None or turned.nodes is None else min(turned.nodes, asked)

    def memory(self, turned: Overrides) -> int:
        """Return the memory of an attempt on each of its nodes; the policy may go on with more."""
        return max(turned.memory_bytes or 0, self.job.resources.memory)

    def _shared_memory(self) -> int | None:
        """Return the memory that the job takes of each shared device; None if its devices are not shared."""
        devices = self.job.devices
        return devices.memory if devices.lent_as is DeviceKind.SHARED else None

    def places_in_job(self) -> Iterator[tuple[PurePath, PurePosixPath]]:
        """Yield the paths of the host that the job has, each with its place in it."""
        yield from ((mount.source, mount.target) for mount in self.resolved_mounts())
        for name, source in self.job.secrets.items():
            yield self.base / source, SECRETS_TARGET / name

    def resolved_mounts(self) -> Iterator[ResolvedMount]:
        """Yield the mounts of the job, without its secrets."""
        for mount in self.job.mounts:
            yield ResolvedMount(self.base / mount.source, PurePosixPath(mount.target), mount.read_only)
        if self.data is not None:
            yield ResolvedMount(
                Path(self.data.path), self._data_target(self.data), trusted=self.data.prepared
            )
        for name, known in self.inputs.items():
            yield ResolvedMount(Path(known.path), _input_target(name, known))
        if self.code is None and (code := self.code_directory()) is not None:
            yield ResolvedMount(code, CODE_TARGET)

    def code_directory(self) -> Path | None:
        """Return the directory that the code was or is in, None if the job has no code."""
        code = self.program_code
        return None if code is None else self.base / code.path

    @property
    def program_code(self) -> ProgramCode | None:
        """Code of a program, as the job file names it."""
        plan = self.job.workload
        return plan.code if isinstance(plan, Program) else None

    @property
    def keeps_files(self) -> bool:
        """True if a further attempt goes on in files that hold an unknown part of the work."""
        checkpoint = self.job.checkpoint
        return self.program_code is not None and checkpoint.keep_files and checkpoint.files is None

    @property
    def dockerfile(self) -> str | None:
        """The path of the job's Dockerfile below its code; None: its image is made without one."""
        code = self.code_directory()
        if self.job.image.dockerfile is None or code is None:
            return None
        return path_below(self.base / self.job.image.dockerfile, code)

    def working_directory(self) -> WorkingDirectory | None:
        """Return the source of an attempt's working directory; None if it is not made."""
        code = self.program_code
        if self.code is None or code is None:
            return None
        return WorkingDirectory(self.code.snapshot, read_only=code.mode == "read_only")

    @staticmethod
    def _data_target(data: DataReference) -> PurePosixPath:
        """Return the mount target of the data; a file keeps its name, whose suffix tells its format."""
        return WORKLOAD_TARGET / Path(data.path).name if data.is_file else WORKLOAD_TARGET

    def _workload(self, *, in_container: bool) -> Plan:
        """Return the plan with paths as the attempt sees them."""
        changes: dict[str, object] = {}
        if self.data is not None:
            changes["data"] = str(self._data_target(self.data)) if in_container else self.data.path
        if self.init is not None:
            changes["init_from"] = self.init.text
        for name, known in self.inputs.items():
            changes[name] = str(_input_target(name, known)) if in_container else known.path
        if (code := self.program_code) is not None:
            place = str(CODE_TARGET) if in_container else str(self.base / code.path)
            changes["code"] = code.model_copy(update={"path": place})
        plan = self.job.workload
        if isinstance(plan, Program) and not in_container:
            changes["command"] = self.on_host(plan.command)
        return plan.model_copy(update=changes)

    def on_host(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return words of a command for a plain process: a target of a mount becomes its path on the host."""
        return tuple(map(self._on_host, words))

    def _on_host(self, word: str) -> str:
        for mount in self.job.mounts:
            if found := re.fullmatch(rf"([^/]*=)?{re.escape(str(mount.target))}(/.*)?", word, re.DOTALL):
                return f"{found[1] or ''}{self.base / mount.source}{found[2] or ''}"
        return word


def _input_target(name: str, known: DataReference) -> PurePosixPath:
    """Return the mount target of a path of the workload; a file keeps its name."""
    return INPUT_TARGET / name / Path(known.path).name if known.is_file else INPUT_TARGET / name


@cached_by_text(512, 8 * 1024**2)
def parse_revision(text: str) -> Revision:
    """Return the revision that the store keeps as JSON; the same few are asked for again and again."""
    return Revision.model_validate_json(text)


def cached_by_revision(derive: Callable[[Revision], T]) -> Callable[[RevisionText], T]:
    """Keep what is derived from revisions, and is small, as long as jobs refer to their texts."""
    known: WeakKeyDictionary[SharedText, dict[str, T]] = WeakKeyDictionary()

    @wraps(derive)
    def cached(text: RevisionText) -> T:
        by_edits = known.setdefault(text.shared, {})
        if text.edits not in by_edits:
            by_edits[text.edits] = derive(parse_revision(text.whole))
        return by_edits[text.edits]

    return cached
