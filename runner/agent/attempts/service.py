"""The attempts of this host, as the control loop and the other services know them.

It joins the revision, the run directory and the images, so that the control loop knows none of them.
"""

import json
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextvars import copy_context
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from jobs.contract import Program, RunPaths
from runner.agent.attempts.checkpoints import read_saved
from runner.agent.attempts.examine import ExaminedAttempt, examine_exit, probe_progress
from runner.agent.attempts.prepare import AttemptConfig, LaunchPreparer, attempt_spec
from runner.agent.interface import ExitFindings, PinnedPolicy, PreparedLaunch, ProgressProbe, QueueTerms
from runner.agent.ports import OpenRunDirectory, RunDirectory
from runner.base.readable import readable_size
from runner.base.threads import run_to_future
from runner.base.waiting import check_wanted
from runner.core.job.attempt import Attempt
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.devices import Device
from runner.core.ports.executor import Gone, LaunchRequest
from runner.core.ports.network import NOT_SEPARATED, NetworkState
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, JobArray, ResourceRequest
from runner.files.job.model import Retry
from runner.files.policy import job_policy as of_job
from runner.files.revision import Revision, cached_by_revision, parse_revision

T = TypeVar("T")

MIB: Final = 1024**2
LEAST_ROOM_BYTES: Final = MIB
"""With less on its disk no attempt is asked to save."""

UNMET_LIMITS_S: Final = {"cancel": 0.0, "wait": None, None: 3600.0}
"""Stay of a job once a job that it waits for has ended otherwise, by ``queue.on_unmet``: the other one
may be restarted meanwhile."""

POLL_S: Final = 0.2
"""Between two looks whether the result of work is still wanted."""

LOG_HEAD_SHARE: Final = 4  # a quarter of the quota for the beginning of a log, the rest for its end


@cached_by_revision
def _needs(revision: Revision) -> ResourceRequest:
    """Return the resource request of a revision; the loop often asks for it, for each waiting job."""
    return revision.needs()


@cached_by_revision
def _terms(revision: Revision) -> QueueTerms:
    """Return the queue terms of a revision."""
    queue, sweep = revision.job.queue, revision.sweep
    saves = not isinstance(revision.job.workload, Program) and revision.job.checkpoint.on_stop
    return QueueTerms(
        team=revision.team,
        priority_class=queue.priority_class,
        not_before=queue.not_before,
        after=(
            *(Dependency(job_id, condition) for job_id, condition in revision.after),
            *(Dependency(group[0], DependencyCondition.FAILED, group) for group in revision.one_failed),
        ),
        unmet_limit_s=UNMET_LIMITS_S[queue.on_unmet],
        sweep=None
        if sweep is None
        else JobArray(
            sweep.id,
            sweep.at_a_time,
            sweep.max_failures,
            sweep.count,
            revision.job.name.removesuffix(f"-{sweep.number}"),
        ),
        saves_when_asked=bool(saves),
        preemptible=queue.preemptible,
        sweep_terms=None if revision.job.sweep is None else revision.job.sweep.terms(),
    )


@lru_cache(maxsize=512)
def _directory(open_directory: OpenRunDirectory, root: Path, owner: Owner) -> RunDirectory:
    """Return the run directory of a job; it stays the same until the job has ended."""
    return open_directory(root, owner)


@lru_cache(maxsize=512)
def _pinned_policy(text: str | None, retry: Retry, wall: timedelta | None) -> PinnedPolicy:
    """Return a policy with its digest; this takes a millisecond, and most jobs share a few policies."""
    policy = of_job.tighten_policy(of_job.deserialize_policy(text), retry, wall)
    return PinnedPolicy(policy, of_job.describe_digest(text, policy))


class AttemptService:
    """Satisfies ``runner.agent.interface.Agent``."""

    def __init__(self, config: AttemptConfig) -> None:
        self._config = config
        self._launches = LaunchPreparer(config)

    # --- run directories

    def directory(self, row: JobRow) -> RunDirectory:
        return _directory(self._config.open_directory, self._config.jobs_dir / row.job.id, row.owner)

    def open_directory(self, root: Path, owner: Owner) -> RunDirectory:
        return self._config.open_directory(root, owner)

    def paths(self, row: JobRow, attempt: int, lineage: int) -> RunPaths:
        return self.directory(row).paths(attempt, lineage)

    def metrics(self, row: JobRow, attempt: int, lineage: int, limit: int) -> bytes:
        directory = self.directory(row)
        return directory.tail(directory.paths(attempt, lineage).metrics, limit)

    def saved(self, row: JobRow, lineage: int) -> SavedCheckpoints:
        directory = self.directory(row)
        paths = directory.paths(max(row.job.attempts, 1), lineage)
        return read_saved(directory, paths, row, Verification.KNOWN)

    def network(self, row: JobRow) -> tuple[str, NetworkState]:
        network, access = self._config.network, parse_revision(row.revision).network
        if network is None and self._config.in_container:  # containers on nodes, which have none
            return "none", NetworkState(holds=True)
        if network is None:
            return "host", NetworkState(holds=False, problem=NOT_SEPARATED)
        is_outbound = network.is_for_all if access is None else access == "outbound"
        return ("outbound", network.state()) if is_outbound else ("none", NetworkState(holds=True))

    # --- what a revision says; cached, and does not block

    @staticmethod
    def needs(row: JobRow) -> ResourceRequest:
        turned = row.job.turned
        if turned.memory_bytes is None and turned.nodes is None:
            return _needs(row.text)
        return parse_revision(row.revision).needs(turned)

    @staticmethod
    def terms(row: JobRow) -> QueueTerms:
        return _terms(row.text)

    @staticmethod
    def policy(row: JobRow) -> PinnedPolicy:
        """Return the policy of a job, under the time limit of its newest revision: that applies at once."""
        revision = parse_revision(row.revision)
        return _pinned_policy(revision.policy, revision.job.retry, row.job.time_limit)

    # --- before a launch

    def prepare_image(self, row: JobRow) -> str:
        return self._launches.prepare_image(row, self.directory(row))

    def prepare_launch(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> PreparedLaunch:
        return self._launches.prepare(row, attempt, self.directory(row), image, devices)

    def preview_launch(self, row: JobRow, attempt: Attempt, image: str) -> LaunchRequest:
        return self._launches.preview(row, attempt, self.directory(row), image)

    def spec_json(self, row: JobRow, attempt: Attempt) -> Any:  # noqa: ANN401  (JSON)
        return json.loads(self._launches.spec(row, attempt).model_dump_json())

    def highest_numbers(self, row: JobRow) -> tuple[int, int]:
        return self.directory(row).highest_numbers()

    def is_lineage_locked(self, row: JobRow, attempt: Attempt) -> bool:
        return self.directory(row).is_lineage_locked(self.paths(row, attempt.number, attempt.lineage))

    def release_launch(self, row: JobRow) -> None:
        """Unpin the mount sources of a job; a container that runs keeps them."""
        self._launches.release(f"{row.job.id}-")

    def sweep(self) -> None:
        """Unpin the mount sources of an earlier daemon that was killed during a launch."""
        self._launches.release("")

    # --- while an attempt runs, and when it has ended

    def probe(self, row: JobRow, attempt: Attempt) -> ProgressProbe:
        run, now = self._examined(row, attempt), self._config.clock.now()
        run.directory.note_log_size(run.paths, now.timestamp())
        return probe_progress(run, now)

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        run, now = self._examined(row, attempt), self._config.clock.now()
        return examine_exit(run, row.job.state, gone, self.policy(row), now)

    def _examined(self, row: JobRow, attempt: Attempt) -> ExaminedAttempt:
        spec = attempt_spec(row.revision, row.job.id, attempt, self._config.in_container)
        revision, in_container = parse_revision(row.revision), self._config.in_container
        paths_in_code = partial(self._paths_in_code, revision)
        return ExaminedAttempt(attempt, revision, spec, self.directory(row), in_container, paths_in_code)

    def _paths_in_code(self, revision: Revision) -> Collection[str]:
        """Return the paths in the snapshot of a job's code; none if it is not kept."""
        snapshots, code = self._config.code, revision.code
        found = None if snapshots is None or code is None else snapshots.entries(revision.uid, code.snapshot)
        return () if found is None else found

    def save_decision(self, row: JobRow, decision: DecisionRow) -> None:
        self.directory(row).keep(decision.attempt, f"{decision.moment}.json", decision.body + "\n")

    def tell_terminals(self, row: JobRow, attempt: Attempt, text: str) -> None:
        directory = self.directory(row)
        directory.tell_terminals(directory.paths(attempt.number, attempt.lineage), text)

    def limit_log(self, row: JobRow, attempt: Attempt) -> None:
        quota, directory = self._config.log_quota_bytes, self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        directory.limit_log(paths, quota, quota // LOG_HEAD_SHARE, quota // 2)

    def clean_up(self, row: JobRow) -> None:
        self._config.images.leave(row.job.id)
        if self._config.packages is not None:
            self._config.packages.leave(row.job.id)
        self.clean_up_files(row)

    def clean_up_files(self, row: JobRow) -> None:
        self.directory(row).forget_secrets()
        self.directory(row).remove_drafts()

    def has_decision(self, row: JobRow, decision: DecisionRow) -> bool:
        return self.directory(row).has_kept(decision.attempt, f"{decision.moment}.json")

    def lacks_room_to_save(self, row: JobRow, attempt: Attempt) -> str:
        directory = self.directory(row)
        paths = directory.paths(attempt.number, attempt.lineage)
        if not self.terms(row).saves_when_asked:
            status = directory.status(paths)
            on_stop = parse_revision(row.revision).job.checkpoint.on_stop
            if status is None or not status.saves_when_asked or not on_stop:
                return ""
        room = directory.room_to_save(paths)
        if room is None or room.free_bytes >= max(room.newest_bytes, LEAST_ROOM_BYTES):
            return ""
        takes = f"its newest checkpoint takes {readable_size(room.newest_bytes)}"
        return f"its disk has {readable_size(room.free_bytes)} left, and {takes}"

    def run_in_turn(self, row: JobRow, work: Callable[[], T]) -> T:
        """Do the work on a thread of the verification queue."""
        future: Future[T] = Future()
        in_context = partial(copy_context().run, work)
        self._config.verification_queue.put(row.owner.name, partial(run_to_future, future, in_context))
        try:
            while not wait([future], POLL_S).done:
                check_wanted()
        finally:
            future.cancel()
        return future.result()

    def stop_verifying(self) -> None:
        self._config.stop_verifying()

    def close(self) -> None:
        self._config.images.close()
        if self._config.network is not None:
            self._config.network.close()
        if self._config.packages is not None:
            self._config.packages.close()
