"""Canaries: a change is measured for some steps before a job is stopped for it.

A canary is a job of its own that runs the new revision from a copy of the newest checkpoint.  The scheduler
places it like any other job, and it writes to a run directory of its own, so neither the history nor the
lineage of its parent job can change.  It has one attempt and a time limit, saves nothing on its way, and is
cancelled when it has been measured, or when the daemon that started it is gone.

If there is no room beside the parent, the parent is held: it saves and gives its resources back until
somebody has decided.  That time is spent whatever is decided, and speaks for none of the alternatives.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Thread

from jobs.contract import CheckpointInvalid, Program
from runner.agent.attempts.checkpoints import program_files
from runner.agent.ports import RunDirectory
from runner.base.errors import Refused
from runner.base.waiting import check_wanted
from runner.core.job.events import HoldRequested
from runner.core.job.revision_text import total_size
from runner.core.job.states import Finished, Held, Running
from runner.core.policy.change_class import ChangeClass
from runner.core.ports.store import JobRow
from runner.files.revision import Revision, parse_revision
from runner.services.context import Caller
from runner.services.job_control import CANARY
from runner.services.jobs import JobService
from runner.services.rollout.measurement import MAX_WAIT_S, TrialMeasurer
from runner.services.rollout.progress import StepTimes, saves_when_asked
from runner.services.rollout.throughput import FEW, measure_throughput
from runner.services.rollout.trial import MIN_STEPS, Trial, canary_revision, is_canary


@dataclass(slots=True)
class CanaryService:
    """The canaries of one daemon."""

    service: JobService
    _trials: dict[str, Trial] = field(default_factory=dict)
    step_times: StepTimes = field(init=False)
    _measurer: TrialMeasurer = field(init=False)

    def __post_init__(self) -> None:
        self.step_times = StepTimes(self.service)
        self._measurer = TrialMeasurer(self.service, self.step_times)

    def cancel_orphans(self) -> None:
        """Cancel the canaries of an earlier daemon: nobody waits for their results."""
        for tracked in list(self.service.daemon.tracked_jobs.values()):
            if is_canary(tracked.row):
                self._measurer.cancel(tracked.row.job.id)

    def stop(self) -> None:
        """Wait for no canary any more: the daemon stops, and the next daemon cancels them."""
        self._measurer.stopped.set()
        for trial in self._trials.values():
            trial.decided.set()

    def find(self, job_id: str, parent: str) -> Trial | None:
        """Return the trial of a canary; None if there is none, or if it has another parent."""
        trial = self._trials.get(job_id)
        return trial if trial is not None and trial.parent == parent else None

    def get(self, job_id: str, parent: str) -> Trial:
        """Return the trial of a canary.

        Raises:
            Refused: there is none, or it has another parent.
        """
        trial = self.find(job_id, parent)
        if trial is None:
            raise Refused(
                f"job {parent}: has no canary {job_id} that is still known; --canary N measures the change"
            )
        return trial

    def release_parent(self, trial: Trial) -> None:
        """Release a job that was held for its canary, after the decision."""
        if trial.parked:
            self._measurer.release(trial.parent)

    # --- starting one

    @staticmethod
    def check(row: JobRow, steps: int) -> None:
        """Check what can be checked without reading anything.

        Raises:
            Refused: the steps are too few, or the job does not run.
        """
        if steps < MIN_STEPS:
            raise Refused(f"--canary {steps}: at least {MIN_STEPS} steps are needed for a rate")
        if not isinstance(row.job.state, Running):
            raise Refused(f"job {row.job.id}: is {row.job.state.kind}; a canary is for a job that runs")

    def check_comparable(self, row: JobRow) -> None:
        """Check that the job tells its steps: a program that has told none yet will not start to.

        Raises:
            Refused: it is a program, and none of its attempts has told a step.
        """
        is_program = isinstance(parse_revision(row.revision).job.workload, Program)
        if is_program and not self.step_times.has_reported(row):
            raise Refused(
                f"job {row.job.id}: has never reported a step, so a canary cannot be compared with it; "
                "let the program report steps (job.report), or let progress.pattern find them in its log"
            )

    def start(self, caller: Caller, row: JobRow, offered: Revision, steps: int, kind: ChangeClass) -> Trial:
        """Start a canary, and return its trial; a thread measures it.

        Raises:
            Refused: there is no room, and the job would lose work if it were held; or both would save to
                one directory.
        """
        wanted = program_files(offered)
        if wanted is not None and wanted.mount:
            raise Refused(
                f"job {row.job.id}: saves to the mount {wanted.mount}, which its canary would write to, too; "
                "apply without --canary"
            )
        began = self.service.clock.now()
        parked = self._make_room(row, offered)
        with ExitStack() as on_failure:
            if parked:
                on_failure.callback(self._measurer.release, row.job.id)
            first = self._submit(caller, row, canary_revision(offered, row.job, steps), steps, kind)
            on_failure.pop_all()
        trial = Trial(row.job.id, first[0], steps, began, first[1], parked)
        self._trials[trial.job_id] = trial
        Thread(target=self._measurer.run, args=(trial,), name="canary", daemon=True).start()
        return trial

    def check_room(self, row: JobRow, offered: Revision) -> None:
        """Check that a canary runs beside the job.

        Raises:
            Refused: the job would be held for it.
        """
        if unmet := self._unmet(row, offered):
            raise Refused(
                f"job {row.job.id}: no room for a canary ({unmet}), and a dry run does not hold the job for "
                "one; leave --dry-run out, or free some room"
            )

    def _unmet(self, row: JobRow, offered: Revision) -> str:
        daemon = self.service.daemon
        return daemon.run_exclusively(lambda: daemon.scheduler.unmet(row, offered.needs()))

    def _make_room(self, row: JobRow, offered: Revision) -> datetime | None:
        """Hold the job if there is no room beside it; return since when it is held, None if it is not."""
        daemon = self.service.daemon
        unmet = self._unmet(row, offered)
        if not unmet:
            return None
        saving = saves_when_asked(self.service, row, parse_revision(row.revision))
        if not saving.on_demand:
            why = f" ({saving.why})" if saving.why else ""
            raise Refused(
                f"job {row.job.id}: no room for a canary ({unmet}), and stopping the job for one would lose "
                f"what it has not saved{why}; free some room, or apply without --canary"
            )
        running = row.job.state
        if isinstance(running, Running):
            written = self.step_times.of(row, running.attempt.number, running.attempt.lineage)
            if measure_throughput(written, least=FEW) is None:
                raise Refused(
                    f"job {row.job.id}: has reported too few steps to be compared with a canary for which it "
                    "would have to stand still; try again when its rate is known"
                )
        parked = self.service.clock.now()
        hold, job_id = HoldRequested(parked, CANARY), row.job.id
        daemon.run_exclusively(lambda: daemon.apply_event(self.service.queries.current(job_id), hold))
        self._measurer.wait_until(
            lambda: isinstance(self._measurer.state_of(job_id), Held | Finished), MAX_WAIT_S * 2
        )
        return parked

    def _submit(
        self, caller: Caller, row: JobRow, revision: Revision, steps: int, kind: ChangeClass
    ) -> tuple[str, int | None]:
        """Submit a canary; return its id and the step that it starts from, None if it is unknown."""
        service = self.service
        root = service.state_dir / "jobs" / f".canary-{os.urandom(8).hex()}"
        staged = service.attempt_service.open_directory(root, row.owner)

        def submit() -> JobRow:
            owner = service.submission.owner(caller)
            own = service.submission.draft(owner, revision, service.store.next_id())
            service.submission.check_size(owner.name, total_size([own.text]), f"canary of job {row.job.id}")
            staged.move(own.job.id)
            service.daemon.submit((own,), (f"canary of job {row.job.id} ({row.name}), {steps} steps",))
            return own

        try:
            first = self._stage_checkpoint(staged, row) if kind not in {ChangeClass.D, ChangeClass.E} else 0
            own = service.daemon.run_exclusively(submit)
        finally:
            staged.remove()
        return own.job.id, first

    def _stage_checkpoint(self, staged: RunDirectory, row: JobRow) -> int | None:
        """Copy the newest valid checkpoint into a staged run directory; return its step, 0 for none.

        Of what a program saves on its own, the step is unknown: it may have saved once more.
        """
        attempt_service, lineage = self.service.attempt_service, row.job.lineage
        saved = attempt_service.saved(row, lineage)
        newest = saved.newest
        if newest is None:
            if not saved.complete:
                raise Refused(f"job {row.job.id}: no canary can begin: {'; '.join(saved.unverified)}")
            return 0
        own = attempt_service.directory(row)
        paths = own.paths(max(row.job.attempts, 1), lineage)
        wanted = program_files(parse_revision(row.revision))
        staged.create()

        def fill(draft: Path) -> None:
            if wanted is None:
                own.copy_checkpoint(paths, newest, draft, check_wanted)
            else:
                own.copy_program_checkpoint(paths, wanted, draft, check_wanted)

        try:
            attempt_service.run_in_turn(row, lambda: staged.seed(1, fill))
        except (OSError, CheckpointInvalid) as error:
            raise Refused(
                f"job {row.job.id}: checkpoint of step {newest} cannot be copied: {error}"
            ) from error
        return newest if wanted is None else None
