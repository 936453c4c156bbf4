"""Retention: removing the run directories of jobs that ended long ago, or of users who have too many.

What the store knows about a job stays.  A job that has not ended keeps its directory, and so does one that
has ended a moment ago, whatever the limits.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

import structlog

from runner.base.errors import Refused, Unavailable
from runner.base.threads import PeriodicThread
from runner.base.units import format_duration, format_size
from runner.core.job.states import Finished
from runner.core.ports.disk_use import MeasuredDirectories
from runner.core.ports.store import JobRow
from runner.files.revision import Revision, cached_by_revision, parse_revision
from runner.files.settings.retention import RetentionSettings
from runner.services.context import Caller
from runner.services.jobs import JobService

log = structlog.get_logger()

PERIOD_S: Final = 3600.0
"""Seconds between two looks at the run directories."""

GRACE: Final = timedelta(hours=1)
"""A directory stays this long after the end of its job, so that its owner can look at it."""


class RunDirectories(MeasuredDirectories, Protocol):
    """All run directories of a daemon."""

    def size(self, job_id: str) -> int:
        """Return the bytes that a directory takes on the disk; 0 if it cannot be read."""

    def set_aside(self, job_id: str) -> None:
        """Take a directory away from its job, at once; may raise Unavailable."""

    def remove(self, job_id: str) -> None:
        """Remove from the disk what was set aside, which may take minutes; may raise Unavailable."""

    def sweep(self) -> None:
        """Remove the rest of directories whose removal was interrupted or failed; logs what stays."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The run directory of a job that has ended."""

    job_id: str
    name: str
    owner: str
    ended: datetime
    size: int


@dataclass(frozen=True, slots=True)
class Removal:
    """A run directory that the limits do not allow to stay, with the reason."""

    run: EndedRun
    why: str


def choose(runs: Iterable[EndedRun], limits: RetentionSettings, now: datetime) -> list[Removal]:
    """Return the run directories to remove, the oldest first."""
    of_users: dict[str, list[EndedRun]] = defaultdict(list)
    for run in runs:
        of_users[run.owner].append(run)
    found = [removal for of_one in of_users.values() for removal in _of_user(of_one, limits, now)]
    return sorted(found, key=lambda removal: removal.run.ended)


def _of_user(runs: list[EndedRun], limits: RetentionSettings, now: datetime) -> Iterator[Removal]:
    """Yield the directories of one user to remove; the newest stay as long as there is room."""
    count, size = 0, 0
    for run in sorted(runs, key=lambda run: run.ended, reverse=True):
        count, size = count + 1, size + run.size
        why = _reason(run, limits, now, count, size)
        if why and now - run.ended >= GRACE:
            count, size = count - 1, size - run.size
            yield Removal(run, why)


def _reason(run: EndedRun, limits: RetentionSettings, now: datetime, count: int, size: int) -> str:
    if limits.age is not None and now - run.ended >= limits.age:
        return f"ended more than {format_duration(limits.age)} ago"
    if limits.count_per_user is not None and count > limits.count_per_user:
        return f"{run.owner} may have {limits.count_per_user} run directories"
    if limits.bytes_per_user is not None and size > limits.bytes_per_user:
        return f"{run.owner} may have {format_size(limits.bytes_per_user)} of run directories"
    return ""


@dataclass(frozen=True, slots=True)
class RetentionService:
    """Applies the limits in the settings."""

    service: JobService
    directories: RunDirectories

    def thread(self) -> PeriodicThread:
        """Return a thread that applies them every hour; it is not started yet."""
        return PeriodicThread("retention", PERIOD_S, self.apply, begin_at_once=True)

    def pending(self) -> list[Removal]:
        """Return the directories that would be removed now."""
        limits = self.service.settings.retention
        if limits.is_unlimited:
            return []
        measure = self.directories.size if limits.bytes_per_user is not None else _unmeasured
        needed = self._needed()
        ids = [job_id for job_id in self.directories.ids() if job_id not in needed]
        runs = [run for job_id in ids if (run := self._ended(job_id, measure)) is not None]
        return choose(runs, limits, self.service.clock.now())

    def apply(self) -> list[Removal]:
        """Remove what the limits do not allow to stay, and return what is gone."""
        self.directories.sweep()
        return self._remove(self.pending())[0]

    def own(self, caller: Caller, references: Sequence[str], older: timedelta) -> list[Removal]:
        """Return the directories that a user may remove: of named jobs, or of all their own that have ended.

        Raises:
            NotFound: there is no such job.
            Refused: a named job belongs to another user, has not ended, or is needed.
        """
        service, needed, now = self.service, self._needed(), self.service.clock.now()
        there = frozenset(self.directories.ids())
        if not references:
            name, uid = service.user(caller).name, caller.uid
            found = [run for job_id in there - needed if (run := self._ended(job_id, _unmeasured))]
            mine = [run for run in found if run.owner == name and self._submitter(run.job_id) == uid]
            old = [run for run in mine if now - run.ended >= older]
            sized = (replace(run, size=self.directories.size(run.job_id)) for run in old)
            return [Removal(run, "you asked for it") for run in sorted(sized, key=lambda run: run.ended)]
        rows = [service.queries.readable(caller, reference) for reference in references]
        for row in rows:
            if not _has_ended(row):
                raise Refused(f"job {row.job.id}: has not ended; runner cancel ends it; nothing was removed")
            if row.job.id in needed:
                raise Refused(f"job {row.job.id}: another job begins with its weights; nothing was removed")
        ids = dict.fromkeys(row.job.id for row in rows if row.job.id in there)
        runs = [run for job_id in ids if (run := self._ended(job_id, self.directories.size))]
        return [Removal(run, "you asked for it") for run in runs]

    def remove(self, removals: Iterable[Removal]) -> list[Removal]:
        """Remove directories, and return those that nobody had come to need meanwhile.

        Raises:
            Unavailable: a directory cannot be removed; the others are gone.
        """
        removed, errors = self._remove(removals)
        if errors:
            raise errors[0]
        return removed

    def _remove(self, removals: Iterable[Removal]) -> tuple[list[Removal], list[Unavailable]]:
        """Remove directories; a process of its user can keep one from going, and no other."""
        removed, errors = [], []
        for each in removals:
            job_id, owner = each.run.job_id, each.run.owner
            try:
                if self.service.daemon.run_exclusively(partial(self._set_aside, each.run)):
                    self.directories.remove(job_id)
                    log.info("run_directory.removed", job_id=job_id, owner=owner, why=each.why)
                    removed.append(each)
            except Unavailable as error:
                log.warning("run_directory.not_removed", job_id=job_id, owner=owner, error=str(error))
                errors.append(error)
        return removed, errors

    def _set_aside(self, run: EndedRun) -> bool:
        """Take a directory away from its job; return False if the job was restarted, or is needed, by now."""
        now = self._ended(run.job_id, _unmeasured)
        if now is None or now.ended != run.ended or run.job_id in self._needed():
            return False
        self.directories.set_aside(run.job_id)
        return True

    def _submitter(self, job_id: str) -> int | None:
        row = self.service.store.find(job_id)
        return None if row is None else parse_revision(row.revision).uid

    def _needed(self) -> frozenset[str]:
        """Return the jobs with whose weights others begin that have not ended."""
        tracked = list(self.service.daemon.tracked_jobs.values())
        return frozenset(filter(None, (_begins_with(each.row.text) for each in tracked)))

    def _ended(self, job_id: str, measure: Callable[[str], int]) -> EndedRun | None:
        row = self.service.store.find(job_id)
        if row is None or not _has_ended(row) or job_id in self.service.daemon.tracked_jobs:
            return None
        return EndedRun(job_id, row.name, row.owner.name, row.job.state.since, measure(job_id))


@cached_by_revision
def _begins_with(revision: Revision) -> str | None:
    """Return the job with whose weights one begins; None: with its own."""
    return None if revision.init is None else revision.init.job


def _has_ended(row: JobRow) -> bool:
    return isinstance(row.job.state, Finished)


def _unmeasured(job_id: str) -> int:
    """Return 0: measuring reads a whole directory, which only some need."""
    del job_id
    return 0
