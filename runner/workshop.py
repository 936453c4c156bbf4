"""The slow work around an attempt: its image, its directory, and what is known when it ended.

Everything here blocks and is called from the daemon's lanes.  It joins the run directory,
the images and the revision, so that the daemon itself knows of none of them.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from jobs.contract import JOB_DIR, RunPaths
from runner.adapters import as_user, log_quota
from runner.adapters.pins import Pins
from runner.adapters.run_directory import RunDirectory
from runner.core.causes import Evidence, completed, explain
from runner.core.lifecycle import Attempt
from runner.core.placement import Needs
from runner.core.retry import Ended
from runner.errors import UsageError
from runner.ports import BuildFailed, Device, Gone, Images, JobRow, Key, LaunchRequest, Limits, Mount
from runner.resolved import Resolved
from runner.spec_rules import WORKLOAD_TARGET

SECRETS_DIR: Final = Path("/run/secrets")
LOG_HEAD_SHARE: Final = 4  # a quarter of the quota for the beginning, the rest for the end


@dataclass(frozen=True, slots=True)
class Shop:
    """What a workshop is given."""

    instance: str
    jobs_dir: Path
    in_container: bool
    images: Images
    allowed_images: Mapping[str, str]
    network: str | None
    log_quota_bytes: int
    pins: Pins | None = None  # None: the daemon has no rights that its users lack


@lru_cache(maxsize=512)
def parse_revision(text: str) -> Resolved:
    """Return the revision that the store keeps as JSON; the same few are asked for again and again."""
    return Resolved.model_validate_json(text)


@lru_cache(maxsize=8192)
def _needs(text: str) -> Needs:
    """Return what an attempt takes: small, and asked at every turn of the loop about every job that waits."""
    return parse_revision(text).needs()


class JobWorkshop:
    """Satisfies ``runner.daemon.Workshop``."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def directory(self, row: JobRow) -> RunDirectory:
        return RunDirectory(self._shop.jobs_dir / row.job.id, row.owner)

    def paths(self, row: JobRow, attempt: int, lineage: int) -> RunPaths:
        return self.directory(row).paths(attempt, lineage)

    @staticmethod
    def needs(row: JobRow) -> Needs:
        return _needs(row.revision)

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image; the build's log is kept beside the job."""
        directory = self.directory(row)
        directory.create()
        if not self._shop.in_container:
            return "none"
        revision = parse_revision(row.revision)
        chosen = revision.job.image.name
        if chosen != "auto":
            if chosen not in self._shop.allowed_images:
                raise BuildFailed(f"image {chosen!r} is no longer offered; ask the operator (allowed_images)")
            return self._shop.allowed_images[chosen]
        return self._shop.images.ensure(revision.accelerator, directory.root / "build.log")

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made."""
        revision = parse_revision(row.revision)
        spec = revision.spec(row.job.id, attempt, in_container=self._shop.in_container)
        directory = self.directory(row)
        secrets = {
            n: as_user.read(revision.person, revision.base / p) for n, p in revision.job.secrets.items()
        }
        paths = directory.prepare(spec, secrets)
        see = partial(self._pinned, revision, f"{row.job.id}-{attempt.number}")
        mounts = self._mounts(revision, directory.secret, see) if self._shop.in_container else ()
        return self._request(row, revision, paths, image, devices, mounts)

    def dry_request(self, row: JobRow, attempt: Attempt, image: str) -> LaunchRequest:
        """Return what would be launched, with nothing made."""
        revision = parse_revision(row.revision)
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        mounts = self._mounts(revision, directory.secret, lambda _, source: source)
        return self._request(row, revision, paths, image, (), mounts)

    def _request(  # noqa: PLR0913, PLR0917  (one value per part of the answer)
        self,
        row: JobRow,
        revision: Resolved,
        paths: RunPaths,
        image: str,
        devices: tuple[Device, ...],
        mounts: tuple[Mount, ...],
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
            environment=dict(revision.job.environment),
            mounts=mounts,
            devices=devices,
            network=self._shop.network,
        )

    def _argv(self, paths: RunPaths) -> tuple[str, ...]:
        python = "python" if self._shop.in_container else sys.executable
        root = JOB_DIR if self._shop.in_container else paths.root
        numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
        return (python, "-P", "-m", "jobs", "--root", str(root), *numbers)

    @staticmethod
    def _mounts(
        revision: Resolved, secret: Callable[[str], Path], see: Callable[[int, Path], Path]
    ) -> tuple[Mount, ...]:
        """Return what the job sees of the host; ``see`` answers with what stands for each source."""
        asked = [(revision.base / m.source, Path(m.target), m.read_only) for m in revision.job.mounts]
        if revision.data is not None:
            asked.append((revision.data, Path(WORKLOAD_TARGET), True))
        mounts = [Mount(see(i, source), target, ro) for i, (source, target, ro) in enumerate(asked)]
        return (*mounts, *(Mount(secret(name), SECRETS_DIR / name) for name in revision.job.secrets))

    def _pinned(self, revision: Resolved, name: str, number: int, path: Path) -> Path:
        """Return what to mount for ``path``: something that its owner may read and can no longer swap."""
        if self._shop.pins:
            return self._shop.pins.pin(revision.person, path, f"{name}/{number}")
        problem = as_user.problem(revision.person, path, "either")
        if problem:
            raise UsageError(problem)
        return path.resolve()

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> Ended:
        """Return the evidence about an attempt that has ended; checkpoints are verified, not believed."""
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        result = directory.result(paths)
        step, rejected = directory.newest_checkpoint(paths)
        evidence = Evidence(
            exit_code=gone.exit_code,
            oom_seen=gone.oom_seen,
            engine_error=gone.error,
            result_cause=None if result is None else str(result.cause),
            result_message="" if result is None else result.message,
            reports=True,
        )
        cause, message = explain(evidence)
        return Ended(
            exit_code=gone.exit_code,
            cause=cause,
            message=" ".join(message.split())[:500],
            oom_seen=gone.oom_seen,
            completed=completed(evidence),
            checkpoint_step=step,
            checkpoints_rejected=rejected,
        )

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Keep the log of a running attempt within its quota."""
        quota = self._shop.log_quota_bytes
        log = self.paths(row, attempt.number, attempt.lineage).log
        log_quota.enforce(log, quota, quota // LOG_HEAD_SHARE, quota // 2)

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended: its secrets."""
        self.directory(row).forget_secrets()

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
        revision = parse_revision(row.revision)
        spec = revision.spec(row.job.id, attempt, in_container=self._shop.in_container)
        return json.loads(spec.model_dump_json())
