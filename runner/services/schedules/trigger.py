"""The trigger of schedules: it submits their jobs when their time has come.

A round evaluates the cron expressions first, and then writes what follows in the exclusive section of the
control loop, where nothing of a user's text is parsed.  A firing that is due is written to the store first.
A worker submits its job afterwards, because the job file is resolved anew with the rights of its owner, and
may wait for a file system.  The submission carries a token of schedule and time.  So a daemon that is killed
at any moment neither loses a firing nor submits one twice.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal

import structlog

from runner.base.errors import Refused, RunnerError, Unavailable
from runner.base.instant import Instant
from runner.base.retry import describe_error
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.context import KeyedWork
from runner.control.estimates import SCHEDULE
from runner.core.job.events import CancelRequested
from runner.core.job.revision_text import total_size
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
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.submission import dependencies as predecessors

log = structlog.get_logger()

LABEL: Final = SCHEDULE

MAX_WAIT_S: Final = 20.0
"""Longest wait between two rounds: the clock may have been set."""

RETRY_ROUND_S: Final = 2.0
"""Wait after a round that failed, for example because the disk is full."""

SET_BACK: Final = timedelta(seconds=1)
"""A clock that goes back by less is being corrected, which is not logged."""

MAX_PER_ROUND: Final = 100
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


@dataclass(frozen=True, slots=True)
class _Ending:
    """A schedule without a next time, and the state that it gets."""

    row: ScheduleRow
    state: Literal["over", "paused"]
    note: str


@dataclass(frozen=True, slots=True)
class _PlannedFiring:
    """Handling of a schedule whose time has come."""

    row: ScheduleRow
    decision: FiringDecision | None
    looked: ScheduleRow  # the schedule afterwards
    later: "datetime | _Ending"  # its next time


@dataclass(frozen=True, slots=True)
class _RoundPlan:
    """Changes that one round writes."""

    changes: int  # how often schedules had changed when it was made
    next: dict[int, tuple[datetime, ScheduleRow]]
    ended: tuple[_Ending, ...]
    firings: tuple[_PlannedFiring, ...]


def _next_of(row: ScheduleRow) -> "datetime | _Ending":
    """Return the next time of a schedule after it was looked at, or how it ends."""
    try:
        at = next_time(row, row.looked_at)
    except ValueError as error:
        return _Ending(row, "paused", first_line(error))
    return _Ending(row, "over", "its last time has passed") if at is None else at


@dataclass(slots=True)
class ScheduleTrigger:
    """The next times of all schedules, and the thread that waits for them."""

    service: JobService
    schedules: Schedules
    work_queue: KeyedWork
    _next: dict[int, tuple[datetime, ScheduleRow]] | None = None  # None: to be read again
    _before: dict[int, tuple[datetime, ScheduleRow]] = field(default_factory=dict)  # as it was then
    _changes: int = 0  # of schedules, by callers
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
        self.tick(self.service.daemon.context.moment())

    def wait_s(self) -> float:
        """Return the wait before the next round."""
        if self._failed:
            return RETRY_ROUND_S
        soonest = min((at for at, _ in (self._next or {}).values()), default=None)
        if soonest is None:
            return MAX_WAIT_S
        return min(max((soonest - self.service.clock.now()).total_seconds(), 0.02), MAX_WAIT_S)

    def tick(self, now: Instant) -> None:
        """Do one round: write down the firings that are due, and let workers submit them."""
        self._failed = True
        self._check_clock(now)
        plan = self._plan(now)
        try:
            self.service.daemon.run_exclusively(lambda: self._write(plan, now))
            self._failed = False
        except (Unavailable, Late) as error:  # for example a full disk: what is not written is not submitted
            log.warning("schedule.cannot_record", problem=describe_error(error))

    # --- before the exclusive section: all that evaluates cron expressions

    def _check_clock(self, now: Instant) -> None:
        """Read the schedules again if the clock was set back."""
        if self._last_round is not None and now.at < self._last_round:
            self._next = None
            if self._last_round - now.at > SET_BACK:
                log.warning(
                    "schedule.clock_set_back", was=self._last_round.isoformat(), now=now.at.isoformat()
                )
        self._last_round = now.at

    def _plan(self, now: Instant) -> "_RoundPlan":
        changes = self._changes  # read first: a later change makes this plan void
        known, ended = self._next, list[_Ending]()
        if known is None:
            known, ended = self._read(now)
        due = sorted((at, row.id) for at, row in known.values() if at <= now.at)
        # What is due is read first: a job that a worker submits meanwhile is in one of the two answers.
        waiting: dict[int, list[FiringRow]] = {}
        for each in self.schedules.due() if due else ():
            waiting.setdefault(each.schedule, []).append(each)
        firings = tuple(
            self._plan_firing(known[number][1], now, waiting.get(number, []))
            for _, number in due[:MAX_PER_ROUND]
        )
        return _RoundPlan(changes, known, tuple(ended), firings)

    def _read(self, now: Instant) -> tuple[dict[int, tuple[datetime, ScheduleRow]], list["_Ending"]]:
        """Return the next time of each schedule; times that passed while no daemon ran are due now."""
        found, ended = {}, []
        for row in self.schedules.active():
            # After a clock was set back, a schedule must not wait until its old time has come again.
            row = replace(row, looked_at=min(row.looked_at, now.at))  # noqa: PLW2901
            known = self._before.get(row.id)
            at = known[0] if known is not None and known[1] == row else _next_of(row)
            if isinstance(at, datetime):
                found[row.id] = at, row
            else:
                ended.append(at)
        return found, ended

    def _plan_firing(self, row: ScheduleRow, now: Instant, due: Sequence[FiringRow]) -> "_PlannedFiring":
        looked = replace(row, looked_at=now.at)
        return _PlannedFiring(row, self._decide_firing(row, now.at, due), looked, _next_of(looked))

    def _decide_firing(
        self, row: ScheduleRow, now: datetime, due: Sequence[FiringRow]
    ) -> FiringDecision | None:
        times, terms = rules(row)
        found = next_firing(row.looked_at, now, terms, times.after, self.schedules.unfinished(row.id))
        waits = found is not None and any(each.at != found.at for each in due)
        if isinstance(found, SubmitFiring) and waits and terms.overlap is Overlap.SKIP:
            return SkipFiring(found.at, "the job of an earlier time could not be submitted yet")
        return found

    # --- in the exclusive section: nothing that a user wrote is parsed or evaluated

    def changed(self) -> None:
        """Read the schedules again: one was made or changed."""
        self._changes += 1
        if self._next is not None:
            self._before = self._next
        self._next = None
        self._thread.wake()

    def _write(self, plan: "_RoundPlan", now: Instant) -> None:
        """Write what a plan says, unless a schedule has changed since it was made."""
        if plan.changes != self._changes:
            self._thread.wake()
            return
        with ExitStack() as failure:
            failure.callback(self._read_again)
            idle = not (plan.ended or plan.firings or self._retry_at) and self._recovered
            with nullcontext() if idle else self.schedules.batch():
                submitted = self._write_all(plan, now)
            failure.pop_all()
        for row, due in submitted:
            self._submit(row, due)

    def _read_again(self) -> None:
        """Forget what was read: the round wrote nothing, and the next one begins with the store."""
        self._next, self._recovered = None, False

    def _write_all(self, plan: "_RoundPlan", now: Instant) -> list[tuple[ScheduleRow, FiringRow]]:
        """Write what a plan says, and return the firings whose jobs are to be submitted."""
        self._next = plan.next
        for ending in plan.ended:
            self._end(ending, now)
        waited = [key for key, until in self._retry_at.items() if until <= now.monotonic]
        for key in waited:
            del self._retry_at[key]
        found: list[tuple[ScheduleRow, FiringRow]] = []
        if waited or not self._recovered:
            self._recovered = True
            found += self._recover()
        for firing in plan.firings:
            found += self._fire(firing, now)
        return found

    def _end(self, ending: "_Ending", now: Instant) -> None:
        self.schedules.move(ending.row, ending.state, ending.note, now.at)
        if ending.state == "paused":
            log.warning("schedule.unreadable", schedule=ending.row.id, problem=ending.note)

    def _fire(self, firing: "_PlannedFiring", now: Instant) -> Iterator[tuple[ScheduleRow, FiringRow]]:
        """Write down the firing of a schedule whose time has come; yield it if its job is to be submitted."""
        row, found = firing.row, firing.decision
        if found is not None:
            state: FiringState = "due" if isinstance(found, SubmitFiring) else "left_out"
            new = self.schedules.record_firing(row, found.at, now.at, state, found.why)
            log.info("schedule.fired", schedule=row.id, at=found.at.isoformat(), state=state, new=new)
            if new and isinstance(found, SubmitFiring):
                yield row, FiringRow(row.id, found.at, "due", None, found.why)
        others = {number: each for number, each in (self._next or {}).items() if number != row.id}
        # Another thread reads the mapping meanwhile, so it is replaced and never changed.
        if isinstance(firing.later, datetime):
            self._next = {**others, row.id: (firing.later, firing.looked)}
        else:
            self._next = others
            self._end(firing.later, now)

    def _recover(self) -> Iterator[tuple[ScheduleRow, FiringRow]]:
        """Yield the firings that are due in the store: of an earlier daemon, or those to be tried again."""
        for due in self.schedules.due():
            row = self.schedules.known(due.schedule)
            if (due.schedule, due.at) in self._submitting | self._retry_at.keys():
                continue
            if why := self._is_superfluous(row, due):
                self.schedules.settle(due, "left_out", why)
            else:
                yield row, due

    def _is_superfluous(self, row: ScheduleRow, due: FiringRow) -> str:
        """Return the reason why a firing is not to be submitted any more; empty if it is, or has been."""
        if self.service.store.submitted_as(_token(due)) is not None:
            return ""
        if (state := self.schedules.known(row.id).state) in {"removed", "paused"}:
            return f"the schedule was {state}"
        firings = self.schedules.firings(row.id) if row.terms["overlap"] == Overlap.REPLACE else ()
        later = any(each.state == "submitted" and each.at > due.at for each in firings)
        return "the job of a later time was submitted before" if later else ""

    # --- in a worker

    def _submit(self, row: ScheduleRow, due: FiringRow) -> None:
        self._submitting.add((due.schedule, due.at))
        self.work_queue.put(f"schedule {row.id}", partial(self._submit_guarded, row, due), row.owner)

    def _submit_guarded(self, row: ScheduleRow, due: FiringRow) -> None:
        """Submit the job of a firing; a refusal or a failure is written down."""
        failed = partial(self._refuse_after_error, due)
        run_guarded("scheduled submission", partial(self._submit_firing, row, due), failed, schedule=row.id)

    def _submit_firing(self, row: ScheduleRow, due: FiringRow) -> None:
        try:
            draft = self._make_draft(row, due)
            self.service.daemon.run_exclusively(partial(self._record_submitted, row, due, draft))
        except (Unavailable, Late) as error:
            self._run_exclusively(partial(self._record_retry, due, describe_error(error)))
        except RunnerError as error:
            self._run_exclusively(partial(self._record_refused, due, str(error)))

    def _refuse_after_error(self, due: FiringRow, error: BaseException) -> None:
        self._run_exclusively(partial(self._record_refused, due, describe_error(error)))

    def _run_exclusively(self, work: Callable[[], None]) -> None:
        """Run work in the exclusive section; if that fails, the firing is found due later."""
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
        if row.uid not in {0, os.geteuid()} and owner.name != row.owner:
            raise Refused(f"uid {row.uid} is {owner.name}'s now, and the schedule {row.owner}'s; remove it")
        predecessors.refuse_hopeless(submission, [revision], owner.name, self.service.store)
        once = revision.model_copy(update={"job": revision.job.model_copy(update={"schedule": None})})

        made = self.service.submission.draft(owner, once, "0")
        size, service = total_size([made.text]), self.service
        service.daemon.exclusive.read(lambda: service.submission.check_size(owner.name, size, row.path))

        def draft(job_id: str) -> JobRow:
            job = replace(made.job, id=job_id)
            return replace(made, job=job, labels={**made.labels, LABEL: str(row.id)})

        return draft

    # --- in the exclusive section again

    def _record_submitted(self, row: ScheduleRow, due: FiringRow, draft: Callable[[str], JobRow]) -> None:
        service, token = self.service, _token(due)
        if why := self._is_superfluous(row, due):
            self.schedules.settle(due, "left_out", why)
            self._submitting.discard((due.schedule, due.at))
            return
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
        if row.terms["overlap"] != Overlap.REPLACE:
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


def _token(due: FiringRow) -> str:
    return f"schedule:{due.schedule}:{due.at.isoformat()}"


def first_line(problem: object) -> str:
    """Return the first line of a problem, with the number of further lines."""
    first, *more = str(problem).splitlines() or [""]
    return f"{first} (and {len(more)} more)" if more else first
