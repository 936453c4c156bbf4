"""Schedules for callers: make, pause, resume, remove, list.  A job file with ``schedule`` makes one."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import Final

from runner.base.errors import Refused, UsageError
from runner.base.keyed_executor import KeyedExecutor
from runner.base.textfile import FileError, Problem, one_line, quoted
from runner.core.ports.schedules import FiringRow, ScheduleRow, Schedules, ScheduleState
from runner.core.schedule import upcoming
from runner.files.job.cron import find_timezone, parse_cron
from runner.files.job.model import JobFile
from runner.files.job.queue import Schedule
from runner.files.submission import Submission
from runner.services.context import Caller, NotFound
from runner.services.jobs import JobService
from runner.services.schedules.trigger import ScheduleTrigger, rules

WORKERS: Final = 2
"""Job files that are resolved in parallel: one that waits for a dead file server does not block all."""

MAX_PER_USER: Final = 200
"""Schedules that one user may have."""

NEXT_TIMES: Final = 3
"""Next times that are shown with a schedule."""

MAX_NEXT_TIMES: Final = 1000
"""Next times that can be requested."""


@dataclass(frozen=True, slots=True)
class ScheduleService:
    """The schedules of one daemon."""

    service: JobService
    schedules: Schedules
    trigger: ScheduleTrigger

    @classmethod
    def of(cls, service: JobService) -> "ScheduleService":
        """Return the schedules of a job service; their trigger is not started."""
        trigger = ScheduleTrigger(service, service.schedules, KeyedExecutor(WORKERS))
        return cls(service, service.schedules, trigger)

    def has_schedule(self, caller: Caller, submission: Submission) -> bool:
        """Return True if a job file has a schedule; what is wrong with it is found when it is resolved."""
        return self.service.users.has_schedule(self.service.user(caller), submission.text)

    def draft(self, caller: Caller, submission: Submission) -> ScheduleRow:
        """Return the schedule that a job file would make; nothing is written.

        Raises:
            FileError: the job file is wrong, or its schedule has no next time.
            UsageError: it requests more than there is.
            Refused: the caller may not submit it.
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
        """Make the schedule of a job file and return it; it is in the store, even if the daemon dies now.

        Raises as ``draft`` does, and Refused where the caller has one of that name.
        """
        row = self.draft(caller, submission)
        token = None if submission.token is None else f"{caller.uid}:{submission.token}"
        return self.service.daemon.run_exclusively(lambda: self._accept(row, token))

    def _accept(self, row: ScheduleRow, token: str | None) -> ScheduleRow:
        known = None if token is None else self.schedules.made_with(token)
        if known is not None:
            return known
        for other in self.schedules.named(row.name, row.uid, row.owner):
            raise Refused(
                f"{row.name}: schedule {other.id} of yours has this name; "
                f"runner schedule remove {other.id} takes it away, --name gives this one another"
            )
        mine = (each for each in self.schedules.listed(row.uid, every=False) if each.owner == row.owner)
        alive = [each for each in mine if each.state != "over"]
        if len(alive) >= MAX_PER_USER:
            raise Refused(
                f"{row.name}: you have {MAX_PER_USER} schedules already; "
                "runner schedule remove takes one away"
            )
        self.service.submission.count_stored(row.owner, len(row.text), row.path)
        made = self.schedules.add(row, token)
        self.trigger.changed()
        return made

    # --- steering

    def pause(self, caller: Caller, reference: str) -> ScheduleRow:
        """Pause a schedule: no job is submitted until ``resume``; to pause twice is no error."""
        return self._set_state(caller, reference, "paused", f"paused by {self.service.user(caller).name}")

    def resume(self, caller: Caller, reference: str) -> ScheduleRow:
        """Resume a schedule with its next time; the times that have passed meanwhile are left out."""
        return self._set_state(caller, reference, "active", "")

    def remove(self, caller: Caller, reference: str) -> ScheduleRow:
        """Remove a schedule: no job is submitted any more; jobs that were submitted go on."""
        return self._set_state(caller, reference, "removed", f"removed by {self.service.user(caller).name}")

    def _set_state(self, caller: Caller, reference: str, state: ScheduleState, note: str) -> ScheduleRow:
        number = self.find(caller, reference).id
        return self.service.daemon.run_exclusively(lambda: self._write_state(number, state, note))

    def _write_state(self, number: int, state: ScheduleState, note: str) -> ScheduleRow:
        row, now = self.schedules.known(number), self.service.clock.now()
        if row.state == state:
            return row
        if row.state == "removed" or (row.state == "over" and state != "removed"):
            raise Refused(f"schedule {number}: is {row.state}; submit its job file again to make another")
        # A resumed schedule goes on from now: times during a pause are not missed.
        self.schedules.move(row, state, note, now if state == "active" else row.looked_at)
        self.trigger.changed()
        return self.schedules.known(number)

    # --- looking

    def find(self, caller: Caller, reference: str) -> ScheduleRow:
        """Return a schedule that the caller may read and steer: its owner, root, or the daemon's own user.

        Raises:
            NotFound: there is none of that id or name, or only other users' schedules, which are not shown.
        """
        row = self.schedules.find(reference, caller.uid, self.service.user(caller).name)
        if row is None or not self._has_permission(caller, row):
            raise NotFound(
                f"{one_line(reference)}: there is no schedule of that id or name; runner schedule list"
            )
        return row

    def listed(self, caller: Caller, *, every: bool) -> tuple[ScheduleRow, ...]:
        """Return the schedules that the caller may steer, with ``every`` also those that were removed."""
        uid = None if caller.uid in {0, os.geteuid()} else caller.uid
        rows = self.schedules.listed(uid, every=every)
        return tuple(row for row in rows if self._has_permission(caller, row))

    def _has_permission(self, caller: Caller, row: ScheduleRow) -> bool:
        if caller.uid in {0, os.geteuid()}:
            return True
        return caller.uid == row.uid and self.service.user(caller).name == row.owner

    def next_times(self, row: ScheduleRow, count: int = NEXT_TIMES) -> tuple[datetime, ...]:
        """Return the next times of a schedule in its own time zone; none if it is over."""
        if row.state in {"over", "removed"}:
            return ()
        try:
            times, terms = rules(row)
        except ValueError:
            return ()
        every = upcoming(self.service.clock.now(), terms, times.after)
        return tuple(times.local(at) for at in islice(every, min(max(count, 0), MAX_NEXT_TIMES)))

    def firings(self, row: ScheduleRow) -> tuple[FiringRow, ...]:
        """Return the last firings of a schedule in its own time zone, the newest first."""
        zone = _zone(row)
        return tuple(replace(each, at=each.at.astimezone(zone)) for each in self.schedules.firings(row.id))


def _problems(job: JobFile, schedule: Schedule, now: datetime) -> Iterator[Problem]:
    problem = job.origin.problem
    try:
        find_timezone(schedule.timezone)
    except ValueError as error:
        yield problem(("schedule", "timezone"), str(error))
        return
    try:
        times = parse_cron(schedule.cron, schedule.timezone)
    except ValueError as error:
        yield problem(("schedule", "cron"), str(error))
        return
    first = times.after(now)
    if first is None:
        yield problem(("schedule", "cron"), f"{quoted(schedule.cron)} never happens")
    elif schedule.until is not None and first > schedule.until:
        fact = f"is over before the first time, {times.local(first).isoformat(timespec='minutes')}"
        yield problem(("schedule", "until"), fact)
    if job.matrix is not None:
        yield problem(("matrix",), "cannot be together with schedule: each time submits one job")


def _zone(row: ScheduleRow) -> tzinfo:
    """Return the time zone of a schedule, UTC if the host does not know it any more."""
    try:
        return find_timezone(row.terms["timezone"])
    except ValueError:
        return UTC
