"""Looking up jobs, and who may do so."""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from jobs.contract import Effective, Result, Status, TraceSummary
from runner.agent.attempts.checkpoints import program_files, read_program_start, read_saved
from runner.agent.attempts.examine import read_log_status
from runner.base.errors import Refused
from runner.base.textfile import one_line
from runner.core.job.attempt import ProgramStart
from runner.core.job.describe import ADVISED, attempt_prefix
from runner.core.job.exit_cause import NO_MATCH
from runner.core.job.states import Finished, Held, Running, Stopping
from runner.core.ports.checkpoints import Verification
from runner.core.ports.store import AttemptRow, JobRow
from runner.core.sweep import is_paused
from runner.files.revision import parse_revision
from runner.services.context import Caller, NotFound, ServiceContext
from runner.services.submission import dependencies

RECENT: Final = timedelta(days=1)
"""Age of the ended jobs that a list shows at least."""

FOREVER: Final = timedelta(days=36_500)

UNRECORDED: Final = (
    "the store does not know this job, as after a restore; submit its file again; its directory is {}"
)

DECIDES: Final = timedelta(minutes=1)
"""Time within which a sweep has decided about a candidate that has been held."""

MOST_UNRECORDED: Final = 100
"""Ids that are named at once."""

MOST_TRACED: Final = 20
"""The newest attempts among which a trace is looked for."""


@dataclass(frozen=True, slots=True)
class JobQueries:
    """Answers questions about the jobs of one daemon; nothing changes."""

    context: ServiceContext

    def find(self, reference: str, caller: Caller | None = None) -> JobRow:
        """Return a job by its id or its name; of several with a name the caller's newest.

        Raises:
            NotFound: there is none, or a matrix of that name is newer.
            Refused: it is the name of several users' jobs.
        """
        found, name = self._named(reference, caller), one_line(reference)
        if found and reference in {found[0].job.id, found[0].name}:
            return found[0]
        fact = "there is no job of that id or name; runner list --all"
        if found:
            fact = f"is a matrix of {len(found)} jobs, and no newer job has that name"
            fact += f"; runner list --sweep {name}"
        elif caller is not None and reference in self.unrecorded(caller):
            fact = UNRECORDED.format(self.context.state_dir / "jobs" / reference)
        elif caller is not None:
            user = self.context.user(caller)
            if self.context.schedules.named(reference, user.uid, user.name):
                fact = f"is a schedule, and no job has that name; runner schedule show {name}"
        raise NotFound(f"{name}: {fact}")

    def _named(self, reference: str, caller: Caller | None) -> tuple[JobRow, ...]:
        """Return a job, or all jobs of a matrix: the caller's newest of a name; without one another user's.

        Raises:
            Refused: as ``find``.
        """
        user = None if caller is None else self.context.user(caller).name
        newest = partial(dependencies.newest_named, reference, store=self.context.store)
        if user is not None and not reference.isdecimal() and (own := newest(user)):
            return own
        row = self._found(reference, caller, user)
        if row is None or row.job.id == reference:
            return () if row is None else (row,)
        return newest(row.owner.name)

    def _found(self, reference: str, caller: Caller | None, user: str | None) -> JobRow | None:
        """Return a job by its id or its name; where jobs are private, no other user's by its name.

        Raises:
            Refused: it is the name of several users' jobs, or the id of a private one.
        """
        store = self.context.store
        private = self.context.settings.private_jobs
        if caller is None or user is None or not private or self.sees_all(caller):
            return store.find(reference, user)
        row = store.get(reference) if reference.isascii() and reference.isdecimal() else None
        if row is None:
            return store.newest_of(user, reference)
        if self.is_hidden(caller, row):
            raise Refused(f"job {row.job.id}: belongs to {row.owner.name}; jobs are private here")
        return row

    def is_hidden(self, caller: Caller, row: JobRow) -> bool:
        """Return True if a caller may not see the name of a job and what it does."""
        return self.context.settings.private_jobs and not self.has_permission(caller, row)

    def unrecorded(self, caller: Caller) -> tuple[str, ...]:
        """Return the ids with a run directory of the caller that the store does not know."""
        every = self.sees_all(caller)
        mine = (job for job, uid in self.context.unrecorded.items() if every or uid == caller.uid)
        jobs = self.context.state_dir / "jobs"
        return tuple(job for job in islice(mine, MOST_UNRECORDED) if (jobs / job).exists())

    def current(self, job_id: str) -> JobRow:
        """Return a job as the control loop holds it; call this with the state lock."""
        tracked = self.context.daemon.tracked_jobs.get(job_id)
        return tracked.row if tracked else self.find(job_id)

    def recent(  # noqa: PLR0913  (one per condition)
        self,
        uid: int | None,
        limit: int,
        *,
        every: bool = False,
        label: str | None = None,
        before: int | None = None,
        ended: bool | None = None,
    ) -> tuple[JobRow, ...]:
        """Return unfinished and recent jobs, the newest first.

        Args:
            uid: of the owner; None means everybody's jobs.
            limit: the largest number of jobs.
            every: include the jobs that ended long ago.
            label: ``KEY`` or ``KEY=VALUE``; only the jobs that have this label.
            before: only jobs with smaller ids, for the next page.
            ended: only jobs that have ended, or only the others; not with a label.
        """
        store, now = self.context.store, self.context.clock.now()
        if label is None:
            return store.recent(None if every else now - RECENT, uid, limit, before, ended)
        key, equals, value = label.partition("=")
        since = now - (FOREVER if every else RECENT)
        return store.labelled(since, uid, limit, key, value if equals else None, before)

    def sweep(self, caller: Caller, reference: str) -> tuple[JobRow, ...]:
        """Return all jobs of a matrix by the id of one of them, or by the name of the matrix.

        Raises:
            NotFound: there is no such job, or it belongs to no matrix.
        """
        store, owner = self.context.store, self.context.user(caller).name
        if self.context.settings.private_jobs:
            row = store.newest_of(owner, f"{reference}-1") or self.find(reference, caller)
        else:
            row = store.get(reference) or store.find(f"{reference}-1", owner) or self.find(reference, caller)
        found = dependencies.members(row, store)
        if not found:
            raise NotFound(f"{one_line(reference)}: is not a job of a matrix")
        return found

    def readable(self, caller: Caller, reference: str) -> JobRow:
        """Return a job that the caller may read and steer.

        Raises:
            Refused: the job belongs to another user.
        """
        row = self.find(reference, caller)
        self.check_permission(caller, row)
        return row

    def find_living(self, reference: str, caller: Caller) -> JobRow:
        """Return a job as ``find`` does; if what it means has ended, the newest of that name that has not.

        It is for what can be done to such a job alone.  An older matrix is never meant: it is many jobs.
        """
        found = self._named(reference, caller)
        if found and all(isinstance(each.job.state, Finished) for each in found):
            tracked = [each.row for each in list(self.context.daemon.tracked_jobs.values())]
            living = [each for each in tracked if (each.name, each.owner) == (reference, found[0].owner)]
            if living:
                return max(living, key=lambda each: int(each.job.id))
        return self.find(reference, caller)

    def readable_living(self, caller: Caller, reference: str) -> JobRow:
        """Return the job of ``find_living`` if the caller may read and steer it, as ``readable`` does."""
        row = self.find_living(reference, caller)
        self.check_permission(caller, row)
        return row

    def check_permission(self, caller: Caller, row: JobRow) -> None:
        """Raise ``Refused`` unless a caller may read and steer a job."""
        if not self.has_permission(caller, row):
            is_reused = caller.uid == parse_revision(row.revision).uid
            whose = f"{row.owner.name}, who had uid {caller.uid} before" if is_reused else row.owner.name
            raise Refused(f"job {row.job.id}: belongs to {whose}; only they and root may do that")

    @staticmethod
    def sees_all(caller: Caller) -> bool:
        """Return True if a caller is root or the daemon's own user."""
        return caller.uid in {0, os.geteuid()}

    def has_permission(self, caller: Caller, row: JobRow) -> bool:
        """Return True if a caller may read and steer a job: its owner, root, and the daemon's own user.

        A uid is given again when an account is gone, so the name counts, too.
        """
        if self.sees_all(caller):
            return True
        revision = parse_revision(row.revision)
        return caller.uid == revision.uid and self.context.user(caller).name == revision.user

    def progress(self, row: JobRow) -> Status | None:
        """Return the last heartbeat of a job that runs, or of a program what its log tells."""
        if not isinstance(row.job.state, Running | Stopping):
            return None
        attempt = row.job.state.attempt
        return self.last_progress(row, attempt.number, attempt.lineage)

    def last_progress(self, row: JobRow, attempt: int, lineage: int) -> Status | None:
        """Return the last report of an attempt, whether it has ended or not."""
        directory = self.context.attempt_service.directory(row)
        paths = directory.paths(attempt, lineage)
        return directory.status(paths) or read_log_status(directory, paths, parse_revision(row.revision))

    def missed_checkpoints(self, row: JobRow) -> str:
        """Return that the pattern of a job's checkpoints has named nothing so far; empty if it has."""
        if program_files(parse_revision(row.revision)) is None or not row.job.attempts:
            return ""
        directory = self.context.attempt_service.directory(row)
        paths = directory.paths(row.job.attempts, row.job.lineage)
        missed = read_saved(directory, paths, row, Verification.KNOWN).missed
        told = isinstance(row.job.state, Finished) and NO_MATCH in row.job.state.why
        return f"; {NO_MATCH}{missed}" if missed and not told else ""

    def attempts(
        self, row: JobRow
    ) -> tuple[tuple[AttemptRow, Result | None, Status | None, ProgramStart | None], ...]:
        """Return the attempts of a job, each with its result, its last heartbeat, and its program's start."""
        directory = self.context.attempt_service.directory(row)
        attempts = self.context.store.attempts(row.job.id)
        paths = [(each, directory.paths(each.number, each.lineage)) for each in attempts]
        saves = program_files(parse_revision(row.revision)) is not None
        return tuple(
            (
                each,
                directory.result(own),
                directory.status(own),
                read_program_start(directory, own) if saves else None,
            )
            for each, own in paths
        )

    def trace(self, row: JobRow) -> tuple[int, TraceSummary] | None:
        """Return the newest attempt of a job that has recorded a trace, with its table."""
        directory = self.context.attempt_service.directory(row)
        for each in islice(reversed(self.context.store.attempts(row.job.id)), MOST_TRACED):
            if (found := directory.trace(directory.paths(each.number, each.lineage))) is not None:
                return each.number, found
        return None

    def advice(self, row: JobRow) -> list[str]:
        """Return the advice about the newest attempt of a job: of the policy, and of the training itself."""
        noted, prefix = self.context.store.noted(row.job.id, ADVISED), attempt_prefix(row.job.attempts)
        own = () if (effective := self.effective(row)) is None else effective.advice
        policys = [text for text in noted if text.startswith(prefix)]
        return policys + [f"{prefix}{one_line(text)}" for text in own]

    def effective(self, row: JobRow) -> Effective | None:
        """Return the settings in force that the newest attempt of a job has reported."""
        directory = self.context.attempt_service.directory(row)
        return directory.effective(directory.paths(row.job.attempts, row.job.lineage))

    def is_settled(self, row: JobRow) -> bool:
        """Return True if a job has ended or is held: its state does not change by itself any more."""
        is_over = isinstance(row.job.state, Finished | Held)
        return is_over and (not is_paused(row.job.state) or self.blocked(row) != "")

    def blocked(self, row: JobRow) -> str:
        """Return the held candidate that the sweep of a paused one waits for; empty if others go on."""
        if not is_paused(row.job.state):
            return ""
        sweep, before = dependencies.members(row, self.context.store), self.context.clock.now() - DECIDES
        left = [each for each in sweep if not isinstance(each.job.state, Finished)]
        held = [each for each in left if not is_paused(each.job.state)]
        if not held or any(not isinstance(s := each.job.state, Held) or s.since > before for each in left):
            return ""
        return f"; its sweep waits for {held[0].name}: runner release {held[0].job.id} lets that go on"
