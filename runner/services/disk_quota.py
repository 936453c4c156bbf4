"""Limits on the disk space of jobs: a job that exceeds one is held, with the reason.

File systems have quotas for users and projects of their own, which are exact.  These limits are measured
every half minute, for hosts where an operator cannot set those up.  Empty files take no bytes and can still
use up all inodes of a file system, so files count as well.  A held job has been asked to stop, so it saves
once more.  It goes on when somebody has removed files and released it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from runner.base.errors import RunnerError
from runner.base.threads import PeriodicThread
from runner.base.units import format_size
from runner.core.job.events import HoldRequested
from runner.core.job.states import Running
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
    again_s: float
    """Time of the next measurement while its job runs, by the monotonic clock."""
    ended: bool
    """Its job did not run then, so it has not changed since."""


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
    _running_of: Counter[str] = field(default_factory=Counter)

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
        running = list(self._running())
        self._running_of = Counter(row.owner.name for row in running)
        over = {row.job.id: why for row in running if (why := self._excess_of_job(row, of_job)) is not None}
        if of_user != NO_LIMIT:
            over = {**self._excess_of_users(running, of_user), **over}
        for job_id, why in over.items():
            self._hold(job_id, why)

    def _running(self) -> Iterator[JobRow]:
        for tracked in list(self.service.daemon.tracked_jobs.values()):
            if isinstance(tracked.row.job.state, Running):
                yield tracked.row

    def _excess_of_job(self, row: JobRow, limit: DiskUse) -> str | None:
        use = self._use(row.job.id, limit, self._running_of[row.owner.name])
        return excess(use, limit, "its directory has", "job")

    def _excess_of_users(self, running: list[JobRow], limit: DiskUse) -> dict[str, str]:
        """Return the largest running job of each user who exceeds a limit, with the reason."""
        found: dict[str, str] = {}
        for owner in {row.owner.name for row in running}:
            own = {row.job.id: row for row in running if row.owner.name == owner}
            jobs = {*own, *self._jobs_of(owner)}
            total = sum((self._use(job, limit, len(own) if job in own else 0) for job in jobs), DiskUse())
            why = excess(total, limit, "the directories of its owner's jobs have", "user")
            if why is not None:
                largest = max(own.values(), key=self._weight)
                found[largest.job.id] = why
        return found

    def _weight(self, row: JobRow) -> tuple[int, int]:
        known = self._known.get(row.job.id)
        return (0, 0) if known is None else (known.use.size, known.use.files)

    def _jobs_of(self, owner: str) -> Iterator[str]:
        for job_id in self.directories.ids():
            row = self.service.store.get(job_id)
            if row is not None and row.owner.name == owner:
                yield job_id

    def _use(self, job_id: str, most: DiskUse, running: int) -> DiskUse:
        """Return the size of a directory, or that when it was measured not long ago.

        ``running`` is the number of its owner's running jobs, 0 for a job that has ended.
        """
        clock, known = self.service.clock, self._known.get(job_id)
        began = clock.monotonic()
        if known is not None and (began < known.again_s if running else known.ended):
            return known.use
        use = self.directories.use(job_id, most)
        took = clock.monotonic() - began
        self._known[job_id] = DirectorySize(use, began + took * running / WORK_SHARE, not running)
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
