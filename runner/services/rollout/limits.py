"""``runner set``: other limits for a job, without its file and its code being read again.

What can be set changes nothing of what is computed, so no policy decides: the running attempt goes on.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError

from runner.base.errors import Refused, UsageError
from runner.base.textfile import one_line
from runner.core.job.events import RevisionApplied
from runner.core.job.states import Allocated, Finished, Starting, Stopping
from runner.core.policy.change_class import RevisionChange
from runner.core.policy.model import Verb
from runner.core.ports.store import JobRow
from runner.core.ports.users import User
from runner.core.scheduler.admission import check_admission
from runner.core.scheduler.snapshot import PendingJob
from runner.files.job.queue import QueueFields
from runner.files.revision import Revision, parse_revision
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.diff import compare_revisions
from runner.services.submission.admission import missing_resources
from runner.services.submission.resolve import class_refusal, network_access

AT_ONCE: Final = frozenset({"priority", "resources.time_limit"})
"""Limits that a running attempt has at once; the others come with its next start, as all of an ended job."""


@dataclass(frozen=True, slots=True)
class NewLimits:
    """Limits to set; None: it stays."""

    priority: int | None = None
    cpus: float | None = None
    memory: int | None = None
    time_limit_s: float | None = None  # 0: none
    priority_class: str | None = None
    not_before: str | None = None

    def of_sections(self) -> dict[str, dict[str, Any]]:
        """Return the limits that sections of a job file set."""
        sections: dict[str, dict[str, Any]] = {
            "resources": {"cpus": self.cpus, "memory": self.memory},
            "queue": {"priority_class": self.priority_class, "not_before": self.not_before},
        }
        given = {
            section: {name: value for name, value in fields.items() if value is not None}
            for section, fields in sections.items()
        }
        if (limit_s := self.time_limit_s) is not None:
            given["resources"]["time_limit"] = timedelta(seconds=limit_s) if limit_s else None
        return given


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Sets limits of the jobs of one daemon."""

    service: JobService

    def set(
        self, caller: Caller, reference: str, limits: NewLimits
    ) -> tuple[JobRow, RevisionChange, frozenset[str]]:
        """Set limits of a job; return it, what differs, and which of that waits for the next start.

        Raises:
            UsageError: a value is wrong, or nothing is given.
            Refused: the state of the job, its class or the size of this machine does not allow it.
        """
        row = self.service.queries.readable_living(caller, reference)
        before = parse_revision(row.revision)
        after = self._changed(before, limits)
        found = compare_revisions(before, after, same_code=True)
        if not found.changes:
            return row, found, frozenset()
        self._check(caller, row, before, after)
        if isinstance(row.job.state, Starting | Stopping):  # last, so that what is wrong is told at once
            raise Refused(f"job {row.job.id}: is {row.job.state.kind}; try again in a moment")
        names = ", ".join(change.name for change in found.changes)
        event = RevisionApplied(
            at=self.service.clock.now(),
            by=self.service.submission.owner(caller).name,
            number=row.job.revision + 1,
            text=after.model_dump_json(),
            verb=Verb.KEEP,
            why=f"runner set: {names}",
            history=row.job.history,
            grace=row.job.grace,
            time_limit=after.job.resources.time_limit,
            attempts_max=row.job.attempts_max,
            promise=row.job.promise,
            turned=row.job.turned,
        )
        made = self.service.daemon.run_exclusively(lambda: self._apply(row, event))
        names_set = frozenset(change.name for change in found.changes)
        if isinstance(row.job.state, Finished):
            return made, found, names_set
        return made, found, names_set - AT_ONCE if isinstance(row.job.state, Allocated) else frozenset()

    def _apply(self, row: JobRow, event: RevisionApplied) -> JobRow:
        now = self.service.queries.current(row.job.id)
        if now.job.revision != row.job.revision or now.job.state.kind != row.job.state.kind:
            raise Refused(f"job {row.job.id}: has changed meanwhile; try again")
        return self.service.daemon.apply_event(now, event)

    def _changed(self, before: Revision, limits: NewLimits) -> Revision:
        """Return a revision with other limits.

        Raises:
            UsageError: a value is wrong.
        """
        sections = limits.of_sections()
        job = before.job
        try:
            resources = type(job.resources).model_validate({**dict(job.resources), **sections["resources"]})
            queueing = QueueFields.model_validate({**dict(job.queue), **sections["queue"]})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            fact = str(first.get("ctx", {}).get("error", first["msg"]))
            raise UsageError(f"{'.'.join(map(str, first['loc']))}: {one_line(fact)}") from error
        if limits.priority_class is not None and resources.time_limit is None and limits.time_limit_s is None:
            resources = resources.model_copy(update={"time_limit": self._limit_of(limits.priority_class)})
        changes: dict[str, object] = {"resources": resources, "queue": queueing}
        if limits.priority is not None:
            changes["priority"] = limits.priority
        return before.model_copy(update={"job": job.model_copy(update=changes)})

    def _limit_of(self, name: str) -> timedelta | None:
        """Return the time limit that jobs of a class have."""
        found = self.service.settings.queue.classes.get(name)
        return None if found is None else found.time_limit

    def _check(self, caller: Caller, row: JobRow, before: Revision, after: Revision) -> None:
        """Refuse limits that a submission would be refused for.

        Raises:
            Refused: with all that is wrong.
        """
        job, context = after.job, self.service.daemon.context
        facts = [
            f"{'.'.join(map(str, path))}: {fact}" for path, fact in missing_resources(job, context.capacity)
        ]
        if job.queue.priority_class != before.job.queue.priority_class:
            who = User(before.uid, before.gid, before.groups, before.user)
            asks = who if caller.uid else replace(who, uid=0)
            facts += filter(None, [class_refusal(self.service.settings, asks, job.queue.priority_class)])
            if after.network not in {None, network_access(self.service.settings, who, job)}:
                facts.append(
                    "queue.priority_class: jobs of that class reach another network; use runner apply"
                )
        snapshot = self.service.daemon.exclusive.read(self.service.daemon.admission_snapshot)
        waiting = PendingJob(
            "", row.owner.name, after.needs(), snapshot.now_s, group=after.team,
            priority_class=job.queue.priority_class,
        )  # fmt: skip
        facts += [each.text for each in check_admission(waiting, snapshot, 0)] if not facts else []
        if facts:
            raise Refused(f"job {row.job.id}: {'; '.join(facts)}; nothing was changed")
