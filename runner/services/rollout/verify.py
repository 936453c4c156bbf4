"""Holding changes to what they were made for: one that does not deliver is taken back, once.

After a change that was made for its speed the new rate is measured like the old one.  If it brings less
than half of what was promised, and going back would end sooner than going on, the job goes back to the
revision before.  The promise goes with the change, so nothing swings to and fro.
"""

from dataclasses import dataclass, field
from typing import Final

import structlog

from runner.base.errors import RunnerError
from runner.base.threads import PeriodicThread
from runner.core.job.attempt import ExpectedSpeedup
from runner.core.job.states import Running
from runner.core.policy.economics import Rate, Work, misses_expectation
from runner.core.ports.store import JobRow
from runner.services.rollout.service import RolloutService
from runner.services.rollout.throughput import METRICS_BYTES, measure_throughput, parse_metrics
from runner.services.submission.revision import parse_revision

log = structlog.get_logger()

LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class MeasuredSpeedup:
    """What became of a promise."""

    text: str
    back: bool


def verify(promise: ExpectedSpeedup, rate: Rate, work: Work) -> MeasuredSpeedup:
    """Return what a change has brought; ``work.saved`` is what going back would begin with."""
    faster = rate.mean / promise.rate
    said = f"{faster:.2f} times as fast, of {promise.faster:.2f} that were measured before"
    if not misses_expectation(promise.faster, faster):
        return MeasuredSpeedup(f"the change keeps what it promised: {said}", back=False)
    on_s, back_s = (work.total - work.done) / rate.mean, (work.total - work.saved) / promise.rate
    if back_s < on_s:
        return MeasuredSpeedup(f"the change brings too little: {said}", back=True)
    return MeasuredSpeedup(
        f"the change brings less than half: {said}; "
        f"but going back would take {back_s:.0f} s, and going on {on_s:.0f} s",
        back=False,
    )


@dataclass(slots=True)
class RolloutVerifier:
    """Looks at jobs that were changed, on a thread of its own, until it knows what became of the change."""

    rollouts: RolloutService
    _settled: set[tuple[str, int]] = field(default_factory=set)
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = PeriodicThread("rollout-verifier", LOOK_S, self.look)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        self.rollouts.canaries.stop()

    def look(self) -> None:
        """Look once at every job that has a promise to keep."""
        for entry in list(self.rollouts.service.daemon.tracked_jobs.values()):
            row = entry.row
            if row.job.promise is not None and (row.job.id, row.job.revision) not in self._settled:
                self._look_at(row, row.job.promise)

    def _look_at(self, row: JobRow, promise: ExpectedSpeedup) -> None:
        state, service = row.job.state, self.rollouts.service
        if not isinstance(state, Running) or state.attempt.revision != row.job.revision:
            return
        attempt = state.attempt
        written = service.attempt_service.metrics(row, attempt.number, attempt.lineage, METRICS_BYTES)
        seen = measure_throughput(parse_metrics(written))
        status = service.queries.progress(row)
        if seen is None or status is None:
            return
        self._settled.add((row.job.id, row.job.revision))
        plan = parse_revision(row.revision).job.workload
        found = verify(
            promise,
            seen.overall(getattr(plan, "eval_every", None)),
            Work(float(getattr(plan, "steps", None) or 0), status.step, self._saved(row, promise)),
        )
        now = service.clock.now()
        service.daemon.run_exclusively(
            lambda: service.store.note(row.job.id, now, "change_delivered", found.text)
        )
        if found.back:
            self._back(row, promise, found.text)

    def _back(self, row: JobRow, promise: ExpectedSpeedup, why: str) -> None:
        try:
            self.rollouts.back(row, promise.back_to, "the runner", why)
        except RunnerError as error:
            log.info("keeper.not_taken_back", job_id=row.job.id, problem=str(error))

    def _saved(self, row: JobRow, promise: ExpectedSpeedup) -> float:
        """Return the step that the revision before would go on from."""
        before = self.rollouts.service.store.revisions(row.job.id)
        lineage = next((each.lineage for each in before if each.number == promise.back_to), None)
        saved = self.rollouts.saved(row, row.job.lineage if lineage is None else lineage)
        return float(saved.newest or 0)
