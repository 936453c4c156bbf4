"""The slow work around an attempt: its image, its directory, and what is known when it ended.

Everything here blocks and is called from the daemon's lanes.  It joins the run directory,
the images and the revision, so that the daemon itself knows of none of them.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from jobs.contract import JOB_DIR, AttemptSpec, Program, RunPaths
from runner.base.errors import UsageError
from runner.base.units import format_size
from runner.core.job.attempt import Attempt, AttemptEnd
from runner.core.job.exit_cause import Evidence, explain_exit, is_complete
from runner.core.job.states import State, Stopping
from runner.core.policy.adjustments import Overrides
from runner.core.policy.catalog import validate_facts
from runner.core.policy.economics import PRIOR_S
from runner.core.policy.facts import DecisionPoint, FactValue
from runner.core.ports.attempts import ExitFindings, PinnedPolicy, ProgressProbe, QueueTerms, SavedCheckpoints
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device
from runner.core.ports.executor import Gone, Key, LaunchRequest, Limits, Mount
from runner.core.ports.images import BuildFailed, Images
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import MountPins, Owner, Users
from runner.core.scheduler.snapshot import Dependency, JobArray, ResourceRequest
from runner.files.job.model import Retry, checkpoint_plan
from runner.files.policy import of_job
from runner.services.attempts import facts as exit_facts
from runner.services.attempts import program as programs
from runner.services.ports import OpenRunDirectory, RunDirectory
from runner.services.submission.revision import Revision, parse_revision

SECRETS_DIR: Final = Path("/run/secrets")
CONTAINER_SCRATCH: Final = Path("/tmp")  # noqa: S108 - a tmpfs of the container's own
LOG_HEAD_SHARE: Final = 4  # a quarter of the quota for the beginning, the rest for the end


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """What a workshop is given."""

    instance: str
    jobs_dir: Path
    in_container: bool
    images: Images
    allowed_images: Mapping[str, str]
    network: str | None
    log_quota_bytes: int
    clock: Clock
    users: Users
    open_directory: OpenRunDirectory
    mean_between_s: Callable[[], float] = lambda: PRIOR_S  # how long this host leaves an attempt alone
    pins: MountPins | None = None  # None: the daemon has no rights that its users lack


@lru_cache(maxsize=512)
def _spec(text: str, job_id: str, attempt: Attempt, in_container: bool) -> AttemptSpec:  # noqa: FBT001
    """Return what an attempt is told, but for how long this host leaves attempts alone."""
    return parse_revision(text).spec(job_id, attempt, in_container=in_container)


@lru_cache(maxsize=8192)
def _needs(text: str) -> ResourceRequest:
    """Return what an attempt takes: small, and asked at every turn of the loop about every job that waits."""
    return parse_revision(text).needs()


@lru_cache(maxsize=8192)
def _terms(text: str) -> QueueTerms:
    """Return what a job asks of the queue."""
    revision = parse_revision(text)
    queue, sweep = revision.job.queue, revision.sweep
    saves = not isinstance(revision.job.workload, Program) and revision.job.checkpoint.on_stop
    return QueueTerms(
        team=revision.team,
        priority_class=queue.priority_class,
        not_before=queue.not_before,
        after=tuple(Dependency(job_id, condition) for job_id, condition in revision.after),
        sweep=None if sweep is None else JobArray(sweep.id, sweep.at_a_time),
        saves_when_asked=bool(saves),
    )


@lru_cache(maxsize=512)
def _directory(open_directory: OpenRunDirectory, root: Path, owner: Owner) -> RunDirectory:
    """Return the directory of a job, which is the same all its life."""
    return open_directory(root, owner)


def _policy(text: str) -> PinnedPolicy:
    revision = parse_revision(text)
    return _pinned(revision.policy, revision.job.retry, revision.job.resources.time_limit)


@lru_cache(maxsize=512)
def _pinned(text: str | None, retry: Retry, wall: timedelta | None) -> PinnedPolicy:
    """Return a policy with its digest: a millisecond's work, and most jobs have one of a few."""
    policy = of_job.tighten_policy(of_job.deserialize_policy(text), retry, wall)
    return PinnedPolicy(policy, of_job.describe_digest(text, policy))


class AttemptService:
    """Satisfies ``runner.core.ports.attempts.Attempts``."""

    def __init__(self, shop: AttemptConfig) -> None:
        self._shop = shop

    def directory(self, row: JobRow) -> RunDirectory:
        """Return the run directory of a job."""
        return _directory(self._shop.open_directory, self._shop.jobs_dir / row.job.id, row.owner)

    def open_directory(self, root: Path, owner: Owner) -> RunDirectory:
        """Return a run directory at a path of its own, for a job that has no id yet."""
        return self._shop.open_directory(root, owner)

    def metrics(self, row: JobRow, attempt: int, lineage: int, limit: int) -> bytes:
        """Return the end of the metrics that an attempt has written, at most ``limit`` bytes."""
        directory = self.directory(row)
        return directory.tail(directory.paths(attempt, lineage).metrics, limit)

    def paths(self, row: JobRow, attempt: int, lineage: int) -> RunPaths:
        return self.directory(row).paths(attempt, lineage)

    @staticmethod
    def needs(row: JobRow) -> ResourceRequest:
        return _needs(row.revision)

    @staticmethod
    def terms(row: JobRow) -> QueueTerms:
        return _terms(row.revision)

    @staticmethod
    def policy(row: JobRow) -> PinnedPolicy:
        return _policy(row.revision)

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image; the build's log is kept beside the job."""
        directory = self.directory(row)
        directory.create()
        if not self._shop.in_container:
            return "none"
        revision = parse_revision(row.revision)
        chosen = revision.job.image.name
        if chosen == "auto":
            return self._shop.images.ensure(revision.accelerator, directory.root / "build.log", row.job.id)
        if chosen not in self._shop.allowed_images:
            raise BuildFailed(f"image {chosen!r} is no longer offered; ask the operator (allowed_images)")
        return self._offered(self._shop.allowed_images[chosen])

    def _offered(self, reference: str) -> str:
        """Return the id that a reference stands for now: what is recorded is what all attempts run."""
        try:
            return self._shop.images.resolve(reference)
        except BuildFailed as error:
            raise BuildFailed(f"{error}; ask the operator (allowed_images)") from error

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made."""
        revision = parse_revision(row.revision)
        saves = checkpoint_plan(revision.job, self._shop.mean_between_s())
        spec = self._spec(row, attempt).model_copy(update={"checkpoint": saves})
        spec = within_part(spec, revision.job.devices.memory, devices)
        directory = self.directory(row)
        secrets = {
            n: self._shop.users.read_as_user(revision.person, revision.base / p)
            for n, p in revision.job.secrets.items()
        }
        paths = directory.prepare(spec, secrets)
        see = partial(self._pinned, revision, f"{row.job.id}-{attempt.number}")
        mounts = self._mounts(revision, directory.secret, see) if self._shop.in_container else ()
        request = self._request(row, revision, paths, image, devices, mounts, attempt.turned)
        return programs.started(request, spec, in_container=self._shop.in_container)

    def dry_request(self, row: JobRow, attempt: Attempt, image: str) -> LaunchRequest:
        """Return what would be launched, with nothing made."""
        revision = parse_revision(row.revision)
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        mounts = self._mounts(revision, directory.secret, lambda _, source: source)
        request = self._request(row, revision, paths, image, (), mounts, attempt.turned)
        spec = self._spec(row, attempt)
        return programs.started(request, spec, in_container=self._shop.in_container)

    def _request(  # noqa: PLR0913, PLR0917  (one value per part of the answer)
        self,
        row: JobRow,
        revision: Revision,
        paths: RunPaths,
        image: str,
        devices: tuple[Device, ...],
        mounts: tuple[Mount, ...],
        turned: Overrides,
    ) -> LaunchRequest:
        resources = revision.job.resources
        return LaunchRequest(
            key=Key(self._shop.instance, row.job.id, paths.attempt),
            job_name=row.name,
            owner=row.owner,
            image=image,
            argv=self._argv(paths),
            run_dir=paths.root,
            log=paths.log,
            limits=Limits(resources.cpus, resources.memory, resources.shm),
            environment=dict(revision.environment(*self._places(paths), turned)),
            mounts=mounts,
            devices=devices,
            network=self._shop.network,
        )

    def _places(self, paths: RunPaths) -> tuple[Path, Path]:
        """Return the run directory and the scratch directory as an attempt sees them."""
        if self._shop.in_container:
            return Path(JOB_DIR), CONTAINER_SCRATCH
        return paths.root, paths.root / "home" / ".cache" / f"attempt-{paths.attempt}"

    def _argv(self, paths: RunPaths) -> tuple[str, ...]:
        python = "python" if self._shop.in_container else sys.executable
        root = JOB_DIR if self._shop.in_container else paths.root
        numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
        return (python, "-P", "-m", "jobs", "--root", str(root), *numbers)

    @staticmethod
    def _mounts(
        revision: Revision, secret: Callable[[str], Path], see: Callable[[int, Path], Path]
    ) -> tuple[Mount, ...]:
        """Return what the job sees of the host; ``see`` answers with what stands for each source."""
        mounts = [
            Mount(one.source if one.trusted else see(i, one.source), Path(one.target), one.read_only)
            for i, one in enumerate(revision.shown())
        ]
        return (*mounts, *(Mount(secret(name), SECRETS_DIR / name) for name in revision.job.secrets))

    def _pinned(self, revision: Revision, name: str, number: int, path: Path) -> Path:
        """Return what to mount for ``path``: something that its owner may read and can no longer swap."""
        if self._shop.pins:
            return self._shop.pins.pin(revision.person, path, f"{name}/{number}")
        problem = self._shop.users.path_problem(revision.person, path, "either")
        if problem:
            raise UsageError(problem)
        return path.resolve()

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        """Return the evidence about an attempt that has ended; checkpoints are verified, not believed."""
        revision = parse_revision(row.revision)
        spec = self._spec(row, attempt)
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        reports, saved = self._reports(directory, paths), directory.saved(paths)
        program = isinstance(revision.job.workload, Program)
        evidence = replace(
            _evidence(gone, reports, reports_expected=not program),
            has_checkpoint=saved.attempt == attempt.number,
            memory_limit=format_size(revision.job.resources.memory),
            stop_requested=_was_asked(row.job.state, gone),
        )
        ended = _ended(gone, evidence, saved)
        settings = exit_facts.of_settings(spec, revision.profile_name(attempt.turned), reports.effective)
        facts: dict[str, FactValue] = {
            **exit_facts.of_end(gone, ended, evidence, reports),
            **exit_facts.of_progress(reports),
            **exit_facts.of_checkpoints(saved, attempt, self._shop.clock.now()),
            **settings,
            "turnable": not program or reports.effective is not None or _turned(attempt),
        }
        checked = validate_facts(facts, DecisionPoint.EXIT)
        effective = {name: value for name, value in checked.items() if name in settings}
        return ExitFindings(
            ended,
            self.policy(row),
            checked,
            saved.steps,
            exit_facts.digest_of(spec, effective),
            reports.result.step if reports.result and ended.cause == "non_finite" else None,
        )

    def glance(self, row: JobRow, attempt: Attempt) -> ProgressProbe:
        """Return what a running attempt shows of itself.

        Asked every few seconds: of checkpoints the sizes are compared with the manifest, not the content.
        """
        revision = parse_revision(row.revision)
        spec = self._spec(row, attempt)
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        reports = exit_facts.AttemptReports(directory.status(paths), effective=directory.effective(paths))
        settings = exit_facts.of_settings(spec, revision.profile_name(attempt.turned), reports.effective)
        saved, now = directory.saved(paths, sure=0), self._shop.clock.now()
        facts = {
            **exit_facts.of_progress(reports),
            **exit_facts.of_checkpoints(saved, attempt, now),
            **settings,
        }
        if not isinstance(revision.job.workload, Program):
            facts["checkpoint.on_demand"] = True
        checked = validate_facts(facts, DecisionPoint.WATCH)
        effective = {name: value for name, value in checked.items() if name in settings}
        return ProgressProbe(exit_facts.sign(reports.status), checked, exit_facts.digest_of(spec, effective))

    @staticmethod
    def _reports(directory: RunDirectory, paths: RunPaths) -> exit_facts.AttemptReports:
        there = directory.there(paths)
        return exit_facts.AttemptReports(
            directory.status(paths) if paths.STATUS in there else None,
            directory.result(paths) if paths.RESULT in there else None,
            directory.effective(paths) if paths.EFFECTIVE in there else None,
            directory.rates(paths) if paths.METRICS in there else (),
            directory.tail(paths.log, exit_facts.LOG_TAIL_BYTES),
        )

    def keep(self, row: JobRow, decision: DecisionRow) -> None:
        """Leave a copy of a decision beside its attempt."""
        self.directory(row).keep(decision.attempt, f"{decision.moment}.json", decision.body + "\n")

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Keep the log of an attempt within its quota: now and then while it runs, and once it has ended."""
        quota = self._shop.log_quota_bytes
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        directory.limit_log(paths, quota, quota // LOG_HEAD_SHARE, quota // 2)

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended: its place before an image, its secrets."""
        self._shop.images.leave(row.job.id)
        self.directory(row).forget_secrets()

    def close(self) -> None:
        """End what may take minutes, so that the daemon can leave; the next one begins it again."""
        self._shop.images.close()

    def let_go(self, row: JobRow) -> None:
        """Unpin the mount sources of a job: a container that has started keeps its own."""
        self._release(f"{row.job.id}-")

    def sweep(self) -> None:
        """Unpin what a daemon that was killed in the middle of a launch has left."""
        self._release("")

    def _release(self, prefix: str) -> None:
        pins = self._shop.pins
        for name in pins.names() if pins else ():
            if pins and name.startswith(prefix):
                pins.release(name)

    def spec_json(self, row: JobRow, attempt: Attempt) -> Any:  # noqa: ANN401  (JSON)
        """Return the attempt's spec as JSON values, for a dry run."""
        return json.loads(self._spec(row, attempt).model_dump_json())

    def _spec(self, row: JobRow, attempt: Attempt) -> AttemptSpec:
        return _spec(row.revision, row.job.id, attempt, self._shop.in_container)


def _turned(attempt: Attempt) -> bool:
    """Return whether remedies have turned more than which devices an attempt gets."""
    return attempt.turned != Overrides(avoid=attempt.turned.avoid)


def _was_asked(state: State, gone: Gone) -> bool:
    """Return whether an attempt was told to stop before it ended."""
    return isinstance(state, Stopping) and (gone.at is None or gone.at >= state.since)


def _evidence(gone: Gone, reports: exit_facts.AttemptReports, *, reports_expected: bool) -> Evidence:
    result = reports.result
    return Evidence(
        exit_code=gone.exit_code,
        oom_seen=gone.oom_seen,
        engine_error=gone.error,
        result_cause=None if result is None else str(result.cause),
        result_message="" if result is None else result.message,
        writes_result=reports_expected,
    )


def _ended(gone: Gone, evidence: Evidence, saved: SavedCheckpoints) -> AttemptEnd:
    cause, message = explain_exit(evidence)
    return AttemptEnd(
        exit_code=gone.exit_code,
        cause=cause,
        message=" ".join(message.split())[:500],
        oom_seen=gone.oom_seen,
        completed=is_complete(evidence),
        checkpoint_step=saved.newest,
        checkpoints_rejected=saved.rejected,
    )


def within_part(spec: AttemptSpec, part_bytes: int | None, devices: Iterable[Device]) -> AttemptSpec:
    """Return a spec whose trainer keeps to its part of the devices' memory.

    A share that the profile sets itself is kept where it is smaller.  Of devices that are not shared, or of
    an unknown size, the spec stays as it is.
    """
    sizes = [device.memory_bytes for device in devices if device.kind == "shared"]
    known = [size for size in sizes if size]
    if part_bytes is None or not known:
        return spec
    share = min(part_bytes / min(known), spec.profile.memory_fraction or 1.0, 1.0)
    return spec.model_copy(update={"profile": spec.profile.model_copy(update={"memory_fraction": share})})
