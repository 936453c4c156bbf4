"""Interface of the control loop for its callers: submit, apply an event, signal, why, snapshot.

Only ``why`` and ``run_exclusively`` may be called from any thread without more ado; everything else is
called inside of ``run_exclusively``.  How a job is advanced is in ``loop``.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from runner.base.errors import Refused
from runner.control.context import TrackedJob
from runner.control.loop import ControlLoop
from runner.control.messages import Call
from runner.control.transitions import requested_transition
from runner.core.job.events import Event
from runner.core.job.states import Running, Stopping
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.scheduler.snapshot import Snapshot

T = TypeVar("T")


class Controller(ControlLoop):
    """The control loop as services see it."""

    # --- from any thread

    def run_exclusively(self, work: Callable[[], T]) -> T:
        """Do ``work`` between two iterations of the loop, and return what it returns or raises."""
        return self.exclusive.run(work)

    def wake(self) -> None:
        """Let the loop do an iteration soon."""
        self.exclusive.wake()

    def why(self, job_id: str) -> str:
        """Return the reason why an unfinished job waits; empty when it waits for nothing."""
        tracked = self.tracked_jobs.get(job_id)
        if tracked is None or not tracked.why:
            return self.scheduler.why(tracked) if tracked else ""
        tried = self.dispatcher.retries.tried(job_id, self.context.clock.monotonic())
        return f"{tracked.why} ({tried})" if tried else tracked.why

    # --- in the exclusive section

    def submit(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Accept jobs that belong together, all or none; the first carries the token of the submission."""
        self.context.store.add_all(rows, texts, token)
        for row in rows:  # the caller is answered before a command is executed
            tracked = self.track(row)
            self.inbox.put(Call(partial(self.dispatcher.execute_implied, tracked)))
        self.changed([row.job.id for row in rows])

    def apply_event(self, row: JobRow, event: Event, decision: DecisionRow | None = None) -> JobRow:
        """Apply an event that a person asked for, and return the job after it; see ``apply_event_to_all``."""
        return self.apply_event_to_all((row,), event, decision)[0]

    def apply_event_to_all(
        self, rows: Iterable[JobRow], event: Event, decision: DecisionRow | None = None
    ) -> tuple[JobRow, ...]:
        """Apply an event to several jobs, to all or to none, and return them after it.

        Raises:
            Refused: one of them is in no state for it.
        """
        jobs = [self.tracked_jobs.get(row.job.id) or TrackedJob(row, self.context.moment()) for row in rows]
        self.record([requested_transition(tracked, event, decision) for tracked in jobs])
        return tuple(tracked.row for tracked in jobs)

    def signal(self, row: JobRow, number: int) -> None:
        """Send a signal to the running attempt of a job.

        Raises:
            Refused: the job has no running attempt.
        """
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"job {row.job.id}: is {state.kind}; there is nothing to send a signal to")
        key = self.context.key(row.job.id, state.attempt.number)
        self.dispatcher.put(row.job.id, partial(self.context.executor.signal, key, number), row.owner.name)

    def executor_problem(self) -> str | None:
        """Return the reason why the executor did not answer when it was last observed; None if it did."""
        return self.observer.problem

    def snapshot(self) -> Snapshot:
        """Return the queue as it is now, with the jobs that will be in it once they have an image."""
        return self.scheduler.snapshot(self.context.moment(), admitted=True)

    def admission_snapshot(self) -> Snapshot:
        """Return all that decides whether a job is admitted; it costs the same for any queue."""
        return self.scheduler.admission_snapshot(self.context.moment())
