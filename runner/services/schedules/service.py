"""What callers may ask about schedules: a job file with the section ``schedule`` makes one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Final

from runner.base.errors import Refused, UsageError
from runner.base.keyed_executor import KeyedExecutor
from runner.base.textfile import FileError, Problem, one_line, quoted
from runner.core.ports.schedules import FiringRow, ScheduleRow, Schedules, ScheduleState
from runner.core.schedule import upcoming
from runner.files.job.cron import find_timezone, parse_cron
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.job.queue import Schedule
from runner.services.context import Caller, NotFound
from runner.services.jobs import JobService
from runner.services.schedules.trigger import ScheduleTrigger, rules
from runner.services.submission.request import Submission

LANES: Final = 2
"""Job files that are resolved side by side; one that waits for a dead file server must not hold all."""

EACH: Final = 200
"""Schedules that one person may have."""

SHOWN: Final = 3
"""Coming times that are told with a schedule."""

MOST: Final = 1000
"""Coming times that can be asked for."""


@dataclass(frozen=True, slots=True)
class ScheduleService:
    """The schedules of a daemon, for those who may ask."""

    service: JobService
    books: Schedules
    trigger: ScheduleTrigger

    @classmethod
    def of(cls, service: JobService) -> "ScheduleService":
        """Return the schedules of a service; their trigger has not begun yet."""
        trigger = ScheduleTrigger(service, service.schedules, KeyedExecutor(LANES))
        return cls(service, service.schedules, trigger)

    # --- making one

    def has_schedule(self, submission: Submission) -> bool:
        """Return whether a job file has a schedule; of one that is wrong, somebody else tells so."""
        try:
            return parse_job(submission.text, Path(submission.path)).schedule is not None
        except UsageError:
            return False

    def draft(self, caller: Caller, submission: Submission) -> ScheduleRow:
        """Return the schedule that a job file would make.

        Raises:
            FileError: the job file is wrong, or its schedule never comes.
            UsageError: it asks for more than there is.
            Refused: the caller may not.
        """
        revision = self.service.submission.resolve(caller, submission)
        job, now = revision.job, self.service.clock.now()
        if job.schedule is None:
            raise UsageError(f"{one_line(submission.path)}: has no schedule")
        problems = list(_problems(job, job.schedule, now))
        if problems:
            raise FileError(job.origin.path, problems)
        text = submission.text.decode("utf-8-sig")
        terms = job.schedule.model_dump(mode="json")
        who = self.service.user(caller)
        return ScheduleRow(0, job.name, who.uid, who.gid, who.name, submission.path, text, terms, now, now)

    def make(self, caller: Caller, submission: Submission) -> ScheduleRow:
        """Return the schedule that a job file has made: its jobs come even if this process dies now.

        Raises as ``draft`` does, and Refused where the caller has one of that name.
        """
        row = self.draft(caller, submission)
        token = None if submission.token is None else f"{caller.uid}:{submission.token}"
        return self.service.daemon.run_exclusively(lambda: self._accept(row, token))

    def _accept(self, row: ScheduleRow, token: str | None) -> ScheduleRow:
        known = None if token is None else self.books.made_with(token)
        if known is not None:
            return known
        for other in self.books.named(row.name, row.uid):
            raise Refused(
                f"{row.name}: schedule {other.id} of yours has this name; "
                f"runner schedule remove {other.id} takes it away, --name gives this one another"
            )
        alive = [each for each in self.books.listed(row.uid, every=False) if each.state != "over"]
        if len(alive) >= EACH:
            raise Refused(
                f"{row.name}: you have {EACH} schedules already; runner schedule remove takes one away"
            )
        made = self.books.add(row, token)
        self.trigger.changed()
        return made

    # --- steering

    def pause(self, caller: Caller, reference: str) -> ScheduleRow:
        """Let no job be submitted until ``resume``; pausing twice is no error."""
        return self._move(caller, reference, "paused", f"paused by {self.service.user(caller).name}")

    def resume(self, caller: Caller, reference: str) -> ScheduleRow:
        """Go on with the next time; what passed meanwhile is left out."""
        return self._move(caller, reference, "active", "")

    def remove(self, caller: Caller, reference: str) -> ScheduleRow:
        """Let nothing be submitted any more; jobs that were go on, and the list of them stays."""
        return self._move(caller, reference, "removed", f"removed by {self.service.user(caller).name}")

    def _move(self, caller: Caller, reference: str, state: ScheduleState, note: str) -> ScheduleRow:
        number = self.find(caller, reference).id
        return self.service.daemon.run_exclusively(lambda: self._moved(number, state, note))

    def _moved(self, number: int, state: ScheduleState, note: str) -> ScheduleRow:
        row, now = self.books.known(number), self.service.clock.now()
        if row.state == state:
            return row
        if row.state == "removed" or (row.state == "over" and state != "removed"):
            raise Refused(f"schedule {number}: is {row.state}; submit its job file again to make another")
        # Resumed, it goes on from now: what passed in a pause was not missed.
        self.books.move(row, state, note, now if state == "active" else row.looked_at)
        self.trigger.changed()
        return self.books.known(number)

    # --- looking

    def find(self, caller: Caller, reference: str) -> ScheduleRow:
        """Return a schedule that the caller may look at and steer: its owner, root, or the daemon's own user.

        Raises:
            NotFound: there is none of that id or name, or only other people's, which are not told of.
        """
        row = self.books.find(reference, caller.uid)
        if row is None or not _may(caller, row):
            raise NotFound(
                f"{one_line(reference)}: there is no schedule of that id or name; runner schedule list"
            )
        return row

    def listed(self, caller: Caller, *, every: bool) -> tuple[ScheduleRow, ...]:
        """Return the schedules that the caller may steer; removed ones only if ``every``."""
        return self.books.listed(None if caller.uid in {0, os.geteuid()} else caller.uid, every=every)

    def next_times(self, row: ScheduleRow, count: int = SHOWN) -> tuple[datetime, ...]:
        """Return when a schedule is due next, on its own clock; nothing of one that is over."""
        if row.state in {"over", "removed"}:
            return ()
        try:
            times, terms = rules(row)
        except ValueError:
            return ()
        every = upcoming(self.service.clock.now(), terms, times.after)
        return tuple(times.local(at) for at in islice(every, min(max(count, 0), MOST)))

    def firings(self, row: ScheduleRow) -> tuple[FiringRow, ...]:
        """Return what became of the last times of a schedule, the newest first."""
        zone = _zone(row)
        return tuple(replace(each, at=each.at.astimezone(zone)) for each in self.books.firings(row.id))


def _problems(job: JobFile, schedule: Schedule, now: datetime) -> Iterator[Problem]:
    say = job.origin.problem
    try:
        find_timezone(schedule.timezone)
    except ValueError as error:
        yield say(("schedule", "timezone"), str(error))
        return
    try:
        times = parse_cron(schedule.cron, schedule.timezone)
    except ValueError as error:
        yield say(("schedule", "cron"), str(error))
        return
    first = times.after(now)
    if first is None:
        yield say(("schedule", "cron"), f"{quoted(schedule.cron)} never happens")
    elif schedule.until is not None and first > schedule.until:
        fact = f"is over before the first time, {times.local(first).isoformat(timespec='minutes')}"
        yield say(("schedule", "until"), fact)
    if job.matrix is not None:
        yield say(("matrix",), "cannot be together with schedule: each time submits one job")


def _zone(row: ScheduleRow) -> tzinfo:
    """Return the zone of a schedule, UTC where it is not known any more."""
    try:
        return find_timezone(row.terms["timezone"])
    except ValueError:
        return UTC


def _may(caller: Caller, row: ScheduleRow) -> bool:
    return caller.uid in {0, os.geteuid(), row.uid}
