"""What callers may ask of the daemon, with who they are; the routes only translate to HTTP."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from jobs.contract import Result, Status
from runner.base.broadcast import ChangeBroadcast
from runner.base.errors import Refused, RunnerError
from runner.base.textfile import FileError, one_line
from runner.control.loop import ControlLoop
from runner.core.job.attempt import Attempt, Start
from runner.core.job.describe import ADVISED, SIGNALLED, attempt_prefix
from runner.core.job.events import CancelRequested, Event, HoldRequested, ReleaseRequested, RestartRequested
from runner.core.job.model import Job
from runner.core.job.states import Finished, Held, Preparing, Running, Stopping
from runner.core.ports.clock import Clock
from runner.core.ports.notifications import NotificationFeed
from runner.core.ports.schedules import Schedules
from runner.core.ports.store import AttemptRow, DecisionRow, JobRow, JobStore
from runner.core.ports.usage import UsageReport
from runner.core.ports.users import Owner, User, Users
from runner.files.settings.model import Settings
from runner.services.attempts.prepare import AttemptService
from runner.services.submission import dependencies as predecessors
from runner.services.submission.admission import queue_full, refusal
from runner.services.submission.request import Submission
from runner.services.submission.resolve import Resolution, RevisionResolver
from runner.services.submission.revision import Revision, parse_revision

__all__ = ["MAX_JOB_FILE_BYTES", "Caller", "JobService", "NotFound", "Submission"]

MAX_JOB_FILE_BYTES: Final = 1024**2


class NotFound(RunnerError):
    """There is no such job."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is on the other end of the connection."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class JobService:
    """The daemon with what is needed to answer questions about it."""

    daemon: ControlLoop
    store: JobStore
    schedules: Schedules
    usage_report: UsageReport
    notification_feed: NotificationFeed
    users: Users
    attempt_service: AttemptService
    settings: Settings
    clock: Clock
    broadcast: ChangeBroadcast
    state_dir: Path
    started_at: datetime

    # --- submitting

    def submit(self, caller: Caller, submission: Submission) -> JobRow:
        """Return the accepted job, of a matrix the first one; see ``submit_all``."""
        return self.submit_all(caller, submission)[0]

    def submit_all(self, caller: Caller, submission: Submission) -> tuple[JobRow, ...]:
        """Return the accepted jobs: they are in the store, and will run even if this process dies now.

        Raises:
            SpecError: the job file is wrong; all its errors at once.
            UsageError: it asks for more than there is.
            Refused: the caller may not.
        """
        who = self.user(caller)
        owner = self._owner(who)
        found = self._resolved(who, owner, submission)
        predecessors.refuse_hopeless(submission, found.revisions, owner.name, self.store)
        return self.daemon.ask(lambda: self._accept(caller, owner, found, submission))

    def resolve(self, caller: Caller, submission: Submission) -> Revision:
        """Return the revision that the file of one job stands for.

        Raises:
            SpecError: besides what is wrong with the file, it has a matrix.
        """
        first, *others = self.resolve_all(caller, submission).revisions
        if first.sweep is not None:
            fact = f"stands for {len(others) + 1} jobs; write the values of one of them into the file"
            origin = first.job.origin
            raise FileError(origin.path, [origin.problem(("matrix",), fact)])
        return first

    def resolve_all(self, caller: Caller, submission: Submission) -> Resolution:
        """Return the revisions that a job file stands for: one, or one for each job of its matrix."""
        who = self.user(caller)
        return self._resolved(who, self._owner(who), submission)

    def _resolved(self, who: User, owner: Owner, submission: Submission) -> Resolution:
        resolver = RevisionResolver(self.daemon, self.store, self.users, self.settings, self.state_dir)
        return resolver.all_of(who, owner, submission)

    def owner(self, caller: Caller) -> Owner:
        """Return as whom the jobs of a caller run."""
        return self._owner(self.user(caller))

    def _owner(self, who: User) -> Owner:
        if os.geteuid() != 0:
            return Owner(os.getuid(), os.getgid(), who.name)
        if who.uid == 0:
            run_as = self.settings.root_jobs_run_as
            return Owner(run_as.uid, run_as.gid, who.name)
        return Owner(who.uid, who.gid, who.name)

    def draft(self, owner: Owner, revision: Revision, job_id: str) -> JobRow:
        """Return the row of a job that is not in the store yet."""
        now = self.clock.now()
        job = Job(
            id=job_id,
            state=Preparing(now),
            grace=revision.job.stop_grace,
            time_limit=revision.job.resources.time_limit,
            attempts_max=revision.policy_in_force().ceilings.attempts,
        )
        text, labels = revision.model_dump_json(), dict(revision.job.labels)
        return JobRow(job, revision.job.name, owner, now, revision.job.priority, text, labels)

    def _accept(
        self, caller: Caller, owner: Owner, found: Resolution, submission: Submission
    ) -> tuple[JobRow, ...]:
        token = None if submission.token is None else f"{caller.uid}:{submission.token}"
        known = None if token is None else self.store.submitted_as(token)
        if known is not None:
            return predecessors.members(known, self.store) or (known,)
        first, revisions = int(self.store.next_id()), found.revisions
        rows = [
            self.draft(owner, _numbered(revision, str(first)), str(first + number))
            for number, revision in enumerate(revisions)
        ]
        if found.limited:
            self._still_admitted(submission, rows, revisions[0].team)
        rows = [replace(row, submitted_at=rows[0].submitted_at) for row in rows]  # of one age
        texts = [
            f"submitted by {row.owner.name}: {one_line(revision.path)}{_part(revision)}"
            for row, revision in zip(rows, revisions, strict=True)
        ]
        self.daemon.submit_all(rows, texts, token)
        return tuple(rows)

    def _still_admitted(self, submission: Submission, rows: Sequence[JobRow], team: str) -> None:
        """Look at the quotas of waiting jobs once more: others may have submitted since.

        Raises:
            Refused: the queue has become too long for these.
        """
        if facts := queue_full(self.daemon.picture(), rows[0].owner.name, team, len(rows)):
            raise Refused(refusal(submission, facts))

    def dry_run(self, caller: Caller, submission: Submission) -> Mapping[str, Any]:
        """Return what submitting would lead to: the resolved job, its spec, the exact engine arguments.

        Of a matrix it is the first job, and the names and values of all.
        """
        who = self.user(caller)
        owner = self._owner(who)
        found = self._resolved(who, owner, submission)
        predecessors.refuse_hopeless(submission, found.revisions, owner.name, self.store)
        revisions = found.revisions
        revision = revisions[0]
        row = self.draft(owner, revision, "0")
        attempt = Attempt(1, 1)
        request = self.attempt_service.dry_request(row, attempt, "IMAGE")
        return {
            "job": json.loads(revision.model_dump_json()),
            "spec": self.attempt_service.spec_json(row, attempt),
            "engine": self.daemon.context.executor.plan(request),
            "warnings": list(revision.warnings),
            "jobs": [
                {"name": each.job.name, "values": {} if each.sweep is None else each.sweep.values}
                for each in revisions
            ],
        }

    # --- asking for something to happen

    def cancel(self, caller: Caller, reference: str) -> tuple[JobRow, bool]:
        """Return the job and whether this call changed anything: cancelling twice is no error."""
        return self.cancel_all(caller, (reference,))[0]

    def cancel_sweep(self, caller: Caller, reference: str) -> tuple[tuple[JobRow, bool], ...]:
        """Cancel the jobs of a matrix that have not ended, all or none; see ``cancel_all``."""
        rows = [row for row in self.sweep(caller, reference) if not isinstance(row.job.state, Finished)]
        return self._cancel(caller, rows)

    def cancel_all(self, caller: Caller, references: Sequence[str]) -> tuple[tuple[JobRow, bool], ...]:
        """Return jobs, each with whether this call changed anything: cancelled together, or not at all.

        Raises:
            NotFound: there is no job of one of these names.
            Refused: one is somebody else's.
        """
        return self._cancel(caller, [self.find(reference, caller) for reference in references])

    def _cancel(self, caller: Caller, rows: Sequence[JobRow]) -> tuple[tuple[JobRow, bool], ...]:
        for row in rows:
            self._command(caller, row)
        event = CancelRequested(self.clock.now(), self._name(caller))
        ids = tuple(dict.fromkeys(row.job.id for row in rows))
        return self.daemon.ask(lambda: self._cancelled(ids, event))

    def _cancelled(self, ids: Sequence[str], event: CancelRequested) -> tuple[tuple[JobRow, bool], ...]:
        rows = {job_id: self.now(job_id) for job_id in ids}
        changing = [row for row in rows.values() if not _ends_anyway(row)]
        changed = {row.job.id: row for row in self.daemon.happen_all(changing, event)}
        return tuple((changed.get(job_id, row), job_id in changed) for job_id, row in rows.items())

    def restart(self, caller: Caller, reference: str, start: Start) -> JobRow:
        """Let a job begin another attempt.

        Raises:
            Refused: the job is in no state for it, or there is no checkpoint of the step to begin from.
        """
        row = self._mine(caller, reference)
        if start.step is not None:
            self._look_for(row, start.step)
        event = RestartRequested(self.clock.now(), self._name(caller), start)
        return self._happen(row.job.id, event)

    def _look_for(self, row: JobRow, step: int) -> None:
        """Return if the job has a checkpoint of a step; manifests and sizes are looked at, not the contents.

        Raises:
            Refused: it has none, with those that there are.
        """
        directory, lineage = self.attempt_service.directory(row), row.job.lineage
        saved = directory.saved(directory.paths(max(row.job.attempts, 1), lineage), sure=0)
        if step not in saved.steps:
            there = ", ".join(map(str, sorted(saved.steps))) or "none"
            fact = f"no valid checkpoint of step {step}; lineage {lineage} has {there}"
            raise Refused(f"job {row.job.id}: {fact}; nothing was changed")

    def hold(self, caller: Caller, reference: str) -> JobRow:
        row = self._mine(caller, reference)
        return self._happen(row.job.id, HoldRequested(self.clock.now(), self._name(caller)))

    def release(self, caller: Caller, reference: str) -> JobRow:
        row = self._mine(caller, reference)
        return self._happen(row.job.id, ReleaseRequested(self.clock.now(), self._name(caller)))

    def signal(self, caller: Caller, reference: str, number: int, name: str) -> JobRow:
        row = self._mine(caller, reference)
        text = f"{name} requested by {self._name(caller)}"
        return self.daemon.ask(lambda: self._signal(row.job.id, number, text))

    def _signal(self, job_id: str, number: int, text: str) -> JobRow:
        row = self.now(job_id)
        self.daemon.signal(row, number)
        self.store.note(job_id, self.clock.now(), SIGNALLED, attempt_prefix(row.job.attempts) + text)
        return row

    def _happen(self, job_id: str, event: Event) -> JobRow:
        return self.daemon.ask(lambda: self.daemon.happen(self.now(job_id), event))

    def _mine(self, caller: Caller, reference: str) -> JobRow:
        """Return a job that the caller may command: its owner, root, or the daemon's own user."""
        row = self.find(reference, caller)
        self._command(caller, row)
        return row

    def _command(self, caller: Caller, row: JobRow) -> None:
        """Return if a caller may command a job; it is ``Refused`` if not."""
        if not self.may_command(caller, row):
            raise Refused(f"job {row.job.id}: belongs to {row.owner.name}; only they and root may do that")

    @staticmethod
    def may_command(caller: Caller, row: JobRow) -> bool:
        """Return whether a caller may steer a job, read its output and its job file."""
        return caller.uid in {0, os.geteuid(), parse_revision(row.revision).uid}

    def user(self, caller: Caller) -> User:
        """Return the user of the host that a caller is."""
        return self.users.find_user(caller.uid, caller.gid)

    def _name(self, caller: Caller) -> str:
        return self.user(caller).name

    # --- looking

    def find(self, reference: str, caller: Caller | None = None) -> JobRow:
        """Return a job by its id or its name; a name means the caller's own newest one first.

        Raises:
            NotFound: there is none.
            Refused: it is the name of several people's jobs.
        """
        row = self.store.find(reference, None if caller is None else self._name(caller))
        if row is None:
            fact = caller and predecessors.named_else(
                reference, self._name(caller), caller.uid, self.store, self.schedules
            )
            none = "there is no job of that id or name; runner list --all"
            raise NotFound(f"{one_line(reference)}: {fact or none}")
        return row

    def now(self, job_id: str) -> JobRow:
        """Return a job as the loop knows it; with the turn."""
        entry = self.daemon.entries.get(job_id)
        return entry.row if entry else self.find(job_id)

    def recent(
        self, caller: Caller, *, every: bool, mine: bool, limit: int, label: str | None = None
    ) -> tuple[JobRow, ...]:
        """Return jobs, the newest first; with a label, ``KEY`` or ``KEY=VALUE``, those that have it."""
        since = self.clock.now() - (timedelta(days=36_500) if every else timedelta(days=1))
        uid = self.owner(caller).uid if mine else None
        if label is None:
            return self.store.recent(since, uid, limit)
        key, equals, value = label.partition("=")
        return self.store.labelled(since, uid, limit, key, value if equals else None)

    def sweep(self, caller: Caller, reference: str) -> tuple[JobRow, ...]:
        """Return all jobs of the matrix that a job is of.

        Raises:
            NotFound: there is no such job, or it is of none.
        """
        row = self._first_of(caller, reference) or self.find(reference, caller)
        found = predecessors.members(row, self.store)
        if not found:
            raise NotFound(f"{one_line(reference)}: is no job of a matrix")
        return found

    def _first_of(self, caller: Caller, matrix: str) -> JobRow | None:
        """Return the first job of a matrix by the id of any, or by the name of all."""
        return self.store.get(matrix) or self.store.find(f"{matrix}-1", self._name(caller))

    def readable(self, caller: Caller, reference: str) -> JobRow:
        """Return a job whose output the caller may read."""
        return self._mine(caller, reference)

    def progress(self, row: JobRow) -> Status | None:
        """Return the last heartbeat of a job that is alive."""
        if not isinstance(row.job.state, Running | Stopping):
            return None
        attempt = row.job.state.attempt
        directory = self.attempt_service.directory(row)
        return directory.status(directory.paths(attempt.number, attempt.lineage))

    def attempts(self, row: JobRow) -> tuple[tuple[AttemptRow, Result | None, Status | None], ...]:
        """Return what is known of each attempt, with what it wrote about itself."""
        directory = self.attempt_service.directory(row)
        paths = [(a, directory.paths(a.number, a.lineage)) for a in self.store.attempts(row.job.id)]
        return tuple((a, directory.result(p), directory.status(p)) for a, p in paths)

    def decisions(self, caller: Caller, reference: str, attempt: int | None) -> tuple[DecisionRow, ...]:
        """Return what the policy has decided about a job, or one of its attempts, the oldest first."""
        row = self.readable(caller, reference)
        return self.store.decisions(row.job.id, attempt)

    def advice(self, row: JobRow) -> list[str]:
        """Return what its policy has advised about the newest attempt of a job."""
        return [
            text
            for text in self.store.noted(row.job.id, ADVISED)
            if text.startswith(attempt_prefix(row.job.attempts))
        ]

    @staticmethod
    def settled(row: JobRow) -> bool:
        """Return whether nothing more will happen to the job by itself."""
        return isinstance(row.job.state, Finished | Held)


def _ends_anyway(row: JobRow) -> bool:
    """Return whether a job has ended, or was cancelled before and is about to end."""
    state = row.job.state
    return isinstance(state, Finished) or (isinstance(state, Stopping) and state.reason == "cancelled")


def _numbered(revision: Revision, first: str) -> Revision:
    """Return a revision with the id of its matrix, which is that of the first job."""
    if revision.sweep is None:
        return revision
    return revision.model_copy(update={"sweep": revision.sweep.model_copy(update={"id": first})})


def _part(revision: Revision) -> str:
    sweep = revision.sweep
    return "" if sweep is None else f" ({sweep.number} of {sweep.count} of its matrix)"
