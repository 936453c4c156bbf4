"""Preparing the launch of an attempt: its image, its directory, its mounts, and the launch request.

All of this blocks, and runs on the work queues of the control loop.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from jobs.contract import JOB_DIR, AttemptSpec, Parallel, Program, RunPaths
from runner.agent.attempts.checkpoints import keep_program_start, known_program_start, program_files
from runner.agent.attempts.inside import GANG, OWN, TERMINAL, gang_command, install
from runner.agent.attempts.program import apply_program, locate_working_directory, needs_own_path
from runner.agent.interface import PreparedLaunch, VerificationQueue
from runner.agent.ports import OpenRunDirectory, RunDirectory
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.fair_executor import FairExecutor
from runner.base.textfile import one_line
from runner.core.job.attempt import Attempt, ProgramStart, StartFrom
from runner.core.policy.adjustments import Overrides
from runner.core.policy.economics import PRIOR_S
from runner.core.ports.checkpoints import ProgramFiles, Verification
from runner.core.ports.clock import Clock
from runner.core.ports.code import CodeSnapshots
from runner.core.ports.devices import Device
from runner.core.ports.executor import BatchRequest, GpuRequest, Key, LaunchRequest, Limits, Mount
from runner.core.ports.images import BuildFailed, Images
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.packages import DockerfileRequest, Packages
from runner.core.ports.store import JobRow
from runner.core.ports.users import MountPins, Owner, PathKind, User, Users
from runner.files.field_checks import CODE_TARGET, SECRETS_TARGET, WEIGHTS_TARGET
from runner.files.job.model import checkpoint_plan
from runner.files.job.program_files import checkpoint_mount, fill_resume_args
from runner.files.job.slurm import batch_options
from runner.files.own_project import describe_own
from runner.files.package_lock import locked_image
from runner.files.revision import VENDORS, Revision, parse_revision

SECRETS_DIR: Final = Path(SECRETS_TARGET)
CONTAINER_SCRATCH: Final = Path("/tmp")  # noqa: S108 - a tmpfs of the container's own


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """Configuration of an attempt service, from the composition root."""

    instance: str
    jobs_dir: Path
    in_container: bool
    images: Images
    image_reference: Callable[[str], str | None]  # of an image that a job may name
    network: OutboundNetwork | None  # None: attempts have the network of this host
    log_quota_bytes: int
    clock: Clock
    users: Users
    open_directory: OpenRunDirectory
    mean_between_s: Callable[[], float] = lambda: PRIOR_S  # mean time between interruptions on this host
    stop_verifying: Callable[[], None] = lambda: None
    verification_queue: VerificationQueue = field(default_factory=lambda: FairExecutor("verification"))
    code: CodeSnapshots | None = None  # None: every attempt runs the directory as it is then
    packages: Packages | None = None
    needed_images: Callable[[], frozenset[str]] = frozenset  # of the jobs that have not ended
    queues: bool = False  # the engine has a queue of its own, and chooses devices itself
    pins: MountPins | None = None  # None: the daemon has no rights that its users lack


NO_IMAGE: Final = "none"
"""Name in place of an image, of an attempt that is a plain process."""


@lru_cache(maxsize=512)
def attempt_spec(text: str, job_id: str, attempt: Attempt, in_container: bool) -> AttemptSpec:  # noqa: FBT001
    """Return the spec of an attempt, without the mean time between interruptions of this host."""
    return parse_revision(text).spec(job_id, attempt, in_container=in_container)


@dataclass(frozen=True, slots=True)
class LaunchPreparer:
    """Prepares launches on one host."""

    config: AttemptConfig
    _made: set[str] = field(default_factory=set)  # images with packages that jobs have got

    def prepare_image(self, row: JobRow, directory: RunDirectory) -> str:
        """Return the id of the job's image; the log of its build is kept in the run directory."""
        directory.create()
        revision = parse_revision(row.revision)
        image = self._image(row, revision, directory)
        packages = self.config.packages
        if packages is None or not (revision.lock or revision.dockerfile):
            return image
        log = directory.root / "build.log"
        made = self._built(packages, row, revision, image, log) if revision.dockerfile else image
        if revision.lock is not None:
            made = packages.ensure(revision.lock, made, revision.accelerator, log, row.job.id)
        if made not in self._made:  # the disk has one more, perhaps
            packages.evict(self.config.needed_images() | {made})
            self._made.add(made)
        return made

    def _built(self, packages: Packages, row: JobRow, revision: Revision, image: str, log: Path) -> str:
        """Return the id of the image of the job's Dockerfile, whose context is the snapshot of its code."""
        snapshots, code = self.config.code, revision.code
        if snapshots is None or code is None or revision.dockerfile is None:
            raise BuildFailed("image.dockerfile: the code of this job is not kept; submit it again")
        request = DockerfileRequest(revision.dockerfile, image, revision.accelerator, revision.uid)
        with tempfile.TemporaryFile(dir=self.config.jobs_dir.parent) as context:
            snapshots.pack(revision.uid, code.snapshot, context)
            return packages.build(request, context, log, row.job.id)

    def _image(self, row: JobRow, revision: Revision, directory: RunDirectory) -> str:
        """Return the id of the image without the packages of the job."""
        config = self.config
        if not config.in_container:
            return NO_IMAGE
        chosen = None if revision.lock is None else locked_image(revision.lock)
        name = chosen or revision.job.image.offered
        if name == "auto":
            return config.images.ensure(revision.accelerator, directory.root / "build.log", row.job.id)
        reference = config.image_reference(name)
        if reference is None:
            raise BuildFailed(f"image {name!r} is no longer offered; ask the operator (allowed_images)")
        try:
            if chosen is not None:  # by its Python, of those that the operator names
                return config.images.resolve(reference)
            # The engine may not have been there to ask at the submission.
            pull = revision.job.image.pull if reference == name else "never"
            pinned = revision.image or config.images.pin(reference, pull)
            return config.images.fetch(pinned, directory.root / "build.log", row.job.id)
        except BuildFailed as error:
            step = "" if reference == name else "; ask the operator (allowed_images)"
            if row.job.attempts:  # it was there: nothing about this job has changed
                raise Unavailable(f"{name}: {error}{step}; it is tried again") from error
            raise BuildFailed(f"{name}: {error}{step}") from error

    def prepare(
        self, row: JobRow, attempt: Attempt, directory: RunDirectory, image: str, devices: tuple[Device, ...]
    ) -> PreparedLaunch:
        """Return the launch request of an attempt, whose directory is made."""
        config, revision = self.config, parse_revision(row.revision)
        who = self._submitter(revision)
        plan = checkpoint_plan(revision.job, self._mean_between_s(attempt, directory))
        spec = self.spec(row, attempt).model_copy(update={"checkpoint": plan})
        spec = limit_device_memory(spec, revision.job.devices.memory, devices)
        weights = self._initial_weights(revision, row.owner, who)
        if weights is not None:
            seen = str(WEIGHTS_TARGET) if config.in_container else str(weights)
            spec = spec.model_copy(update={"init_weights": seen})
        afresh = self._begins_afresh(revision, attempt, directory)
        said = self._make_working_directory(revision, attempt, directory, row.owner, afresh=afresh)
        said += "".join(f"runner: {one_line(describe_own(each))}\n" for each in revision.own)
        secrets = {
            name: config.users.read_as_user(who, revision.base / path)
            for name, path in revision.job.secrets.items()
        }
        paths = directory.prepare(spec, secrets, said)
        if isinstance(spec.workload, Program) and spec.workload.terminal:
            install(directory, attempt.number, TERMINAL)
        if _starts_gang(spec):
            install(directory, attempt.number, GANG)
        if needs_own_path(revision):
            install(directory, attempt.number, OWN)
        pin = partial(self._pin, who, f"{row.job.id}-{attempt.number}")
        mounts = _mounts(revision, paths, directory.secret, pin, weights) if config.in_container else ()
        network = (
            config.network.prepare() if config.network and _is_outbound(revision, config.network) else None
        )
        request = self._request(row, paths, image, devices, mounts, attempt.turned, network)
        owner = _with_present_group(row.owner, revision, who)
        # The rights with which the mounts were checked; another user's job has only its own.
        groups = tuple(gid for gid in who.groups if gid not in {0, owner.gid}) if owner.uid == who.uid else ()
        request = replace(request, owner=owner, groups=groups)
        packages = config.packages
        environment = packages.environment(revision.lock) if packages and revision.lock else None
        request = apply_program(
            request, spec, in_container=config.in_container, environment=environment, own=revision.own
        )
        launch = self._resume_program(request, revision, attempt, directory, paths)
        if launch.resumed is not None or afresh is None:
            return launch
        place = f"work/{attempt.lineage}.before-{attempt.number}" if afresh else ""
        if afresh and not (directory.root / place).is_dir():
            return launch  # there was nothing before
        return replace(launch, resumed=ProgramStart(0, "", directory=place, known_as=""))

    @staticmethod
    def _begins_afresh(revision: Revision, attempt: Attempt, directory: RunDirectory) -> bool | None:
        """Return True if a further attempt of a program begins with the submitted code.

        It goes on in the files of the attempt before if it has a checkpoint, or if its job file says so.
        None: there are no such files, or a checkpoint tells where it begins.
        """
        code, plan = revision.working_directory(), revision.job.workload
        if code is None or code.read_only or not isinstance(plan, Program) or plan.terminal:
            return None
        if attempt.number == 1 or attempt.start.source is StartFrom.SCRATCH:
            return None
        paths = directory.paths(attempt.number, attempt.lineage)
        saved = directory.saved(paths, Verification.SIZES)
        if saved.steps or not saved.complete:  # what is not known is not set aside
            return None
        checkpoint = revision.job.checkpoint
        return checkpoint.files is None and not checkpoint.keep_files

    def _initial_weights(self, revision: Revision, owner: Owner, who: User) -> Path | None:
        """Return the directory or file of the weights that a job begins with, None if it is gone.

        An attempt that resumes does not need it, so that one that is gone is no reason to refuse a launch.
        """
        config, init = self.config, revision.init
        if init is None:
            return None
        if init.job is None:
            found = None if init.path is None else Path(init.path)
        else:
            found = config.open_directory(config.jobs_dir / init.job, owner).weights(init.kind)
        kind: PathKind = "either" if init.job is None else "directory"
        if found is None or config.users.path_problem(who, found, kind) is not None:
            return None
        return found

    def _resume_program(
        self,
        request: LaunchRequest,
        revision: Revision,
        attempt: Attempt,
        directory: RunDirectory,
        paths: RunPaths,
    ) -> PreparedLaunch:
        """Return a request whose program is told which of its own checkpoints to resume from."""
        wanted = program_files(revision)
        if wanted is None:
            return PreparedLaunch(request)
        asked = attempt.start.step if attempt.start.source is StartFrom.STEP else None
        start = known_program_start(directory, paths, asked)
        start = start or self._choose(wanted, revision, attempt, directory, paths)
        if start is None:
            return PreparedLaunch(request)
        arguments = fill_resume_args(revision.job.checkpoint.resume_args, start.path, start.step)
        arguments = arguments if self.config.in_container else revision.on_host(arguments)
        variables = {"RUNNER_RESUME_FROM": start.path}
        told = replace(
            request,
            argv=(*request.argv, *arguments),
            environment={**request.environment, **variables},
        )
        return PreparedLaunch(told, start)

    def _choose(
        self,
        wanted: ProgramFiles,
        revision: Revision,
        attempt: Attempt,
        directory: RunDirectory,
        paths: RunPaths,
    ) -> ProgramStart | None:
        """Return the start of an attempt; it is kept, so that a repeated launch moves nothing again."""
        is_first = attempt.number == 1 or attempt.start.source is StartFrom.SCRATCH
        step = attempt.start.step if attempt.start.source is StartFrom.STEP else None
        chosen = directory.choose_program_checkpoint(paths, wanted, step, is_first=is_first)
        if chosen is None:
            return None
        root, _ = self._visible_paths(paths)
        mount = checkpoint_mount(revision.job)
        below = root / "home" if chosen.in_home else Path()
        if mount is not None:
            below = Path(mount.target) if self.config.in_container else revision.base / mount.source
        start = ProgramStart(
            chosen.step,
            str(below / chosen.path),
            chosen.set_aside,
            chosen.directory,
            chosen.known_as,
            tuple(str(below / each) for each in chosen.put_back),
            tuple(str(below / each) for each in chosen.torn),
        )
        keep_program_start(directory, paths, step, start)
        return start

    def _mean_between_s(self, attempt: Attempt, directory: RunDirectory) -> float:
        """Return the mean time between interruptions that an attempt is told: the same at each launch."""
        kept = directory.spec(directory.paths(attempt.number, attempt.lineage))
        told = None if kept is None else kept.checkpoint.mean_between_s
        return self.config.mean_between_s() if told is None else told

    def preview(self, row: JobRow, attempt: Attempt, directory: RunDirectory, image: str) -> LaunchRequest:
        """Return the launch request of an attempt; nothing is made, and nothing is pinned."""
        paths = directory.paths(attempt.number, attempt.lineage)
        revision, outbound = parse_revision(row.revision), self.config.network
        mounts = _mounts(revision, paths, directory.secret, lambda _, source: source)
        network = outbound.name if outbound and _is_outbound(revision, outbound) else None
        request = self._request(row, paths, image, (), mounts, attempt.turned, network)
        spec = self.spec(row, attempt)
        return apply_program(request, spec, in_container=self.config.in_container, own=revision.own)

    def _make_working_directory(
        self,
        revision: Revision,
        attempt: Attempt,
        directory: RunDirectory,
        owner: Owner,
        *,
        afresh: bool | None,
    ) -> str:
        """Make the working directory of the lineage, or bring that of earlier attempts to the code of now.

        Returns what the log of the attempt begins with.
        """
        wanted, snapshots = revision.working_directory(), self.config.code
        if wanted is None or snapshots is None:
            return ""
        kept = directory.make_work(
            attempt.lineage,
            wanted,
            lambda place: snapshots.fill(revision.uid, wanted, place, owner),
            lambda before, place: snapshots.update(revision.uid, before, wanted, place, owner),
            attempt.number if afresh else None,
        )
        said = "the code was changed; the program had changed this itself, and keeps it"
        return f"runner: {said}: {', '.join(map(one_line, kept))}\n" if kept else ""

    def release(self, prefix: str) -> None:
        """Unpin the mount sources whose names have a prefix; running containers keep them."""
        pins = self.config.pins
        for name in pins.names() if pins else ():
            if pins and name.startswith(prefix):
                pins.release(name)

    def spec(self, row: JobRow, attempt: Attempt) -> AttemptSpec:
        """Return the spec of an attempt, without the mean time between interruptions of this host."""
        config = self.config
        spec = attempt_spec(row.revision, row.job.id, attempt, config.in_container)
        if config.in_container or parse_revision(row.revision).code is None:
            return spec
        return locate_working_directory(
            spec, RunPaths(config.jobs_dir / row.job.id, attempt.number, attempt.lineage)
        )

    def _request(  # noqa: PLR0913, PLR0917  (one value per part of the answer)
        self,
        row: JobRow,
        paths: RunPaths,
        image: str,
        devices: tuple[Device, ...],
        mounts: tuple[Mount, ...],
        overrides: Overrides,
        network: str | None,
    ) -> LaunchRequest:
        revision = parse_revision(row.revision)
        resources = revision.job.resources
        return LaunchRequest(
            key=Key(self.config.instance, row.job.id, paths.attempt),
            job_name=row.name,
            owner=row.owner,
            image=image,
            argv=self._argv(paths, revision.parallel(overrides)),
            run_dir=paths.root,
            log=paths.log,
            limits=Limits(resources.cpus, revision.memory(overrides), resources.shm_bytes),
            environment={
                **revision.environment(*self._visible_paths(paths), overrides),
                **revision.facts(SECRETS_DIR if self.config.in_container else paths.root / "secrets"),
            },
            mounts=mounts,
            devices=devices,
            network=network,
            name_servers=self.config.network.dns if self.config.network and network else (),
            batch=_batch_request(row, revision, overrides) if self.config.queues else None,
        )

    def _visible_paths(self, paths: RunPaths) -> tuple[Path, Path]:
        """Return the run directory and the scratch directory as the attempt sees them."""
        if self.config.in_container:
            return Path(JOB_DIR), CONTAINER_SCRATCH
        return paths.root, paths.cache / f"attempt-{paths.attempt}"

    def _argv(self, paths: RunPaths, parallel: Parallel) -> tuple[str, ...]:
        python = "python" if self.config.in_container else sys.executable
        root = JOB_DIR if self.config.in_container else paths.root
        numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
        argv = (python, "-P", "-m", "jobs", "--root", str(root), *numbers)
        if parallel.processes == 1:
            return argv
        inside = RunPaths(Path(root), paths.attempt, paths.lineage)
        of_node = parallel.processes // parallel.nodes
        return gang_command(inside, of_node, argv, in_container=self.config.in_container)

    def _submitter(self, revision: Revision) -> User:
        """Return the submitter with the groups of now: whoever has left a group reads nothing with it.

        Raises:
            Refused: the uid is another person's now, whose files the job must not read.
            Unavailable: the user database does not know the submitter any more, or does not answer.
        """
        who = self.config.users.find_user(revision.uid, revision.gid)
        if who.name == str(revision.uid) != revision.user:
            fact = f"user {revision.user} (uid {revision.uid}) is not in the user database of this host"
            raise Unavailable(f"{fact}; add the account again, or cancel the job")
        if who.name != revision.user and revision.uid not in {0, os.geteuid()}:
            fact = f"uid {revision.uid} is {who.name}'s now, and the job {revision.user}'s"
            raise Refused(f"{fact}; cancel it, or give the account its old name")
        return who

    def _pin(self, who: User, name: str, number: int, path: Path) -> Path:
        """Return the path to mount for a path: the owner may read it, and can no longer swap it."""
        if self.config.pins:
            return self.config.pins.pin(who, path, f"{name}/{number}")
        problem = self.config.users.path_problem(who, path, "either")
        if problem:
            raise UsageError(problem)
        return path.resolve()


def _batch_request(row: JobRow, revision: Revision, overrides: Overrides) -> BatchRequest:
    """Return the request to an engine with a queue of its own for a place for an attempt."""
    job, resources = revision.job, revision.job.resources
    return BatchRequest(
        Limits(resources.cpus, revision.memory(overrides), resources.shm_bytes),
        GpuRequest(resources.gpus, job.devices.model, VENDORS.get(revision.accelerator, "nvidia")),
        batch_options(job.slurm),
        _time_left(row, resources.time_limit),
        job.stop_grace,
        revision.nodes(overrides),
        job.priority,
        job.queue.priority_class,
        job.executor or ("slurm",),
        outbound=revision.network == "outbound",
    )


def _time_left(row: JobRow, limit: timedelta | None) -> timedelta | None:
    """Return the rest of the time limit of a job."""
    return None if limit is None else max(limit - row.job.history.ran, timedelta())


def _starts_gang(spec: AttemptSpec) -> bool:
    """Return True if the launcher of several processes starts an attempt."""
    plan = spec.workload
    return plan.launcher == "gang" if isinstance(plan, Program) else spec.parallel.processes > 1


def _is_outbound(revision: Revision, network: OutboundNetwork) -> bool:
    """Return True if a job may reach the outside; older revisions do where the operator names a network."""
    return network.is_for_all if revision.network is None else revision.network == "outbound"


def _with_present_group(owner: Owner, revision: Revision, who: User) -> Owner:
    """Return the owner of a job with the primary group of now, if the job runs as its submitter."""
    return replace(owner, gid=who.gid) if (owner.uid, owner.gid) == (who.uid, revision.gid) else owner


def _mounts(
    revision: Revision,
    paths: RunPaths,
    secret: Callable[[str], Path],
    pin: Callable[[int, Path], Path],
    weights: Path | None = None,
) -> tuple[Mount, ...]:
    """Return the mounts of a job; ``pin`` returns what to mount for each source that is not trusted."""
    mounts = [
        Mount(each.source if each.trusted else pin(i, each.source), Path(each.target), each.read_only)
        for i, each in enumerate(revision.resolved_mounts())
    ]
    if weights is not None:
        mounts.append(Mount(pin(len(mounts), weights), Path(WEIGHTS_TARGET)))
    if (work := revision.working_directory()) is not None:  # its parent is the daemon's: nobody can swap it
        mounts.append(Mount(paths.work_dir, Path(CODE_TARGET), work.read_only))
    return (*mounts, *(Mount(secret(name), SECRETS_DIR / name) for name in revision.job.secrets))


def limit_device_memory(spec: AttemptSpec, part_bytes: int | None, devices: Iterable[Device]) -> AttemptSpec:
    """Return a spec whose trainer keeps to its part of the memory of shared devices.

    A smaller share that the profile sets itself stays.  The spec stays as it is if no device is shared or if
    the size of the devices is unknown.
    """
    sizes = [device.memory_bytes for device in devices if device.kind == "shared"]
    known = [size for size in sizes if size]
    if part_bytes is None or not known:
        return spec
    share = min(part_bytes / min(known), spec.profile.memory_fraction or 1.0, 1.0)
    return spec.model_copy(update={"profile": spec.profile.model_copy(update={"memory_fraction": share})})
