"""Resolving a submission into revisions: one, or one for each job of its matrix.

Every problem is found here, before anything is accepted.  Paths and policies are checked with the rights of
the submitter, devices and quotas against the present snapshot of the queue.
"""

import grp
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from jobs.contract import Program
from runner.base.errors import Refused, Unavailable
from runner.base.textfile import MAX_PROBLEMS, FileError, Problem, one_line, quoted
from runner.base.waiting import check_wanted
from runner.core.ports.code import CodeEntry, CodeRefused, CodeSnapshots
from runner.core.ports.devices import Device
from runner.core.ports.images import BuildFailed, ImageRefused, Images, PullPolicy
from runner.core.ports.network import NOT_SEPARATED, NetworkAccess
from runner.core.ports.users import Owner, User
from runner.files.job.conflicts import find_profile_conflicts
from runner.files.job.image import is_reference
from runner.files.job.model import JobFile, resolve_profile
from runner.files.job.paths import PathCheck
from runner.files.job.track import find_tracking_problems
from runner.files.left_out import find_missed
from runner.files.package_lock import locked_versions
from runner.files.revision import (
    ArrayMembership,
    CodeReference,
    DataReference,
    Revision,
    code_reference,
    find_data,
    find_inputs,
)
from runner.files.scripts import SCRIPTS, describe_absent, find_script, find_unstartable
from runner.files.settings.model import Settings
from runner.files.settings.network import OutboundUsers
from runner.files.submission import Submission
from runner.files.validation import did_you_mean
from runner.files.written import WrittenJobs
from runner.services.context import ServiceContext
from runner.services.submission import dependencies as predecessors
from runner.services.submission.admission import Admission, admission, refusal
from runner.services.submission.initial_weights import resolve_initial_weights
from runner.services.submission.packages import KnownRevisions, PackageResolver, none_known
from runner.services.submission.slurm import find_slurm_problems

COMMAND_FIELD: Final = ("workload", "command")
CODE_FIELD: Final = ("workload", "code")


def resolve(
    context: ServiceContext,
    who: User,
    owner: Owner,
    submission: Submission,
    known: KnownRevisions = none_known,
) -> tuple[Revision, ...]:
    """Return the revisions of a submission; the id of a matrix is not known yet.

    Raises:
        FileError: the job file is wrong; all its errors at once.
        UsageError: an option of the submission is wrong.
        Refused: a quota of the owner is used up.
    """
    written = context.users.read_jobs(who, submission)
    find = partial(context.users.find_place, who, submission.text)
    jobs = tuple(written.jobs(Path(submission.shown or submission.place), find))
    snapshot = context.daemon.exclusive.read(context.daemon.admission_snapshot)
    gate = admission(submission, context.daemon.context.capacity, snapshot, owner.name, len(jobs))
    resolver = _JobResolver(context, who, owner, submission, gate, written, known)
    found: list[Revision] = []
    problems: list[Problem] = []
    details: dict[str, None] = {}
    for job, sweep in zip(jobs, _sweeps(written), strict=True):
        check_wanted()
        try:
            found.append(resolver.revision(job, sweep))
        except FileError as error:
            if error.path != job.origin.path:  # of a file that the job file names
                raise
            problems += error.problems
            details[error.details] = None
        if len(problems) > MAX_PROBLEMS:
            break
    if problems:
        wrong = FileError(jobs[0].origin.path, problems)
        wrong.details = "\n".join(filter(None, details))
        raise wrong
    if resolver.refused:
        raise Refused(refusal(submission, resolver.refused))
    return tuple(found)


def _sweeps(written: WrittenJobs) -> Iterator[ArrayMembership | None]:
    """Yield the matrix membership of each job; the id of the matrix follows with the ids of the jobs."""
    for number, values in enumerate(written.values, start=1):
        yield (
            None
            if not written.is_matrix
            else ArrayMembership(
                id="",
                values=values,
                at_a_time=written.at_a_time,
                max_failures=written.max_failures,
                number=number,
                count=len(written.values),
            )
        )


@dataclass(slots=True)
class _JobResolver:
    """Resolves the jobs of one submission; what they share is checked once."""

    context: ServiceContext
    who: User
    owner: Owner
    submission: Submission
    gate: Admission
    written: WrittenJobs
    known: KnownRevisions
    refused: dict[str, None] = field(default_factory=dict)
    _team: str = field(init=False)
    _base: Path = field(init=False)  # of relative paths
    _check: PathCheck = field(init=False)
    _code_taken: dict[Path, CodeReference | None] = field(default_factory=dict)
    _entries: Callable[[str], Mapping[str, CodeEntry] | None] = field(init=False)
    _images: dict[tuple[str, PullPolicy], tuple[str | None, str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._team = team(self.who.gid)
        self._base = self.submission.place.parent
        self._check = cache(partial(self.context.users.path_problem, self.who))
        if self.context.code is not None:
            self._entries = cache(partial(self.context.code.entries, self.who.uid))

    def _with_time_limit(self, job: JobFile) -> JobFile:
        """Return a job with the time limit of its class if it names none."""
        classes = self.context.daemon.context.site.rules.classes
        named = next((each for each in classes if each.name == job.queue.priority_class), None)
        if job.resources.time_limit is not None or named is None or named.time_limit_s is None:
            return job
        limited = job.resources.model_copy(update={"time_limit": timedelta(seconds=named.time_limit_s)})
        return job.model_copy(update={"resources": limited})

    def _devices(self) -> Sequence[Device]:
        """Return the devices that the accelerator of a job is chosen by; a batch system's are NVIDIA's."""
        capacity = self.context.daemon.context.capacity
        return (Device("", "nvidia", ""),) if capacity.chooses_devices else capacity.devices

    def revision(self, job: JobFile, sweep: ArrayMembership | None) -> Revision:
        """Return the revision of one job.

        Raises:
            FileError: with all its problems.
        """
        job = self._with_time_limit(job)
        accelerator = accelerator_of(job, self._devices())
        data, unprepared = self._data(job)
        made = Revision(
            job=job,
            path=self.submission.path,
            accelerator=accelerator,
            uid=self.who.uid,
            gid=self.who.gid,
            groups=self.who.groups,
            user=self.who.name,
            data=data,
            inputs=find_inputs(job, self._base, self._check),
            policy=self.written.policy(job),
            team=self._team,
            sweep=sweep,
            network=network_access(self.context.settings, self.who, job),
        )
        found = self.gate.found(made)
        self.refused.update(dict.fromkeys(found.refused))
        settings = self.context.settings
        for fact in (
            class_refusal(settings, self.who, job.queue.priority_class),
            network_refusal(settings, self.who, job),
            system_refusal(settings, job),
            dockerfile_refusal(settings, job),
        ):
            if fact is not None:
                self.refused[fact] = None
        after, one_failed, missing = predecessors.resolved(
            self.submission, job, self.owner.name, self.context.store
        )
        init, unusable = resolve_initial_weights(self.submission, job, after, self.owner, self.context.store)
        image, refused = self._image(job)
        problems = [*unprepared, *found.problems, *missing, *unusable, *refused]
        problems += (
            *self._image_problems(job),
            *self._torch_problems(job),
            *self._network_problems(job),
            *self._tracking_problems(made),
            *self._code_problems(made),
            *self._dockerfile_problems(made),
            *self._conflicts(job, accelerator),
            *self._slurm_problems(job),
        )
        if problems:
            raise FileError(job.origin.path, problems)
        made = made.model_copy(update={"code": self._code(made)})
        self._check_script(made)
        lock = self._lock(made, image)  # late: it may take long, and is begun for a valid job only
        profile = resolve_profile(job, accelerator)
        resolved = {
            "after": after,
            "one_failed": one_failed,
            "init": init,
            "settings": profile,
            "image": image,
            **lock,
        }
        whole = made.model_copy(update=resolved)
        self._check_dockerfile_is_kept(whole)
        return whole

    def _check_dockerfile_is_kept(self, revision: Revision) -> None:
        """Check that the snapshot of a job's code has its Dockerfile.

        Raises:
            FileError: it was left out.
        """
        path, kept, origin = revision.dockerfile, revision.code, revision.job.origin
        if path is not None and kept is not None and path not in (self._entries(kept.snapshot) or {}):
            fact = f"{one_line(path)} is left out of the code that is kept, by .gitignore or .runnerignore"
            raise FileError(origin.path, [origin.problem(("image", "dockerfile"), fact)])

    def _code(self, made: Revision) -> CodeReference | None:
        """Return the snapshot of a job's code, which is taken once for all jobs of the submission.

        Raises:
            FileError: the directory cannot be kept, with all its problems.
            Refused: the submitter's snapshots are too large together.
        """
        directory = made.code_directory()
        if directory is None or self.refused or self.submission.file_only:
            return None
        if directory not in self._code_taken:
            try:
                self._code_taken[directory] = keep_code(self.context.code, self.who, made)
            except CodeRefused as error:
                origin = made.job.origin
                problems = [origin.problem(CODE_FIELD, fact.removeprefix(".: ")) for fact in error.facts]
                raise FileError(origin.path, problems) from error
        return self._code_taken[directory]

    def _check_script(self, made: Revision) -> None:
        """Refuse a command whose script does not start, as is told otherwise as soon as the job runs.

        Raises:
            FileError: at the word that names it.
        """
        plan, code, job = made.job.workload, made.code, made.job
        if code is None or not isinstance(plan, Program):
            return
        own_image = job.image.offered != "auto" or job.image.dockerfile is not None
        at = find_script(plan.command, on_path=own_image)
        is_named = at is not None or any(word.endswith(SCRIPTS) for word in plan.command)
        entries = self._entries(code.snapshot) if is_named else None
        if entries is None:
            return
        files = {path: each.executable for path, each in entries.items() if each.kind == "file"}
        if at is not None and not has_path(entries, plan.command[at]):
            fact = self._explain_absent(made, code, os.path.normpath(plan.command[at]), files)
        elif not own_image and (found := find_unstartable(plan.command, files)) is not None:
            at, fact = found
        else:
            return
        raise FileError(job.origin.path, [job.origin.problem((*COMMAND_FIELD, at), fact)])

    def _explain_absent(
        self, made: Revision, code: CodeReference, script: str, files: Collection[str]
    ) -> str:
        """Return the reason why a script is not in the code, or one that may be meant."""
        directory = made.code_directory()
        fact = find_missed(code.left_out, directory, script, tuple(made.places_in_job()))
        if fact is not None:
            return fact.removeprefix("workload.code: ")
        if directory is not None and self._check(directory / script, "file") is None:
            step = f"to take it along, write !/{one_line(script)} into .runnerignore"
            return f"{one_line(script)} is left out by an ignore file; {step}"
        return describe_absent(script, files)

    def _lock(self, made: Revision, image: str | None) -> dict[str, object]:
        """Return the lock of a job's packages, if it has any, and what it resolves, as fields of a revision.

        Equal requirements of a matrix are resolved once.
        """
        context, job = self.context, made.job
        is_program = isinstance(job.workload, Program)
        trackers = job.track.trackers if is_program or not context.host_processes else ()
        if not (job.image.has_packages or trackers) or self.refused:
            return {}
        if context.package_locks is None:
            fact = "this daemon offers no packages"
            raise FileError(job.origin.path, [job.origin.problem(("image",), fact)])
        if job.image.offered != "auto" and image is None and not context.host_processes:
            raise Unavailable(f"the container engine does not say what {job.image.offered} is; try again")
        allowed = context.settings.named_images
        packages = PackageResolver(
            context.package_locks, context.users, self.who, self._base, allowed, made.code_directory()
        )
        found = packages.resolve(job, made.accelerator, image, self.known(job.name), trackers)
        processes = context.host_processes
        if processes and locked_versions(found.lock) and (problem := processes.packages_problem()):
            raise FileError(job.origin.path, [job.origin.problem(("image", "requirements"), problem)])
        return {"lock": found.lock, "lock_request": found.digest, "own": found.own}

    def _data(self, job: JobFile) -> tuple[DataReference | None, tuple[Problem, ...]]:
        """Return the path of a job's data, and the problems with it."""
        try:
            return find_data(job, self._base, self.context.state_dir, self._check), ()
        except FileError as error:
            return None, error.problems

    @staticmethod
    def _conflicts(job: JobFile, accelerator: Literal["cuda", "rocm", "cpu"]) -> Iterable[Problem]:
        """Return the conflicts on an accelerator that was chosen for the job; loading checks the others."""
        chosen = job.accelerator == "auto" and job.resources.gpus
        return find_profile_conflicts(job, accelerator) if chosen else ()

    def _torch_problems(self, job: JobFile) -> Iterator[Problem]:
        processes = self.context.host_processes
        if processes and (fact := processes.torch_problem(job)):
            yield job.origin.problem(("workload", "kind"), fact)

    def _slurm_problems(self, job: JobFile) -> Iterator[Problem]:
        context = self.context
        found = find_slurm_problems(job, context.settings.slurm, self.owner, context.batch_check)
        return (job.origin.problem(path, fact) for path, fact in found)

    def _tracking_problems(self, made: Revision) -> Iterator[Problem]:
        """Yield the reasons why a job cannot write to its trackers."""
        job, processes = made.job, self.context.host_processes
        if processes is not None and (fact := processes.tracking_problem(job)):
            yield job.origin.problem(("track",), fact)
        writable = tuple(str(mount.target) for mount in job.mounts if not mount.read_only)
        in_container = processes is None
        for path, fact in find_tracking_problems(
            job.track, writable, made.network or "none", in_container=in_container
        ):
            yield job.origin.problem(path, fact)

    def _network_problems(self, job: JobFile) -> Iterator[Problem]:
        if self.context.host_processes and job.network == "none":
            fact = f"none: {NOT_SEPARATED}; leave the line out, or give the daemon a container engine"
            yield job.origin.problem(("network",), fact)

    def _code_problems(self, made: Revision) -> Iterator[Problem]:
        """Yield that the user of the job cannot enter a directory that it starts in as it is.

        A snapshot belongs to that user, and a job that runs as its submitter was checked as such.
        """
        directory, code, owner = made.code_directory(), made.program_code, self.owner
        if directory is None or code is None or not code.live or owner.uid == self.who.uid:
            return
        runs_as = User(owner.uid, owner.gid, (owner.gid,), f"uid {owner.uid}")
        if self.context.users.path_problem(runs_as, directory, "directory") is not None:
            fact = f"the job runs as uid {owner.uid}, which cannot enter {one_line(str(directory))}"
            step = "let it (chmod o+rx), submit as another user, or leave out live: true"
            yield made.job.origin.problem(("workload", "code"), f"{fact}; {step}")

    def _dockerfile_problems(self, made: Revision) -> Iterator[Problem]:
        """Yield the reasons why a Dockerfile cannot be built, before anything is kept.

        Raises:
            FileError: at the lines of the Dockerfile that say what it may not.
        """
        asked, code = made.job.image.dockerfile, made.program_code
        if asked is None:
            return
        where = ("image", "dockerfile")
        if self.context.host_processes:
            fact = "jobs are plain processes here; give the daemon a container engine"
            yield made.job.origin.problem(where, fact)
        elif code is None or code.live:
            fact = "its files are those of workload.code, as they are kept: name it, without live: true"
            yield made.job.origin.problem(where, fact)
        elif made.dockerfile is None:
            fact = f"{quoted(asked)} is not in the code of the job ({one_line(str(code.path))})"
            yield made.job.origin.problem(where, fact)
        else:
            rules = self.context.settings
            offered = frozenset(rules.allowed_images.values()) if rules.serves_all_users else None
            self.context.users.check_dockerfile(self.who, self._base, asked, offered)

    def _image_problems(self, job: JobFile) -> Iterator[Problem]:
        if self.context.host_processes and job.image.system:
            fact = "jobs are plain processes here, with the Debian packages of this host; ask the operator"
            yield job.origin.problem(("image", "system"), fact)
        processes = self.context.host_processes
        if processes and job.image.requirements and processes.starts_python(job):
            fact = f"{job.workload.kind} runs with {processes.python} here, without a container"
            step = "install them there, or give the daemon a container engine"
            yield job.origin.problem(("image", "requirements"), f"{fact}; {step}")
        offered = job.image.offered
        where = ("image", "name" if job.image.base is None else "base")
        if processes and is_reference(offered):
            fact = "jobs are plain processes here; give the daemon a container engine"
            yield job.origin.problem(where, fact)
        elif offered != "auto" and self.context.settings.image_reference(offered) is None:
            yield job.origin.problem(where, _not_offered(offered, self.context.settings))

    def _image(self, job: JobFile) -> tuple[str | None, tuple[Problem, ...]]:
        """Return the pinned name of a job's image, if it has one that is known now, or the problem."""
        offered, images = job.image.offered, self.context.images
        reference = None if offered == "auto" else self.context.settings.image_reference(offered)
        if images is None or reference is None or self.context.host_processes:
            return None, ()
        known = self.known(job.name)
        if known is not None and known.image and known.job.image == job.image and job.image.pull != "always":
            return known.image, ()  # a change of something else keeps it
        pull = job.image.pull if reference == offered else "never"
        key = (reference, pull)
        if key not in self._images:
            self._images[key] = _pin(images, reference, pull)
        pinned, fact = self._images[key]
        where = ("image", "name" if job.image.base is None else "base")
        step = "" if reference == offered else "; ask the operator (allowed_images)"
        return pinned, () if fact is None else (job.origin.problem(where, fact + step),)


def _pin(images: Images, reference: str, pull: PullPolicy) -> tuple[str | None, str | None]:
    """Return what names an image for ever, or why no job can have it; neither: the engine is silent."""
    try:
        return images.pin(reference, pull), None
    except ImageRefused as error:
        return None, one_line(str(error))
    except BuildFailed as error:
        return None, one_line(str(error)) + (f"; docker pull {reference}" if pull == "never" else "")
    except Unavailable:
        return None, None  # the job waits for the engine, and is told then


def _not_offered(name: str, settings: Settings) -> str:
    """Return the reason why a job may not have an image, and what can be done."""
    names = [each if "*" in each else name for name, each in sorted(settings.allowed_images.items())]
    there = f"there are auto, {', '.join(names)}" if names else "there is only auto"
    step = "; ask the operator (allowed_images)"
    if is_reference(name):
        step = f'; ask the operator to offer it (allowed_images: {{NAME: "{name}"}})'
    elif not settings.serves_all_users:
        step = f"; any other image is written with its tag, such as {name}:latest"
    hint = "" if is_reference(name) else did_you_mean(name, ("auto", *names))
    return f"{quoted(name)} is not offered here; {there}{hint or step}"


def has_path(entries: Mapping[str, CodeEntry], path: str) -> bool:
    """Return True if a path is in a snapshot, or may be: a link on the way can lead anywhere."""
    inner = PurePosixPath(os.path.normpath(path))
    above = (entries.get(str(each)) for each in inner.parents)
    return (
        str(inner) == "."
        or str(inner) in entries
        or any(each is not None and each.kind == "link" for each in above)
    )


def keep_code(snapshots: CodeSnapshots | None, who: User, revision: Revision) -> CodeReference | None:
    """Return the snapshot of a revision's code as it is now, None if none is kept.

    Raises:
        CodeRefused: the directory cannot be kept.
        Refused: the snapshots of the user are too large together.
    """
    directory, code = revision.code_directory(), revision.program_code
    if snapshots is None or directory is None or code is None or code.live:
        return None
    return code_reference(snapshots.take(who, directory))


def accelerator_of(job: JobFile, devices: Sequence[Device]) -> Literal["cuda", "rocm", "cpu"]:
    """Return the accelerator of a job: of the requested GPU models, if there are such GPUs."""
    if job.accelerator != "auto":
        return job.accelerator
    if not job.resources.gpus:
        return "cpu"
    models = [model.casefold() for model in job.devices.model]
    like = [device.vendor for device in devices if any(model in device.name.casefold() for model in models)]
    vendors = like or [device.vendor for device in devices]
    return "cuda" if "nvidia" in vendors else "rocm"


def class_refusal(settings: Settings, who: User, name: str) -> str | None:
    """Return why a user may not use a priority class, or None; an unknown class is refused elsewhere."""
    rules = settings.queue.classes.get(name)
    if rules is None or who.uid in {0, os.geteuid()}:
        return None
    if rules.users is None and rules.groups is None:
        if not (rules.preempts and settings.serves_all_users):
            return None
        return f"class {name} preempts and is for root; the operator decides (queue.classes.{name}.users)"
    if _is_one_of(who, rules.users or (), rules.groups or ()):
        return None
    theirs = f"users {_names(rules.users)}; groups {_names(rules.groups)}"
    return f"class {name} is not yours ({one_line(theirs)}); the operator decides (queue.classes.{name})"


def system_refusal(settings: Settings, job: JobFile) -> str | None:
    """Return the reason why a job may not have its Debian packages, or None."""
    allowed = settings.allowed_system_packages
    names = [each.partition("=")[0] for each in job.image.system or ()]
    refused = [each for each in names if not any(fnmatchcase(each, pattern) for pattern in allowed)]
    if not refused:
        return None
    fact = f"{_placed(job, 'image', 'system')}: {', '.join(refused)}: not on the list ({_names(allowed)})"
    return f"{fact}; the operator decides (packages.system in the settings)"


def dockerfile_refusal(settings: Settings, job: JobFile) -> str | None:
    """Return the reason why a job may not be built from its Dockerfile, or None."""
    if job.image.dockerfile is None or settings.allows_dockerfiles:
        return None
    fact = f"{_placed(job, 'image', 'dockerfile')}: not allowed here"
    return f"{fact}; the operator decides (packages.dockerfiles in the settings)"


def _placed(job: JobFile, *path: str) -> str:
    """Return the name of a field of the job file with its line; a refusal as a whole has none."""
    problem = job.origin.problem(path, "")
    return problem.field if problem.at is None else f"{problem.field} (line {problem.at.line})"


def network_access(settings: Settings, who: User, job: JobFile) -> NetworkAccess:
    """Return what a job reaches: what it asks for, else the default as far as its submitter may have it."""
    default = settings.network.default_for(job.queue.priority_class, shared=settings.serves_all_users)
    if job.network is None and not _may_have_outbound(settings, who, job):
        return "none"
    return job.network or default


def network_refusal(settings: Settings, who: User, job: JobFile) -> str | None:
    """Return the reason why a user may not have the network that a job asks for, or None."""
    if job.network != "outbound" or _may_have_outbound(settings, who, job):
        return None
    rules = settings.network.outbound or OutboundUsers()
    theirs = f"users {_names(rules.users)}; groups {_names(rules.groups)}; classes {_names(rules.classes)}"
    fact = f"network: outbound is not yours ({one_line(theirs)})"
    return f"{fact}; the operator decides (network.outbound in the settings)"


def _may_have_outbound(settings: Settings, who: User, job: JobFile) -> bool:
    rules = settings.network
    if who.uid in {0, os.geteuid()}:
        return True
    if rules.admits_everybody(job.queue.priority_class, shared=settings.serves_all_users):
        return True
    return rules.outbound is not None and _is_one_of(who, rules.outbound.users, rules.outbound.groups)


def _is_one_of(who: User, users: Sequence[str], groups: Sequence[str]) -> bool:
    return who.name in users or bool({team(gid) for gid in who.groups} & set(groups))


def _names(names: Sequence[str] | None) -> str:
    return ", ".join(names or ("none",))


def team(gid: int) -> str:
    """Return the name of a group, or its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
