"""Limits on the disk space of jobs: a job that exceeds one is held, with the reason.

File systems have quotas for users and projects of their own, which are exact.  These limits are measured
every half minute, for hosts where an operator cannot set those up.  Empty files take no bytes and can still
use up all inodes of a file system, so files count as well.  A held job has been asked to stop, so it saves
once more.  It goes on when somebody has removed files and released it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

import structlog

from runner.base.errors import RunnerError
from runner.base.threads import PeriodicThread
from runner.base.units import format_size
from runner.core.job.events import HoldRequested
from runner.core.job.states import Allocated, Running, State
from runner.core.ports.disk_use import DiskUse, MeasuredDirectories
from runner.core.ports.store import JobRow
from runner.files.settings.disk_quota import DiskQuotaSettings
from runner.services.jobs import JobService

log = structlog.get_logger()

SHARED_FILES_PER_JOB: Final = 500_000
"""Files of a job of a daemon that serves all users, unless the settings say otherwise."""

WORK_SHARE: Final = 0.05
"""Of the time that measuring the directories of one user may take: each of two that took 3 s is
measured again after two minutes."""

NAME: Final = "the disk quota"


@dataclass(frozen=True, slots=True)
class DirectorySize:
    """Size of a directory at the time of its measurement."""

    use: DiskUse
    at_s: float
    """Time of the measurement, by the monotonic clock."""
    again_s: float
    """Time of the next one; infinite for a job that has no devices, which changes nothing."""
    state: State
    """The job's state then: in another one it is measured again."""


NO_LIMIT: Final = DiskUse(2**63, 2**63)


def limits_of(settings: DiskQuotaSettings, *, shared: bool) -> tuple[DiskUse, DiskUse]:
    """Return the limits of a job and of a user."""
    files = settings.files_per_job or (SHARED_FILES_PER_JOB if shared else NO_LIMIT.files)
    of_user = DiskUse(settings.bytes_per_user or NO_LIMIT.size, settings.files_per_user or NO_LIMIT.files)
    return DiskUse(settings.bytes_per_job or NO_LIMIT.size, files), of_user


def excess(use: DiskUse, limit: DiskUse, whose: str, key: str) -> str | None:
    """Return the limit that is exceeded, and the way on; None if none is."""
    if use.files > limit.files:
        fact = f"{whose} more than {limit.files} files (disk_quota.files_per_{key})"
    elif use.size > limit.size:
        fact = f"{whose} more than {format_size(limit.size)} (disk_quota.bytes_per_{key})"
    else:
        return None
    return f"{fact}; remove some, then release it"


@dataclass(slots=True)
class DiskQuotas:
    """Measures the directories of running jobs, and holds those that exceed a limit."""

    service: JobService
    directories: MeasuredDirectories
    _known: dict[str, DirectorySize] = field(default_factory=dict)
    _active_of: Counter[str] = field(default_factory=Counter)

    def thread(self) -> PeriodicThread:
        """Return a thread that looks from now on; it is not started yet."""
        return PeriodicThread("disk-quota", lambda: self.service.settings.disk_quota.every_s, self.look)

    def look(self) -> None:
        """Look at all running jobs once."""
        of_job, of_user = limits_of(
            self.service.settings.disk_quota, shared=self.service.settings.serves_all_users
        )
        if of_job == of_user == NO_LIMIT:
            return
        began = self.service.clock.monotonic()
        rows = [tracked.row for tracked in list(self.service.daemon.tracked_jobs.values())]
        running = [row for row in rows if isinstance(row.job.state, Running)]
        self._active_of = Counter(row.owner.name for row in rows if isinstance(row.job.state, Allocated))
        over = {row.job.id: why for row in running if (why := self._excess_of_job(row, of_job)) is not None}
        if of_user != NO_LIMIT:
            over = {**self._excess_of_users(running, of_user, began), **over}
        for job_id, why in over.items():
            self._hold(job_id, why)

    def _excess_of_job(self, row: JobRow, limit: DiskUse) -> str | None:
        return excess(self._use(row, limit), limit, "its directory has", "job")

    def _excess_of_users(self, running: list[JobRow], limit: DiskUse, since_s: float) -> dict[str, str]:
        """Return the largest running job of each user who exceeds a limit, with the reason.

        Directories that were measured before ``since_s`` are measured again before one is named.
        """
        found: dict[str, str] = {}
        for owner in {row.owner.name for row in running}:
            own = {row.job.id: row for row in running if row.owner.name == owner}
            rows = list({**{row.job.id: row for row in self._jobs_of(owner)}, **own}.values())
            why = self._excess_of_user(rows, limit)
            if why is not None:  # files may have been removed since they were counted
                why = self._excess_of_user(rows, limit, since_s)
            if why is not None:
                largest = max(own.values(), key=self._weight)
                found[largest.job.id] = why
        return found

    def _excess_of_user(self, rows: list[JobRow], limit: DiskUse, since_s: float = -inf) -> str | None:
        """Return the limit that the directories of one user exceed, measured after a time."""
        total = DiskUse()
        for row in sorted(rows, key=self._weight, reverse=True):
            total += self._use(row, limit, since_s)
            why = excess(total, limit, "the directories of its owner's jobs have", "user")
            if why is not None:
                return why
        return None

    def _weight(self, row: JobRow) -> tuple[int, int]:
        known = self._known.get(row.job.id)
        return (0, 0) if known is None else (known.use.size, known.use.files)

    def _jobs_of(self, owner: str) -> Iterator[JobRow]:
        for job_id in self.directories.ids():
            row = self.service.store.get(job_id)
            if row is not None and row.owner.name == owner:
                yield row

    def _use(self, row: JobRow, most: DiskUse, since_s: float = -inf) -> DiskUse:
        """Return the size of a job's directory, or that of an earlier measurement after ``since_s``."""
        clock, known, state = self.service.clock, self._known.get(row.job.id), row.job.state
        began = clock.monotonic()
        if known is not None and known.state == state and known.at_s >= since_s and began < known.again_s:
            return known.use
        use = self.directories.use(row.job.id, most)
        took = clock.monotonic() - began
        wait_s = took * self._active_of[row.owner.name] / WORK_SHARE if isinstance(state, Allocated) else inf
        self._known[row.job.id] = DirectorySize(use, began, began + wait_s, state)
        return use

    def _hold(self, job_id: str, why: str) -> None:
        def hold() -> None:
            row = self.service.queries.current(job_id)
            if isinstance(row.job.state, Running):
                self.service.daemon.apply_event(
                    row, HoldRequested(self.service.clock.now(), f"{NAME}: {why}")
                )

        log.warning("job.over_disk_quota", job_id=job_id, why=why)
        self._known.pop(job_id, None)  # it is measured anew when it runs again
        try:
            self.service.daemon.run_exclusively(hold)
        except RunnerError as error:  # it has just ended; if not, the next round finds it again
            log.info("job.not_held", job_id=job_id, problem=str(error))
