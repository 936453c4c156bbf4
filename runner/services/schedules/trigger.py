"""The trigger of schedules: it submits their jobs when their time has come.

``tick`` runs with the state lock and is cheap: it knows the next time of every schedule.  A firing that is
due is written to the store first.  A worker submits its job afterwards, because the job file is resolved anew
with the rights of its owner, and may wait for a file system.  The submission carries a token of schedule and
time.  So a daemon that is killed at any moment neither loses a firing nor submits one twice.
"""

from collections.abc import Callable
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog

from runner.base.errors import RunnerError, Unavailable
from runner.base.retry import describe_error
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.context import Instant, KeyedWork
from runner.control.estimates import SCHEDULE
from runner.core.job.events import CancelRequested
from runner.core.job.states import Stopping, StopReason
from runner.core.ports.schedules import FiringRow, FiringState, ScheduleRow, Schedules
from runner.core.ports.store import JobRow
from runner.core.schedule import (
    FiringDecision,
    FiringTerms,
    Missed,
    Overlap,
    SkipFiring,
    SubmitFiring,
    next_firing,
    upcoming,
)
from runner.files.job.cron import Cron, parse_cron
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.submission import dependencies as predecessors
from runner.services.submission.request import Submission

log = structlog.get_logger()

LABEL: Final = SCHEDULE

MAX_WAIT_S: Final = 20.0
"""Longest wait between two rounds: the clock may have been set."""

RETRY_ROUND_S: Final = 2.0
"""Wait after a round that failed, for example because the disk is full."""

SET_BACK: Final = timedelta(seconds=1)
"""A clock that goes back by less is being corrected, which is not logged."""

MAX_PER_ROUND: Final = 20
"""Schedules that fire in one round: at midnight hundreds may be due, and the loop has other work."""

RETRY_FIRING_S: Final = 30.0
"""Wait before a firing is tried again that failed because something was unavailable."""


def rules(row: ScheduleRow) -> tuple[Cron, FiringTerms]:
    """Return the times and the terms of a schedule.

    Raises:
        ValueError: the schedule is not valid any more, for example because its time zone is gone.
    """
    said = row.terms
    until = None if said["until"] is None else datetime.fromisoformat(said["until"])
    terms = FiringTerms(Overlap(said["overlap"]), Missed(said["missed"]), until)
    return parse_cron(said["cron"], said["timezone"]), terms


def next_time(row: ScheduleRow, since: datetime) -> datetime | None:
    """Return the next time of a schedule; None when it is over."""
    times, terms = rules(row)
    return next(upcoming(since, terms, times.after), None)


def job_name(name: str, at: datetime) -> str:
    """Return the name of the job of one firing; ``at`` is in the time zone of the schedule."""
    return f"{name[: 63 - 14]}-{at:%Y%m%d-%H%M}"


@dataclass(slots=True)
class ScheduleTrigger:
    """The next times of all schedules, and the thread that waits for them."""

    service: JobService
    schedules: Schedules
    work_queue: KeyedWork
    _next: dict[int, tuple[datetime, ScheduleRow]] | None = None  # None: to be read again
    _last_round: datetime | None = None
    _submitting: set[tuple[int, datetime]] = field(default_factory=set)
    _retry_at: dict[tuple[int, datetime], float] = field(default_factory=dict)  # monotonic
    _recovered: bool = False
    _failed: bool = False
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = PeriodicThread("schedule-trigger", self.wait_s, self._round, begin_at_once=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        self.work_queue.close()

    def _round(self) -> None:
        self._failed = True  # until the tick has ended: the loop may not answer at all
        self.service.daemon.run_exclusively(lambda: self.tick(self.service.daemon.context.moment()))

    def wait_s(self) -> float:
        """Return the wait before the next round."""
        if self._failed:
            return RETRY_ROUND_S
        soonest = self._next_due()
        if soonest is None:
            return MAX_WAIT_S
        return min(max((soonest - self.service.clock.now()).total_seconds(), 0.02), MAX_WAIT_S)

    # --- with the state lock

    def changed(self) -> None:
        """Read the schedules again: one was made or changed."""
        self._next = None
        self._thread.wake()

    def tick(self, now: Instant) -> None:
        """Do one round: write down the firings that are due, and let workers submit them."""
        self._failed = True
        try:
            self._tick(now)
            self._failed = False
        except (
            Unavailable
        ) as error:  # for example a full disk; a firing must be written before it is submitted
            log.warning("schedule.cannot_record", problem=str(error))

    def _tick(self, now: Instant) -> None:
        self._check_clock(now)
        if self._next is None:
            self._next = self._read(now)
        waited = [key for key, until in self._retry_at.items() if until <= now.monotonic]
        for key in waited:
            del self._retry_at[key]
        if waited or not self._recovered:
            self._recovered = True
            self._recover()
        come = sorted((at, row.id) for at, row in self._next.values() if at <= now.at)
        for _, number in come[:MAX_PER_ROUND]:
            self._fire(self._next[number][1], now)

    def _check_clock(self, now: Instant) -> None:
        """Read the schedules again if the clock was set back."""
        if self._last_round is not None and now.at < self._last_round:
            self._next = None
            if self._last_round - now.at > SET_BACK:
                log.warning(
                    "schedule.clock_set_back", was=self._last_round.isoformat(), now=now.at.isoformat()
                )
        self._last_round = now.at

    def _next_due(self) -> datetime | None:
        return min((at for at, _ in (self._next or {}).values()), default=None)

    def _read(self, now: Instant) -> dict[int, tuple[datetime, ScheduleRow]]:
        """Return the next time of each schedule; times that passed while no daemon ran are due now."""
        found = {}
        for row in self.schedules.active():
            # After a clock was set back, a schedule must not wait until its old time has come again.
            row = replace(row, looked_at=min(row.looked_at, now.at))  # noqa: PLW2901
            at = self._next_of(row, now.at)
            if at is not None:
                found[row.id] = at, row
        return found

    def _next_of(self, row: ScheduleRow, now: datetime) -> datetime | None:
        """Return the next time of a schedule; a schedule without one is over."""
        try:
            at = next_time(row, row.looked_at)
        except ValueError as error:
            self.schedules.move(row, "paused", first_line(error), now)
            log.warning("schedule.unreadable", schedule=row.id, problem=str(error))
            return None
        if at is None:
            self.schedules.move(row, "over", "its last time has passed", now)
        return at

    def _fire(self, row: ScheduleRow, now: Instant) -> None:
        """Write down the firing of a schedule whose time has come, and let a worker submit its job."""
        found = self._decide_firing(row, now.at)
        if found is not None:
            state: FiringState = "due" if isinstance(found, SubmitFiring) else "left_out"
            new = self.schedules.record_firing(row, found.at, now.at, state, found.why)
            log.info("schedule.fired", schedule=row.id, at=found.at.isoformat(), state=state, new=new)
            if new and isinstance(found, SubmitFiring):
                self._submit(row, FiringRow(row.id, found.at, "due", None, found.why))
        looked = replace(row, looked_at=now.at)
        later = self._next_of(looked, now.at)
        others = {number: each for number, each in (self._next or {}).items() if number != row.id}
        # Another thread reads the mapping meanwhile, so it is replaced and never changed.
        self._next = others if later is None else {**others, row.id: (later, looked)}

    def _decide_firing(self, row: ScheduleRow, now: datetime) -> FiringDecision | None:
        times, terms = rules(row)
        found = next_firing(row.looked_at, now, terms, times.after, self.schedules.unfinished(row.id))
        waits = (
            any(due.schedule == row.id and due.at != found.at for due in self.schedules.due()) if found else 0
        )
        if isinstance(found, SubmitFiring) and waits and terms.overlap is Overlap.SKIP:
            return SkipFiring(found.at, "the job of an earlier time could not be submitted yet")
        return found

    def _recover(self) -> None:
        """Submit firings that are due in the store: of an earlier daemon, or those to be tried again."""
        for due in self.schedules.due():
            row = self.schedules.known(due.schedule)
            if (due.schedule, due.at) in self._submitting | self._retry_at.keys():
                continue
            if row.state == "removed":
                self.schedules.settle(due, "left_out", "the schedule was removed")
            else:
                self._submit(row, due)

    # --- in a worker

    def _submit(self, row: ScheduleRow, due: FiringRow) -> None:
        self._submitting.add((due.schedule, due.at))
        self.work_queue.put(f"schedule {row.id}", partial(self._submit_guarded, row, due))

    def _submit_guarded(self, row: ScheduleRow, due: FiringRow) -> None:
        """Submit the job of a firing; a refusal or a failure is written down."""

        def failed(error: Exception) -> None:
            self._run_exclusively(partial(self._record_refused, due, describe_error(error)))

        run_guarded("scheduled submission", partial(self._submit_firing, row, due), failed, schedule=row.id)

    def _submit_firing(self, row: ScheduleRow, due: FiringRow) -> None:
        try:
            job = self._make_draft(row, due)
            self.service.daemon.run_exclusively(partial(self._record_submitted, row, due, job))
        except (Unavailable, Late) as error:
            self._run_exclusively(partial(self._record_retry, due, describe_error(error)))
        except RunnerError as error:
            self._run_exclusively(partial(self._record_refused, due, str(error)))

    def _run_exclusively(self, work: Callable[[], None]) -> None:
        """Run work with the state lock; if the daemon leaves meanwhile, the next one finds the firing due."""
        try:
            self.service.daemon.run_exclusively(work)
        except (Unavailable, Late) as error:
            log.warning("schedule.cannot_record", problem=describe_error(error))

    def _make_draft(self, row: ScheduleRow, due: FiringRow) -> Callable[[str], JobRow]:
        """Return a function that makes the job of a firing from its id; the file is resolved as its owner."""
        times, _ = rules(row)
        caller = Caller(row.uid, row.gid)
        name = job_name(row.name, times.local(due.at))
        submission = Submission(row.path, row.text.encode(), name=name)
        revision = self.service.submission.resolve(caller, submission)
        owner = self.service.submission.owner(caller)
        predecessors.refuse_hopeless(submission, [revision], owner.name, self.service.store)
        once = revision.model_copy(update={"job": revision.job.model_copy(update={"schedule": None})})

        def draft(job_id: str) -> JobRow:
            made = self.service.submission.draft(owner, once, job_id)
            return replace(made, labels={**made.labels, LABEL: str(row.id)})

        return draft

    # --- with the state lock again

    def _record_submitted(self, row: ScheduleRow, due: FiringRow, draft: Callable[[str], JobRow]) -> None:
        service = self.service
        token = f"schedule:{row.id}:{due.at.isoformat()}"
        job = service.store.submitted_as(token)
        if job is None:
            job = draft(service.store.next_id())
            text = f"submitted by schedule {row.id} ({row.name}) of {row.owner}"
            service.daemon.submit((job,), (text,), token)
        replaced = self._cancel_replaced(row, job)
        text = "; ".join(filter(None, (due.text, replaced)))
        self.schedules.settle(due, "submitted", text, job.job.id)
        self._submitting.discard((due.schedule, due.at))
        log.info("schedule.submitted", schedule=row.id, at=due.at.isoformat(), job_id=job.job.id)

    def _cancel_replaced(self, row: ScheduleRow, job: JobRow) -> str:
        """Cancel the jobs of earlier firings if the schedule says so; return which, as text."""
        _, terms = rules(row)
        if terms.overlap is not Overlap.REPLACE:
            return ""
        gone = [each for each in self.schedules.unfinished(row.id) if int(each) < int(job.job.id)]
        by = f"schedule {row.id}"
        for job_id in gone:
            known = self.service.queries.current(job_id)
            state = known.job.state
            if not (isinstance(state, Stopping) and state.reason == StopReason.CANCELLED):
                self.service.daemon.apply_event(known, CancelRequested(self.service.clock.now(), by))
        return f"in place of job {', '.join(gone)}" if gone else ""

    def _record_refused(self, due: FiringRow, why: str) -> None:
        self.schedules.settle(due, "refused", first_line(why))
        self._submitting.discard((due.schedule, due.at))
        log.warning("schedule.refused", schedule=due.schedule, at=due.at.isoformat(), problem=why)

    def _record_retry(self, due: FiringRow, why: str) -> None:
        key = (due.schedule, due.at)
        self._submitting.discard(key)
        self._retry_at[key] = self.service.clock.monotonic() + RETRY_FIRING_S
        self.schedules.settle(due, "due", first_line(why))


def first_line(problem: object) -> str:
    """Return the first line of a problem, with the number of further lines."""
    first, *more = str(problem).splitlines() or [""]
    return f"{first} (and {len(more)} more)" if more else first
