"""Verifying rollouts: a change that was made for its speed and does not deliver it is rolled back, once.

After such a change the new rate is measured like the old one.  If it brings less than half of the expected
speed-up, and a rollback would end sooner than going on, the job is rolled back to the revision before.  The
expectation belongs to the change and goes with it, so the job cannot oscillate between two revisions.
"""

from dataclasses import dataclass, field
from typing import Final

import structlog

from runner.base.errors import RunnerError, Unavailable
from runner.base.readable import readable_duration
from runner.base.threads import PeriodicThread
from runner.core.job.attempt import ExpectedSpeedup
from runner.core.job.states import Running
from runner.core.policy.economics import MIN_MEASUREMENTS, Rate, Work, misses_expectation
from runner.core.ports.store import JobRow
from runner.files.revision import parse_revision
from runner.services.rollout.service import RolloutService
from runner.services.rollout.throughput import measure_throughput, without_warm_up

log = structlog.get_logger()

PERIOD_S: Final = 2.0

LEAST: Final = MIN_MEASUREMENTS * 4 // 3 + 2
"""Lines before an attempt is measured: the first quarter of them may be slow, and is left out then."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeedup:
    """The result of a verification."""

    text: str
    roll_back: bool


def verify(promise: ExpectedSpeedup, rate: Rate, work: Work) -> MeasuredSpeedup:
    """Return the measured speed-up of a change; a rollback would start from the step ``work.saved``.

    It is rolled back only if that ends sooner at the rate that speaks against it.  Where the number of all
    steps is not known, that is so if it is slower than before.
    """
    faster = rate.mean / promise.rate
    said = f"{faster:.2f} times as fast, of {promise.faster:.2f} that were expected"
    if not misses_expectation(promise.faster, faster):
        return MeasuredSpeedup(f"the change keeps what it promised: {said}", roll_back=False)
    on_s = (work.total - work.done) / rate.high
    back_s = promise.back_s + (work.total - work.saved) / promise.rate
    if back_s < on_s if work.total else rate.high < promise.rate:
        return MeasuredSpeedup(f"the change brings too little: {said}", roll_back=True)
    if not work.total:
        return MeasuredSpeedup(f"the change brings less than half: {said}; it stays", roll_back=False)
    return MeasuredSpeedup(
        f"the change brings less than half: {said}; "
        f"but going back would take {readable_duration(back_s)}, and going on {readable_duration(on_s)}",
        roll_back=False,
    )


@dataclass(slots=True)
class RolloutVerifier:
    """Measures, on a thread of its own, the jobs that were changed for their speed."""

    rollouts: RolloutService
    _noted: dict[tuple[str, int], MeasuredSpeedup] = field(default_factory=dict)
    _settled: set[tuple[str, int]] = field(default_factory=set)
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = PeriodicThread("rollout-verifier", PERIOD_S, self.verify_all)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for no canary any more."""
        self._thread.stop()
        self.rollouts.canaries.stop()

    def verify_all(self) -> None:
        """Do one round: look at the steps of programs, and verify each job with an expected speed-up."""
        self.rollouts.canaries.step_times.look_at_all()
        for entry in list(self.rollouts.service.daemon.tracked_jobs.values()):
            row = entry.row
            if row.job.promise is not None and (row.job.id, row.job.revision) not in self._settled:
                self._verify_job(row, row.job.promise)

    def _verify_job(self, row: JobRow, promise: ExpectedSpeedup) -> None:
        """Note what a change has brought and roll it back if need be; what cannot be done now, later."""
        state, key = row.job.state, (row.job.id, row.job.revision)
        if not isinstance(state, Running) or state.attempt.revision != row.job.revision:
            return
        try:
            if key not in self._noted:
                found = self._measure(row, state, promise)
                if found is None:
                    return
                self._note(row, found)
                self._noted[key] = found
            if self._noted[key].roll_back:
                self._roll_back(row, promise, self._noted[key].text)
        except Unavailable as error:
            log.info("rollout.verified_later", job_id=row.job.id, problem=str(error))
            return
        self._settled.add(key)

    def _measure(self, row: JobRow, state: Running, promise: ExpectedSpeedup) -> MeasuredSpeedup | None:
        """Return what a change has brought, None if there are too few steps to say it."""
        service = self.rollouts.service
        attempt = state.attempt
        step_times = self.rollouts.canaries.step_times
        lines = step_times.of(row, attempt.number, attempt.lineage)
        seen = measure_throughput(without_warm_up(lines)) if len(lines) >= LEAST else None
        status = service.queries.progress(row)
        if seen is None or status is None or status.step is None:
            return None
        plan = parse_revision(row.revision).job.workload
        total = float(plan.known_steps or status.total_steps or 0)
        return verify(promise, seen.steps, Work(total, status.step, self._saved(row, promise)))

    def _note(self, row: JobRow, found: MeasuredSpeedup) -> None:
        service = self.rollouts.service
        now = service.clock.now()
        service.daemon.run_exclusively(
            lambda: service.store.note(row.job.id, now, "change_delivered", found.text)
        )

    def _roll_back(self, row: JobRow, promise: ExpectedSpeedup, why: str) -> None:
        try:
            self.rollouts.roll_back_to(row, promise.back_to, "the runner", why, since=promise.back_to + 1)
        except Unavailable:
            raise
        except RunnerError as error:
            log.info("rollout.rollback_refused", job_id=row.job.id, problem=str(error))

    def _saved(self, row: JobRow, promise: ExpectedSpeedup) -> float:
        """Return the step that a rollback would start from."""
        before = self.rollouts.service.store.revisions(row.job.id)
        lineage = next((each.lineage for each in before if each.number == promise.back_to), None)
        lineage = row.job.lineage if lineage is None else lineage
        saved = self.rollouts.service.attempt_service.saved(row, lineage)
        return float(saved.newest or 0)
