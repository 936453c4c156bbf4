"""Trying a change before a job is stopped for it: a hundred steps of the new revision, beside the old one.

A canary is a job of its own, from a copy of the newest checkpoint: it gets its place like any other, is
cleaned up like any other, and what it writes stays in its own directory, so neither the history nor the
lineage of the job that it is for can be touched.  It is tried once, has a time limit, saves nothing on its
way, and is cancelled when it has been measured, or when the daemon that began it is no longer there.

Where there is no room beside the job, the job makes room: it saves, is held, and goes on afterwards.  The
time for which it stood still is counted as the cost of the trial.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Final

import structlog

from jobs.contract import (
    MANIFEST,
    CheckpointInvalid,
    Program,
    checkpoint_name,
    open_regular,
    verify,
)
from runner.base.errors import Refused, RunnerError, Unavailable
from runner.base.threads import run_guarded
from runner.core.job.events import CancelRequested, HoldRequested, ReleaseRequested
from runner.core.job.model import Job
from runner.core.job.states import Finished, Held, Running
from runner.core.policy.change_class import ChangeClass
from runner.core.ports.store import JobRow
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.throughput import MetricsLine, measure_throughput, parse_metrics
from runner.services.rollout.trial import (
    LEAST_STEPS,
    LIMIT,
    Trial,
    TrialMeasurement,
    is_canary,
    saves_on_stop,
    trial_of,
)
from runner.services.submission.revision import Revision, parse_revision

log = structlog.get_logger()


PATIENCE_S: Final = 60.0
"""How long a job that has made room waits for somebody to decide, before it goes on as it was."""

POLL_S: Final = 0.2
METRICS_BYTES: Final = 4 * 1024**2
REPORT_BYTES: Final = 64 * 1024  # enough to see whether there are steps at all


@dataclass(slots=True)
class CanaryService:
    """The canaries of one daemon."""

    service: JobService
    _trials: dict[str, Trial] = field(default_factory=dict)
    _left: Flag = field(default_factory=Flag)

    def sweep(self) -> None:
        """Cancel what an earlier daemon has begun: nobody waits for it any more."""
        for row in self.service.store.unfinished():
            if is_canary(row):
                self._cancel(row.job.id)

    def find(self, job_id: str, parent: str) -> Trial | None:
        """Return a trial, None where there is none, or it was for another job."""
        trial = self._trials.get(job_id)
        return trial if trial is not None and trial.parent == parent else None

    def get(self, job_id: str, parent: str) -> Trial:
        """Return a trial.

        Raises:
            Refused: there is none, or it was for another job.
        """
        trial = self.find(job_id, parent)
        if trial is None:
            raise Refused(
                f"job {parent}: has no canary {job_id} that is still known; --canary N measures the change"
            )
        return trial

    # --- beginning

    @staticmethod
    def check(row: JobRow, steps: int) -> None:
        """Refuse what nobody needs to look into.

        Raises:
            Refused: too few steps, or the job does not run.
        """
        if steps < LEAST_STEPS:
            raise Refused(f"--canary {steps}: at least {LEAST_STEPS} steps are needed for a rate")
        if not isinstance(row.job.state, Running):
            raise Refused(f"job {row.job.id}: is {row.job.state.kind}; a canary is for a job that runs")

    def check_comparable(self, row: JobRow) -> None:
        """Refuse a job whose steps nobody can count: a program that reports none now will report none then.

        Raises:
            Refused: it is a program, and none of its attempts has reported a step.
        """
        if not isinstance(parse_revision(row.revision).job.workload, Program):
            return
        attempts = range(max(row.job.attempts, 1), 0, -1)
        service, lineage = self.service.attempt_service, row.job.lineage
        metrics = (service.metrics(row, number, lineage, REPORT_BYTES) for number in attempts)
        if not any(map(parse_metrics, metrics)):
            raise Refused(
                f"job {row.job.id}: has never reported a step, so a canary cannot be compared with it; "
                "let the program report steps (job.report), or apply without --canary"
            )

    def begin(self, caller: Caller, row: JobRow, offered: Revision, steps: int, kind: ChangeClass) -> Trial:
        """Return a trial that goes on by itself.

        Raises:
            Refused: there is no room, and the job cannot make it without losing work.
        """
        began = self.service.clock.now()
        parked = self._room(row, offered)
        with ExitStack() as on_failure:
            if parked:
                on_failure.callback(self._release, row.job.id)
            trial = self._submitted(caller, row, trial_of(offered, row.job), steps, kind, began)
            on_failure.pop_all()
        trial.parked = parked
        self._trials[trial.job_id] = trial
        Thread(target=self._see_through, args=(trial,), name="canary", daemon=True).start()
        return trial

    def _room(self, row: JobRow, offered: Revision) -> datetime | None:
        """Return since when the job stands still to make room, None where there is room beside it."""
        daemon = self.service.daemon

        def missing() -> str:
            return daemon.scheduler.unmet(row, offered.needs())

        lacks = daemon.run_exclusively(missing)
        if not lacks:
            return None
        if not saves_on_stop(parse_revision(row.revision)):
            raise Refused(
                f"job {row.job.id}: no room for a canary ({lacks}), and stopping the job for one would lose "
                "what it has not saved; free some room, or apply without --canary"
            )
        parked = self.service.clock.now()
        daemon.run_exclusively(
            lambda: daemon.apply_event(
                self.service.queries.current(row.job.id), HoldRequested(parked, "its canary")
            )
        )
        self._until(lambda: isinstance(self._job(row.job.id).state, Held | Finished), PATIENCE_S * 2)
        return parked

    def _submitted(  # noqa: PLR0913, PLR0917  (what a canary is made of)
        self, caller: Caller, row: JobRow, revision: Revision, steps: int, kind: ChangeClass, began: datetime
    ) -> Trial:
        service = self.service
        staged = service.state_dir / "jobs" / f".canary-{os.urandom(8).hex()}"

        def submit() -> JobRow:
            mine = service.submission.draft(
                service.submission.owner(caller), revision, service.store.next_id()
            )
            if staged.exists():
                staged.rename(staged.with_name(mine.job.id))
            service.daemon.submit((mine,), (f"canary of job {row.job.id} ({row.name}), {steps} steps",))
            return mine

        try:
            first = self._staged(staged, row) if kind not in {ChangeClass.D, ChangeClass.E} else 0
            made = service.daemon.run_exclusively(submit)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return Trial(row.job.id, made.job.id, steps, began, first)

    def _staged(self, staged: Path, row: JobRow) -> int:
        """Copy the newest valid checkpoint to where the canary will find it; return its step, 0 for none."""
        lineage = row.job.lineage
        own = self.service.attempt_service.directory(row)
        source = own.paths(row.job.attempts, lineage)
        newest = own.saved(source).newest
        if newest is None:
            return 0
        directory = self.service.attempt_service.open_directory(staged, row.owner)
        directory.create()
        try:
            directory.seed(1, partial(_copy, source.lineage_dir / checkpoint_name(newest)))
        except (OSError, CheckpointInvalid) as error:
            raise Refused(
                f"job {row.job.id}: checkpoint of step {newest} cannot be copied: {error}"
            ) from error
        return newest

    # --- seeing it through, on a thread of its own

    def _see_through(self, trial: Trial) -> None:
        def failed(error: Exception) -> None:
            trial.found = TrialMeasurement(None, 0.0, 0.0, trial.done, f"{type(error).__name__}: {error}")

        run_guarded("canary", partial(self._measured, trial), failed, job_id=trial.job_id)
        trial.over = self.service.clock.now()
        if trial.parked and not trial.decided.wait(PATIENCE_S) and not self._left.is_set():
            self._release(trial.parent)

    def _measured(self, trial: Trial) -> None:
        try:
            trial.found = self._measure(trial)
        except RunnerError as error:
            trial.found = TrialMeasurement(None, 0.0, 0.0, trial.done, str(error))

    def leave(self) -> None:
        """Wait no longer for any canary: the daemon leaves, and the next one takes them away."""
        self._left.set()
        for trial in self._trials.values():
            trial.decided.set()

    def _measure(self, trial: Trial) -> TrialMeasurement:
        """Wait for the steps, stop the canary, and return what it has shown."""
        self._until(lambda: bool(self._pointless(trial)) or self._advanced(trial), LIMIT.total_seconds())
        if self._left.is_set():
            raise Unavailable("the daemon has left")
        pointless = self._pointless(trial)
        stopped = self.service.clock.monotonic()
        ended = isinstance(self._job(trial.job_id).state, Finished)
        self._cancel(trial.job_id)
        self._until(lambda: isinstance(self._job(trial.job_id).state, Finished), PATIENCE_S * 2)
        stop_s = 0.0 if ended else self.service.clock.monotonic() - stopped
        if pointless:
            return TrialMeasurement(None, 0.0, stop_s, trial.done, f"{pointless}, so its canary was ended")
        written = self._metrics(trial.job_id)
        seen = measure_throughput(written)
        if seen is None:
            return TrialMeasurement(None, 0.0, stop_s, trial.done, self._why(trial))
        started = written[0].time - trial.began.timestamp() - 1 / seen.steps.mean
        return TrialMeasurement(seen, max(started, 0.0), stop_s, trial.done)

    def _advanced(self, trial: Trial) -> bool:
        """Return whether a canary has taken its steps, or ended."""
        written = self._metrics(trial.job_id)
        trial.done = max((line.step for line in written), default=trial.first) - trial.first
        return trial.done >= trial.steps or isinstance(self._job(trial.job_id).state, Finished | Held)

    def _pointless(self, trial: Trial) -> str:
        """Return why nobody needs a canary any more: its job has come to rest; empty while it has not."""
        state = self._job(trial.parent).state
        if isinstance(state, Finished):
            return f"job {trial.parent} has ended meanwhile ({state.outcome}: {state.why})"
        if isinstance(state, Held) and trial.parked is None:
            return f"job {trial.parent} was held meanwhile"
        return ""

    def _why(self, trial: Trial) -> str:
        ended = self.service.store.attempts(trial.job_id)
        said = next((row.message or row.cause for row in reversed(ended) if row.message or row.cause), "")
        return f"the canary ended after {trial.done} steps{f': {said}' if said else ''}"

    def _until(self, true: Callable[[], bool], patience_s: float) -> None:
        """Return when something is so, or when patience is at its end."""
        pause, deadline = Flag(), self.service.clock.monotonic() + patience_s
        while not self._left.is_set() and not true() and self.service.clock.monotonic() < deadline:
            pause.wait(POLL_S)

    def _job(self, job_id: str) -> Job:
        return self.service.queries.find(job_id).job

    def _metrics(self, job_id: str) -> tuple[MetricsLine, ...]:
        """Return the metrics that a canary has written."""
        row = self.service.queries.find(job_id)
        return parse_metrics(self.service.attempt_service.metrics(row, 1, 1, METRICS_BYTES))

    def _cancel(self, job_id: str) -> None:
        event = CancelRequested(self.service.clock.now(), "its canary's end")
        service = self.service

        def cancel() -> None:
            row = service.queries.current(job_id)
            if not isinstance(row.job.state, Finished):
                service.daemon.apply_event(row, event)

        service.daemon.run_exclusively(cancel)

    def go_on(self, trial: Trial) -> None:
        """Let a job that has stood still for its canary go on, now that somebody has decided."""
        if trial.parked:
            self._release(trial.parent)

    def _release(self, job_id: str) -> None:
        """Let a job that has made room go on as it was."""
        service = self.service
        event = ReleaseRequested(service.clock.now(), "the end of its canary")

        def release() -> None:
            row = service.queries.current(job_id)
            if isinstance(row.job.state, Held):
                service.daemon.apply_event(row, event)

        service.daemon.run_exclusively(release)


def _copy(origin: Path, target: Path) -> None:
    """Copy one checkpoint out of a hostile directory: it is held meanwhile, and no link is followed."""
    held = os.open(origin, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        pinned, there = Path(f"/proc/self/fd/{held}"), target / origin.name
        there.mkdir(mode=0o700)
        for name in (*verify(pinned).files, MANIFEST):
            with open_regular(pinned / name) as old, (there / name).open("xb") as new:
                shutil.copyfileobj(old, new, 1024**2)
    finally:
        os.close(held)
