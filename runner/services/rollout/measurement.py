"""Measuring a canary, on a thread of its own: wait for its steps, cancel it, and note what it has shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from threading import Event
from typing import Final

from runner.base.errors import RunnerError, Unavailable
from runner.base.threads import run_guarded
from runner.core.job.events import CancelRequested, ReleaseRequested
from runner.core.job.states import Finished, Held, Running, State
from runner.core.policy.economics import MIN_MEASUREMENTS
from runner.services.job_control import CANARY
from runner.services.jobs import JobService
from runner.services.rollout.progress import StepTimes
from runner.services.rollout.throughput import (
    FEW,
    MetricsLine,
    measure_throughput,
    seconds_to_first_step,
    span_of,
    without_warm_up,
)
from runner.services.rollout.trial import TIME_LIMIT, Trial, TrialMeasurement

MAX_WAIT_S: Final = 60.0
"""Longest wait of a job that is held for its canary for a decision; then it is released."""

POLL_S: Final = 0.2

LONGEST: Final = 4
"""Most steps of a canary, as a multiple of those it is to take, until its parent has taken some beside it."""


@dataclass(frozen=True, slots=True)
class TrialMeasurer:
    """Measures the canaries of one daemon."""

    service: JobService
    step_times: StepTimes
    stopped: Event = field(default_factory=Event)  # the daemon stops

    def run(self, trial: Trial) -> None:
        """Measure a canary, then release its parent unless a decision comes in time."""

        def failed(error: BaseException) -> None:
            trial.found = TrialMeasurement(None, 0.0, 0.0, trial.done, f"{type(error).__name__}: {error}")

        run_guarded("canary", partial(self._measure_or_explain, trial), failed, job_id=trial.job_id)
        trial.over = self.service.clock.now()
        if trial.parked and not trial.decided.wait(MAX_WAIT_S) and not self.stopped.is_set():
            self.release(trial.parent)

    def _measure_or_explain(self, trial: Trial) -> None:
        try:
            trial.found = self._measure(trial)
        except RunnerError as error:
            trial.found = TrialMeasurement(None, 0.0, 0.0, trial.done, str(error))

    def _measure(self, trial: Trial) -> TrialMeasurement:
        """Wait for the steps, cancel the canary, and return what it has shown."""
        limit_s = TIME_LIMIT.total_seconds()
        self.wait_until(lambda: bool(self._obsolete(trial)) or self._has_advanced(trial), limit_s)
        if self.stopped.is_set():
            raise Unavailable("the daemon has stopped")
        obsolete = self._obsolete(trial)
        began_s = self.service.clock.monotonic()
        had_ended = isinstance(self.state_of(trial.job_id), Finished)
        self.cancel(trial.job_id)
        self.wait_until(lambda: isinstance(self.state_of(trial.job_id), Finished), MAX_WAIT_S * 2)
        stop_s = 0.0 if had_ended else self.service.clock.monotonic() - began_s
        if obsolete:
            return TrialMeasurement(None, 0.0, stop_s, trial.done, f"{obsolete}, so its canary was ended")
        lines = self._metrics(trial.job_id)
        steady = without_warm_up(lines)
        throughput = measure_throughput(steady)
        if throughput is None:
            return TrialMeasurement(None, 0.0, stop_s, trial.done, self._explain_end(trial))
        start_s = seconds_to_first_step(lines, self._launched(trial), throughput.steps.mean, steady)
        return TrialMeasurement(throughput, start_s, stop_s, trial.done, span=span_of(steady))

    def _launched(self, trial: Trial) -> datetime:
        """Return the launch of a canary: it may have waited in the queue before."""
        attempts = self.service.store.attempts(trial.job_id)
        return next((each.launched_at for each in attempts if each.launched_at), trial.began)

    def _has_advanced(self, trial: Trial) -> bool:
        """Return True if a canary has done its steps or ended; its progress is noted."""
        lines = self._metrics(trial.job_id)
        if not lines:
            return isinstance(self.state_of(trial.job_id), Finished | Held)
        # A program that does not resume from the copy of the checkpoint begins at step 0.
        first = lines[0].step - 1 if trial.first is None else min(trial.first, lines[0].step - 1)
        trial.done = max(line.step for line in lines) - first
        enough = trial.done >= trial.steps and sum(line.trained for line in lines) > MIN_MEASUREMENTS
        has_ended = isinstance(self.state_of(trial.job_id), Finished | Held)
        return has_ended or (enough and self._is_comparable(trial, lines))

    def _is_comparable(self, trial: Trial, lines: Sequence[MetricsLine]) -> bool:
        """Return True if the parent has taken steps beside its canary, or is not waited for any longer."""
        if trial.parked is not None or trial.done >= trial.steps * LONGEST:
            return True
        parent = self.service.queries.find(trial.parent)
        if not isinstance(parent.job.state, Running):
            return True
        attempt = parent.job.state.attempt
        written = self.step_times.of(parent, attempt.number, attempt.lineage)
        return measure_throughput(written, span_of(lines), least=FEW) is not None

    def _obsolete(self, trial: Trial) -> str:
        """Return the reason why a canary is not needed any more; empty while it is."""
        state = self.state_of(trial.parent)
        if isinstance(state, Finished):
            return f"job {trial.parent} has ended meanwhile ({state.outcome}: {state.why})"
        if isinstance(state, Held) and trial.parked is None:
            return f"job {trial.parent} was held meanwhile"
        return ""

    def _explain_end(self, trial: Trial) -> str:
        attempts = self.service.store.attempts(trial.job_id)
        messages = (row.message or row.cause for row in reversed(attempts))
        message = next((each for each in messages if each), "")
        return f"the canary ended after {trial.done} steps{f': {message}' if message else ''}"

    def _metrics(self, job_id: str) -> tuple[MetricsLine, ...]:
        """Return the metrics that a canary has written."""
        return self.step_times.of(self.service.queries.find(job_id), 1, 1)

    # --- shared with the service of canaries

    def state_of(self, job_id: str) -> State:
        """Return the present state of a job."""
        return self.service.queries.find(job_id).job.state

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Wait until a condition holds, when the limit is over, or when the daemon stops."""
        deadline = self.service.clock.monotonic() + limit_s
        while not self.stopped.is_set() and not condition() and self.service.clock.monotonic() < deadline:
            self.stopped.wait(POLL_S)

    def cancel(self, job_id: str) -> None:
        """Cancel a canary that has not ended."""
        service, event = self.service, CancelRequested(self.service.clock.now(), "its canary's end")

        def cancel() -> None:
            row = service.queries.current(job_id)
            if not isinstance(row.job.state, Finished):
                service.daemon.apply_event(row, event)

        service.daemon.run_exclusively(cancel)

    def release(self, job_id: str) -> None:
        """Release a job that is held for its canary, and not for another reason meanwhile."""
        service, event = self.service, ReleaseRequested(self.service.clock.now(), "the end of its canary")

        def release() -> None:
            row = service.queries.current(job_id)
            if isinstance(row.job.state, Held) and row.job.state.why == f"held by {CANARY}":
                service.daemon.apply_event(row, event)

        service.daemon.run_exclusively(release)
