"""Submitting jobs: a job file becomes jobs in the store, or an answer to what it would become."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from shutil import disk_usage
from typing import Any, Final

from jobs.contract import Program
from runner.agent.host_processes import HostProcesses
from runner.agent.package_locks import PackagesPending
from runner.base import privileges
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.readable import readable_size
from runner.base.textfile import FileError, one_line
from runner.base.units import format_size
from runner.base.waiting import check_wanted
from runner.core.job.attempt import Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText, share_text, total_size
from runner.core.job.states import Preparing
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner, User
from runner.core.scheduler.admission import check_queued
from runner.files.host_paths import find_host_paths
from runner.files.job.program_files import checkpoint_mount
from runner.files.revision import Revision
from runner.files.settings.notify import OWN_LABEL
from runner.files.shell import find_scripts
from runner.files.submission import Submission
from runner.services.context import Caller, ServiceContext
from runner.services.submission import dependencies
from runner.services.submission.admission import refusal, stored_too_fast, too_large
from runner.services.submission.device_requests import plan_with_devices
from runner.services.submission.mount_links import describe_links
from runner.services.submission.packages import KnownRevisions, none_known
from runner.services.submission.resolve import resolve
from runner.services.submission.shared_checkpoints import shared_checkpoints

LEAST_TO_START_BYTES: Final = 256 * 1024
"""Less than the directories and files that the start of an attempt makes."""

AWAITS_ENGINE: Final = (
    "waits until the container engine answers: {}; start it, or let jobs run as plain processes with"
    " executor: process in the settings"
)
"""Message to a submitter while the engine is down; why it does not answer goes in."""


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job that is about to be accepted, with its text and the attempts that its policy allows."""

    revision: Revision
    text: RevisionText
    attempts_max: int

    def in_matrix(self, first: int) -> "JobDraft":
        """Return the job with the id of its matrix in its text, which is the id of the first job."""
        if self.revision.sweep is None:
            return self
        return replace(self, text=self.text.edited((("sweep", "id"), str(first))))


@dataclass(frozen=True, slots=True)
class SubmissionService:
    """Accepts job files."""

    context: ServiceContext

    def submit(self, caller: Caller, submission: Submission) -> JobRow:
        """Submit a job file and return its job, of a matrix the first one; see ``submit_all``."""
        return self.submit_all(caller, submission)[0]

    def submit_all(self, caller: Caller, submission: Submission) -> tuple[JobRow, ...]:
        """Submit a job file and return its jobs.  They are in the store, and run even if the daemon dies now.

        Raises:
            FileError: the job file is wrong; all its errors at once.
            UsageError: it requests more than there is.
            Refused: the caller may not submit it.
        """
        owner, revisions = self.owner(caller), self.resolve_all(caller, submission)
        dependencies.refuse_hopeless(submission, revisions, owner.name, self.context.store)
        drafts = self.drafts(submission, revisions)
        return self.context.daemon.run_exclusively(lambda: self._accept(caller, owner, drafts, submission))

    def drafts(self, submission: Submission, revisions: Sequence[Revision]) -> tuple[JobDraft, ...]:
        """Return the jobs of a submission as they will be written; their texts share what is equal.

        Raises:
            Refused: the texts are too large together.
        """
        limit, size = self.context.settings.submission_bytes, 0
        found: list[JobDraft] = []
        for revision, text in zip(revisions, share_text(_dump_each(revisions)), strict=True):
            size += text.own_size + (0 if found else len(text.shared.text))
            if limit is not None and size > limit:
                raise Refused(_too_large(submission, len(revisions), limit))
            found.append(JobDraft(revision, text, revision.policy_in_force().ceilings.attempts))
        return tuple(found)

    def resolve(self, caller: Caller, submission: Submission, known: KnownRevisions = none_known) -> Revision:
        """Return the revision of a job file with one job.

        ``known`` returns the present revision of a job by its name: a change that asks for the same packages
        and image keeps them, whatever the index and the registry say now.

        Raises:
            FileError: the file is wrong, or has a matrix.
        """
        first, *others = self._resolve_patiently(caller, submission, known)
        if first.sweep is not None:
            fact = f"stands for {len(others) + 1} jobs; write the values of one of them into the file"
            origin = first.job.origin
            raise FileError(origin.path, [origin.problem(("matrix",), fact)])
        return first

    def _resolve_patiently(
        self, caller: Caller, submission: Submission, known: KnownRevisions
    ) -> tuple[Revision, ...]:
        """Return the revisions of a job file, also if its packages have to be resolved first."""
        locks = self.context.package_locks
        while True:
            try:
                return self.resolve_all(caller, submission, known)
            except PackagesPending as error:
                if locks is None:
                    raise
                locks.wait(error.pending)

    def resolve_all(
        self, caller: Caller, submission: Submission, known: KnownRevisions = none_known
    ) -> tuple[Revision, ...]:
        """Return the revisions of a job file: one, or one for each job of its matrix."""
        user = self.context.user(caller)
        return resolve(self.context, user, self._owner_of(user), submission, known)

    def dry_run(self, caller: Caller, submission: Submission) -> Mapping[str, Any]:
        """Return the result that a submission would have: the resolved job, its spec, the engine arguments.

        Of a matrix it is the first job, with the names and values of all.
        """
        context, owner = self.context, self.owner(caller)
        revisions = self.resolve_all(caller, submission)
        dependencies.refuse_hopeless(submission, revisions, owner.name, context.store)
        revision = revisions[0]
        row, attempt = self.draft(owner, revision, "0"), Attempt(1, 1)
        shares = checkpoint_mount(revision.job) is not None  # a large matrix is not written out for nothing
        drafts = self.drafts(submission, revisions) if shares else ()
        rows = [self._row(owner, draft, "0") for draft in drafts] or [row]
        request = context.attempt_service.preview_launch(row, attempt, "IMAGE")
        engine, devices = plan_with_devices(context.daemon, row, revision.needs(), request)
        return {
            "job": {
                **json.loads(revision.model_dump_json()),
                "network": context.attempt_service.network(row)[0],  # of a process that of its host
            },
            "spec": context.attempt_service.spec_json(row, attempt),
            "engine": engine,
            **({} if devices is None else {"devices": devices}),
            "warnings": [*self.warnings(revision), *self.shared_checkpoints(rows)],
            "jobs": [
                {"name": each.job.name, "values": {} if each.sweep is None else each.sweep.values}
                for each in revisions
            ],
        }

    def _script_warnings(self, revision: Revision) -> Iterator[str]:
        """Yield the losses of the shell scripts in a program's code."""
        code, plan = revision.code_directory(), revision.job.workload
        if code is None or not isinstance(plan, Program):
            return
        who = User(revision.uid, revision.gid, revision.groups, revision.user)
        for path in find_scripts(plan.command):
            if not PurePosixPath(path).is_absolute():
                yield from self.context.users.check_script(who, code, path)

    def _dockerfile_warnings(self, revision: Revision) -> tuple[str, ...]:
        """Return the warnings about a Dockerfile: an image that is named only there, and replaced."""
        image = revision.job.image
        who = User(revision.uid, revision.gid, revision.groups, revision.user)
        with suppress(UsageError, Unavailable):
            if image.dockerfile is not None and image.base is None:
                return self.context.users.check_dockerfile(who, revision.base, image.dockerfile, None)
        return ()

    def warnings(self, revision: Revision) -> tuple[str, ...]:
        """Return the warnings about an accepted job for its submitter, one line each."""
        written = (
            *revision.warnings,
            *self._disk_warnings(),
            *self._script_warnings(revision),
            *self._notify_warnings(revision),
        )
        processes, problem = self.context.host_processes, self.context.daemon.executor_problem()
        if processes:
            return (
                *written,
                *processes.warnings(),
                *_mount_warnings(revision),
                *self._interpreter_warnings(processes, revision),
            )
        return (
            *written,
            *self._dockerfile_warnings(revision),
            *self._link_warnings(revision),
            *find_host_paths(revision),
            *([AWAITS_ENGINE.format(problem)] if problem else self._image_warnings(revision)),
        )

    def shared_checkpoints(self, rows: Sequence[JobRow]) -> Iterator[str]:
        """Return the warnings about checkpoints that the jobs of a submission share with living ones."""
        tracked = list(self.context.daemon.tracked_jobs.values())
        return shared_checkpoints(rows, [each.row for each in tracked])

    def _disk_warnings(self) -> Iterator[str]:
        """Yield that the disk of the state directory is full, so that a job cannot start."""
        place = self.context.state_dir
        if (free := disk_usage(place).free) < LEAST_TO_START_BYTES:
            fact = f"{place}: {readable_size(free)} are free on its file system, too little to start a job"
            yield f"{fact}; it waits until somebody makes room there"

    def _image_warnings(self, revision: Revision) -> Iterator[str]:
        """Yield that it is not known yet which image the name of a job's image means."""
        name = revision.job.image.offered
        if self.context.images is not None and name != "auto" and revision.image is None:
            step = "the job waits for it, and runner why JOB has its words"
            yield f"image: nobody says now which image {name} is, as its registry does not answer; {step}"

    def _notify_warnings(self, revision: Revision) -> Iterator[str]:
        """Yield that nothing is sent to the address that a job names."""
        labels, rules = revision.job.labels, [rule for rule in self.context.settings.notify if rule.own]
        if OWN_LABEL in labels and rules and not any(rule.for_job(labels) for rule in rules):
            allowed = ", ".join(dict.fromkeys(each for rule in rules for each in rule.own))
            yield f"labels.{OWN_LABEL}: nothing is sent there; the operator allows {allowed}"

    def _link_warnings(self, revision: Revision) -> Iterator[str]:
        """Yield the targets of links in a job's mounts that are not in its container."""
        who = User(revision.uid, revision.gid, revision.groups, revision.user)
        find = partial(self.context.users.find_links_out, who)
        return describe_links(revision.job, revision.base, find)

    def _interpreter_warnings(self, processes: HostProcesses, revision: Revision) -> tuple[str, ...]:
        """Return that the user of a job cannot start the daemon's interpreter, as one below /root."""
        if not processes.starts_python(revision.job):
            return ()
        owner = self._owner_of(User(revision.uid, revision.gid, revision.groups, revision.user))
        runs_as = User(owner.uid, owner.gid, (owner.gid,), f"uid {owner.uid}")
        if self.context.users.path_problem(runs_as, Path(processes.python), "file") is None:
            return ()
        fact = f"will not start: it runs as uid {owner.uid}, which cannot read {one_line(processes.python)}"
        step = "the operator installs the runner where all users can read it, or gives it a container engine"
        return (f"{fact}; {step}",)

    def owner(self, caller: Caller) -> Owner:
        """Return the owner of the jobs that a caller submits."""
        return self._owner_of(self.context.user(caller))

    def draft(self, owner: Owner, revision: Revision, job_id: str) -> JobRow:
        """Return the row of a job that is not in the store yet."""
        text = RevisionText.of(revision.model_dump_json())
        draft = JobDraft(revision, text, revision.policy_in_force().ceilings.attempts)
        return self._row(owner, draft, job_id)

    def _row(self, owner: Owner, draft: JobDraft, job_id: str) -> JobRow:
        """Return the row of a new job; nothing is parsed, so that it can be made in the exclusive section."""
        revision = draft.revision
        now = self.context.clock.now()
        job = Job(
            id=job_id,
            state=Preparing(now),
            grace=revision.job.stop_grace,
            time_limit=revision.job.resources.time_limit,
            attempts_max=draft.attempts_max,
        )
        labels = dict(revision.job.labels)
        return JobRow(job, revision.job.name, owner, now, revision.job.priority, draft.text, labels)

    def _owner_of(self, user: User) -> Owner:
        if not privileges.acts_for_root():
            return Owner(os.getuid(), os.getgid(), user.name)
        if user.uid == 0:
            run_as = self.context.settings.root_jobs_run_as
            return Owner(run_as.uid, run_as.gid, user.name)
        return Owner(user.uid, user.gid, user.name)

    def submitted(self, caller: Caller, token: str) -> tuple[JobRow, ...]:
        """Return the jobs that a caller's submission of this token has made; none if it has made none."""
        store = self.context.store
        row = store.submitted_as(_token(caller, token))
        return () if row is None else dependencies.members(row, store) or (row,)

    def _accept(
        self,
        caller: Caller,
        owner: Owner,
        drafts: Sequence[JobDraft],
        submission: Submission,
    ) -> tuple[JobRow, ...]:
        """Write the jobs of a submission into the store; a repeated one returns the jobs of the first."""
        store = self.context.store
        token = None if submission.token is None else _token(caller, submission.token)
        if submission.token is not None and (known := self.submitted(caller, submission.token)):
            return known
        first = int(store.next_id())
        rows = [
            self._row(owner, draft.in_matrix(first), str(first + number))
            for number, draft in enumerate(drafts)
        ]
        self._check_quotas(submission, rows, drafts[0].revision.team)
        rows = [
            replace(row, submitted_at=rows[0].submitted_at) for row in rows
        ]  # they have waited equally long
        told = [
            f"submitted by {row.owner.name}: {one_line(revision.path)}{_matrix_part(revision)}"
            for row, revision in zip(rows, (draft.revision for draft in drafts), strict=True)
        ]
        self.context.daemon.submit(rows, told, token)
        return tuple(rows)

    def _check_quotas(self, submission: Submission, rows: Sequence[JobRow], team: str) -> None:
        """Check the quotas of waiting jobs again: others may have been submitted since the file was resolved.

        Raises:
            Refused: the queue has become too long for these jobs, or their owner has too large ones.
        """
        daemon, owner = self.context.daemon, rows[0].owner.name
        totals, quotas = daemon.scheduler.jobs.totals, daemon.context.site.rules.quotas
        if facts := check_queued(owner, team, quotas, totals.queued(owner, team), len(rows)):
            raise Refused(refusal(submission, facts))
        self.check_size(owner, total_size(row.text for row in rows), submission.shown or submission.path)

    def check_size(self, owner: str, more: int, subject: str) -> None:
        """Check that the job files of a user's unfinished jobs may grow, and count what is stored.

        It is called in the exclusive section.

        Raises:
            Refused: they would be too large; the message begins with the ``subject``.
        """
        present = self.context.daemon.scheduler.jobs.totals.job_file_bytes(owner)
        if facts := too_large(owner, present, more, self.context.settings.job_file_bytes_per_user):
            raise Refused(f"{one_line(subject)}: {facts[0]}")
        self.count_stored(owner, more, subject)

    def count_stored(self, owner: str, more: int, subject: str) -> None:
        """Count a text of a user that the store keeps for ever; in the exclusive section.

        Raises:
            Refused: there are too many lately.
        """
        limit = self.context.settings.job_file_bytes_per_user
        totals = self.context.daemon.scheduler.jobs.totals
        if limit is not None and not totals.store(owner, more, limit, self.context.clock.monotonic()):
            raise Refused(f"{one_line(subject)}: {stored_too_fast(owner, limit)}")


def _mount_warnings(revision: Revision) -> Iterator[str]:
    """Yield the targets of mounts, which a plain process does not have outside of its command line."""
    for each in revision.job.mounts:
        if str(each.source) != each.target:
            yield (
                f"mounts: a plain process has no {each.target}; in words of the command it becomes the"
                " source, and a script must be given that path"
            )


def _token(caller: Caller, token: str) -> str:
    """Return the token under which the store keeps a submission: nobody repeats another's."""
    return f"{caller.uid}:{token}"


def _dump_each(revisions: Iterable[Revision]) -> Iterator[str]:
    """Yield the revisions as JSON, one after the other: together they may be large."""
    for revision in revisions:
        check_wanted()
        yield revision.model_dump_json()


def _too_large(submission: Submission, jobs: int, limit: int) -> str:
    fact = f"its jobs ({jobs}) make more than {format_size(limit)} of job files, the limit (submission_bytes)"
    next_step = "make the file, its policy or its matrix smaller, or put data into files"
    return f"{one_line(submission.shown or submission.path)}: {fact}; {next_step}"


def _matrix_part(revision: Revision) -> str:
    sweep = revision.sweep
    return "" if sweep is None else f" ({sweep.number} of {sweep.count} of its matrix)"
