"""Submits the jobs of schedules when their time has come.

``tick`` is called with the turn and is cheap: it knows the next time of all schedules.  What is
due is written down first and submitted afterwards, by a lane, because a job file is resolved anew each
time, as its owner, and that may wait for a file system.  The submission carries a token made of the
schedule and the time.  So a daemon killed anywhere between neither loses an occasion nor doubles one.
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

LOOK_S: Final = 20.0
"""Longest wait between two looks at the clock: somebody may have set it."""

FAILED_S: Final = 2.0
"""Wait after a look that could not be completed, such as over a full disk."""

SET_BACK: Final = timedelta(seconds=1)
"""A clock that goes back by less is being corrected, not set: no line in the log for it."""

AT_ONCE: Final = 20
"""Schedules that are looked at in one go: at midnight hundreds may be due, and the loop has other work."""

AGAIN_S: Final = 30.0
"""Wait before an occasion is tried again that the world was not ready for."""


def rules(row: ScheduleRow) -> tuple[Cron, FiringTerms]:
    """Return the times and the terms of a schedule.

    Raises:
        ValueError: what was right once is not right any more, such as a time zone that is gone.
    """
    said = row.terms
    until = None if said["until"] is None else datetime.fromisoformat(said["until"])
    terms = FiringTerms(Overlap(said["overlap"]), Missed(said["missed"]), until)
    return parse_cron(said["cron"], said["timezone"]), terms


def next_time(row: ScheduleRow, since: datetime) -> datetime | None:
    """Return when a schedule is due next; None when it is over."""
    times, terms = rules(row)
    return next(upcoming(since, terms, times.after), None)


def job_name(name: str, at: datetime) -> str:
    """Return the name of the job of one occasion; ``at`` is as the schedule's clock shows it."""
    return f"{name[: 63 - 14]}-{at:%Y%m%d-%H%M}"


@dataclass(slots=True)
class ScheduleTrigger:
    """The next times of all schedules, and what is done about them."""

    service: JobService
    books: Schedules
    work_queue: KeyedWork
    _next: dict[int, tuple[datetime, ScheduleRow]] | None = None  # None: to be read again
    _seen: datetime | None = None
    _underway: set[tuple[int, datetime]] = field(default_factory=set)
    _again: dict[tuple[int, datetime], float] = field(default_factory=dict)  # monotonic
    _recovered: bool = False
    _failed: bool = False
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = PeriodicThread("schedule-trigger", self.patience_s, self._round, begin_at_once=True)

    # --- a thread that knows when to look

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        self.work_queue.close()

    def _round(self) -> None:
        self._failed = True  # until the tick has ended: the loop may not answer at all
        self.service.daemon.run_exclusively(lambda: self.tick(self.service.daemon.context.moment()))

    def patience_s(self) -> float:
        """Return in how many seconds the next look is worth it."""
        if self._failed:
            return FAILED_S
        soonest = self._soonest()
        if soonest is None:
            return LOOK_S
        return min(max((soonest - self.service.clock.now()).total_seconds(), 0.02), LOOK_S)

    # --- with the turn

    def changed(self) -> None:
        """Read the schedules again: one was made, or is another now."""
        self._next = None
        self._thread.wake()

    def tick(self, now: Instant) -> None:
        """Do what the time has brought about."""
        self._failed = True
        try:
            self._tick(now)
            self._failed = False
        except Unavailable as error:  # such as a full disk; nothing is noticed until it can be written down
            log.warning("timetable.cannot_record", problem=str(error))

    def _tick(self, now: Instant) -> None:
        self._mind_the_clock(now)
        if self._next is None:
            self._next = self._read(now)
        waited = [key for key, until in self._again.items() if until <= now.monotonic]
        for key in waited:
            del self._again[key]
        if waited or not self._recovered:
            self._recovered = True
            self._recover()
        come = sorted((at, row.id) for at, row in self._next.values() if at <= now.at)
        for _, number in come[:AT_ONCE]:
            self._came(self._next[number][1], now)

    def _mind_the_clock(self, now: Instant) -> None:
        """Reckon anew when the clock was set back."""
        if self._seen is not None and now.at < self._seen:
            self._next = None
            if self._seen - now.at > SET_BACK:
                log.warning("timetable.clock_set_back", was=self._seen.isoformat(), now=now.at.isoformat())
        self._seen = now.at

    def _soonest(self) -> datetime | None:
        return min((at for at, _ in (self._next or {}).values()), default=None)

    def _read(self, now: Instant) -> dict[int, tuple[datetime, ScheduleRow]]:
        """Return when each schedule is due next; what passed while nobody was there is due now."""
        found = {}
        for row in self.books.active():
            # A clock that was set back must not keep a schedule silent until its old time has come again.
            row = replace(row, looked_at=min(row.looked_at, now.at))  # noqa: PLW2901
            at = self._next_of(row, now.at)
            if at is not None:
                found[row.id] = at, row
        return found

    def _next_of(self, row: ScheduleRow, now: datetime) -> datetime | None:
        """Return the next time of a schedule; one without is over."""
        try:
            at = next_time(row, row.looked_at)
        except ValueError as error:
            self.books.move(row, "paused", one_line_of(error), now)
            log.warning("timetable.unreadable", schedule=row.id, problem=str(error))
            return None
        if at is None:
            self.books.move(row, "over", "its last time has passed", now)
        return at

    def _came(self, row: ScheduleRow, now: Instant) -> None:
        """Write down what follows from times that have come, and let a lane submit."""
        found = self._occasion(row, now.at)
        if found is not None:
            state: FiringState = "due" if isinstance(found, SubmitFiring) else "left_out"
            new = self.books.record_firing(row, found.at, now.at, state, found.why)
            log.info("schedule.came", schedule=row.id, at=found.at.isoformat(), state=state, new=new)
            if new and isinstance(found, SubmitFiring):
                self._submit(row, FiringRow(row.id, found.at, "due", None, found.why))
        looked = replace(row, looked_at=now.at)
        later = self._next_of(looked, now.at)
        others = {number: each for number, each in (self._next or {}).items() if number != row.id}
        # Another thread looks at it meanwhile: it is made anew and never changed.
        self._next = others if later is None else {**others, row.id: (later, looked)}

    def _occasion(self, row: ScheduleRow, now: datetime) -> FiringDecision | None:
        times, terms = rules(row)
        found = next_firing(row.looked_at, now, terms, times.after, self.books.unfinished(row.id))
        waits = any(due.schedule == row.id and due.at != found.at for due in self.books.due()) if found else 0
        if isinstance(found, SubmitFiring) and waits and terms.overlap is Overlap.SKIP:
            return SkipFiring(found.at, "the job of an earlier time could not be submitted yet")
        return found

    def _recover(self) -> None:
        """Submit what was noticed and not submitted, by the daemon before or when the world was not ready."""
        for due in self.books.due():
            row = self.books.known(due.schedule)
            if (due.schedule, due.at) in self._underway | self._again.keys():
                continue
            if row.state == "removed":
                self.books.settle(due, "left_out", "the schedule was removed")
            else:
                self._submit(row, due)

    # --- in a lane

    def _submit(self, row: ScheduleRow, due: FiringRow) -> None:
        self._underway.add((due.schedule, due.at))
        self.work_queue.put(f"schedule {row.id}", partial(self._attempt, row, due))

    def _attempt(self, row: ScheduleRow, due: FiringRow) -> None:
        """Submit the job of an occasion; whatever stands against it is written down."""

        def failed(error: Exception) -> None:
            self._tell(partial(self._refused, due, describe_error(error)))

        run_guarded("scheduled submission", partial(self._try, row, due), failed, schedule=row.id)

    def _try(self, row: ScheduleRow, due: FiringRow) -> None:
        try:
            job = self._drafted(row, due)
            self.service.daemon.run_exclusively(partial(self._accepted, row, due, job))
        except (Unavailable, Late) as error:
            self._tell(partial(self._later, due, describe_error(error)))
        except RunnerError as error:
            self._tell(partial(self._refused, due, str(error)))

    def _tell(self, work: Callable[[], None]) -> None:
        """Let the loop know; a daemon that leaves meanwhile finds the occasion due when it is back."""
        try:
            self.service.daemon.run_exclusively(work)
        except (Unavailable, Late) as error:
            log.warning("timetable.cannot_record", problem=describe_error(error))

    def _drafted(self, row: ScheduleRow, due: FiringRow) -> Callable[[str], JobRow]:
        """Return what makes the job of an occasion out of its id; the file is resolved anew, as its owner."""
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

    # --- back with the turn

    def _accepted(self, row: ScheduleRow, due: FiringRow, draft: Callable[[str], JobRow]) -> None:
        service = self.service
        token = f"schedule:{row.id}:{due.at.isoformat()}"
        job = service.store.submitted_as(token)
        if job is None:
            job = draft(service.store.next_id())
            text = f"submitted by schedule {row.id} ({row.name}) of {row.owner}"
            service.daemon.submit((job,), (text,), token)
        replaced = self._replaced(row, job)
        text = "; ".join(filter(None, (due.text, replaced)))
        self.books.settle(due, "submitted", text, job.job.id)
        self._underway.discard((due.schedule, due.at))
        log.info("schedule.submitted", schedule=row.id, at=due.at.isoformat(), job_id=job.job.id)

    def _replaced(self, row: ScheduleRow, job: JobRow) -> str:
        """Cancel the jobs of earlier occasions where the schedule says so, and tell which."""
        _, terms = rules(row)
        if terms.overlap is not Overlap.REPLACE:
            return ""
        gone = [each for each in self.books.unfinished(row.id) if int(each) < int(job.job.id)]
        by = f"schedule {row.id}"
        for job_id in gone:
            known = self.service.queries.current(job_id)
            state = known.job.state
            if not (isinstance(state, Stopping) and state.reason == StopReason.CANCELLED):
                self.service.daemon.apply_event(known, CancelRequested(self.service.clock.now(), by))
        return f"in place of job {', '.join(gone)}" if gone else ""

    def _refused(self, due: FiringRow, why: str) -> None:
        self.books.settle(due, "refused", one_line_of(why))
        self._underway.discard((due.schedule, due.at))
        log.warning("schedule.refused", schedule=due.schedule, at=due.at.isoformat(), problem=why)

    def _later(self, due: FiringRow, why: str) -> None:
        key = (due.schedule, due.at)
        self._underway.discard(key)
        self._again[key] = self.service.clock.monotonic() + AGAIN_S
        self.books.settle(due, "due", one_line_of(why))


def one_line_of(problem: object) -> str:
    """Return the first line of what is wrong, and how many more there are."""
    first, *more = str(problem).splitlines() or [""]
    return f"{first} (and {len(more)} more)" if more else first
