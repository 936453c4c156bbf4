"""``runner apply`` and ``runner rollback``, the daemon's side: what a change would bring, and doing it.

A change is weighed with what has been measured, the job's own policy answers, and one event carries the
answer: the new revision with what follows for the attempt that runs.  ``keep`` means that what runs goes
on; the new revision is taken up by the next attempt, provided that the policy would take it up if that
cost nothing.  If it would not, nothing changes at all.
"""

from dataclasses import dataclass
from typing import Any

from runner.adapters.run_directory import Saved
from runner.canary import Canaries, Trial
from runner.core.job import (
    From,
    Lent,
    Promise,
    RevisionApplied,
    Start,
    Starting,
    Stopping,
)
from runner.core.policy.rules import STARTS, Verb
from runner.errors import Refused
from runner.offers import Offer, Weighing
from runner.ports import DecisionRow, JobRow
from runner.resolved import Resolved
from runner.revisions import compared
from runner.service import Caller, Service, Submission
from runner.workshop import parse_revision


@dataclass(frozen=True, slots=True)
class Request:
    """A change as it was asked for."""

    reference: str | None  # None: the job of that name
    submission: Submission
    approved: bool = False
    canary: str | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Applying:
    """Changes to the jobs of one daemon."""

    service: Service
    canaries: Canaries

    # --- what callers may ask for

    def canary(self, caller: Caller, request: Request) -> Trial:
        """Begin to measure a change, and return the trial."""
        row, before, after = self._sides(caller, request)
        found = compared(before, after)
        return self.canaries.begin(caller, row, after, request.steps, found.kind)

    def weigh(self, caller: Caller, request: Request) -> Offer:
        """Return what a change is and what would follow from it; nothing is done."""
        row, before, after = self._sides(caller, request)
        found = compared(before, after)
        trial = self.canaries.get(request.canary, row.job.id) if request.canary else None
        return Weighing(self.service, row, before, after, found, trial, request.approved).offer()

    def apply(self, caller: Caller, request: Request) -> tuple[Offer, int | None]:
        """Do what the policy says about a change; return it and the number of the new revision.

        A change that changes nothing, or that the policy declines, becomes no revision: there is no number.
        """
        offer = self.weigh(caller, request)
        number = None
        if offer.found.changes and offer.outcome != "decline":
            event = self._event(offer, self.name(caller), approved=request.approved)
            number = self._do(offer.row, event, offer.record)
        elif offer.found.changes:
            self.service.daemon.ask(lambda: self.service.store.decided(offer.record))
        if offer.trial is not None:
            offer.trial.decided.set()
            self.canaries.go_on(offer.trial)
        return offer, number

    def rollback(self, caller: Caller, reference: str, number: int | None) -> tuple[int, int, str]:
        """Go back to an earlier revision and its lineage; return (that one, what it is now, what follows).

        Raises:
            Refused: there is no such revision, or it is the present one.
        """
        row = self.service.readable(caller, reference)
        return self.back(row, number, self.name(caller), "rolled back")

    def back(self, row: JobRow, number: int | None, by: str, why: str) -> tuple[int, int, str]:
        """Go back to a revision of a job, whoever asks for it."""
        known_ = self.service.store.revisions(row.job.id)
        wanted = number if number is not None else row.job.revision - 1
        found = next((each for each in known_ if each.number == wanted), None)
        if found is None or wanted == row.job.revision:
            there = ", ".join(str(each.number) for each in known_ if each.number != row.job.revision)
            raise Refused(
                f"job {row.job.id}: no revision {wanted} to go back to; there are {there or 'none'}"
            )
        lineage = found.lineage if found.lineage is not None else row.job.lineage
        saved = self.saved(row, lineage)
        runs = isinstance(row.job.state, Lent)
        event = RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=len(known_) + 1,
            text=found.text,
            verb=Verb.RESUME,
            why=f"{why}: revision {wanted}, lineage {lineage}",
            history=row.job.history.revised(),
            start=Start(),
            lineage=lineage,
            saved=saved.newest,
            other_image=_other_image(parse_revision(row.revision), parse_revision(found.text)),
            **self._settings(parse_revision(found.text)),
        )
        made = self._do(row, event, None)
        where = "step 0" if saved.newest is None else f"the checkpoint of step {saved.newest}"
        follows = f"begins again from {where} of lineage {lineage}" if runs else "with the next attempt"
        return wanted, made, follows

    def revisions(self, caller: Caller, reference: str) -> list[dict[str, Any]]:
        """Return the revisions of a job, the first one first."""
        row = self.service.readable(caller, reference)
        return [
            {
                "number": each.number,
                "at": each.at.isoformat(),
                "by": each.by,
                "why": each.why,
                "lineage": row.job.lineage if each.number == row.job.revision else each.lineage,
                "present": each.number == row.job.revision,
            }
            for each in self.service.store.revisions(row.job.id)
        ]

    def name(self, caller: Caller) -> str:
        return self.service.owner(caller).name

    # --- the pieces

    def _sides(self, caller: Caller, request: Request) -> tuple[JobRow, Resolved, Resolved]:
        """Return the job, its revision, and the one that is offered."""
        after = self.service.resolve(caller, request.submission)
        row = self.service.readable(caller, request.reference or after.job.name)
        before = parse_revision(row.revision)
        if before.uid != after.uid:
            raise Refused(f"job {row.job.id}: belongs to {row.owner.name}; only they may change what it is")
        if request.reference is not None:  # the job keeps its name, whatever the file is called
            after = after.model_copy(update={"job": after.job.model_copy(update={"name": before.job.name})})
        return row, before, after

    def _event(self, offer: Offer, by: str, *, approved: bool) -> RevisionApplied:
        verb = Verb.KEEP if offer.outcome == "keep" else Verb(offer.outcome)
        start = Start(From.SCRATCH) if verb is Verb.RESTART else Start()
        return RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=len(self.service.store.revisions(offer.row.job.id)) + 1,
            text=offer.after.model_dump_json(),
            verb=verb,
            why=offer.why,
            history=offer.decision.history.revised(),
            start=start,
            other_image=_other_image(offer.before, offer.after),
            promise=None if approved else _promise(offer, verb),
            **self._settings(offer.after),
        )

    def _do(self, row: JobRow, event: RevisionApplied, record: DecisionRow | None) -> int:
        daemon, service = self.service.daemon, self.service
        if isinstance(row.job.state, Starting | Stopping):
            raise Refused(f"job {row.job.id}: is {row.job.state.kind}; try again in a moment")

        def happen() -> None:
            now = service.now(row.job.id)
            if now.job.revision != row.job.revision:
                raise Refused(f"job {row.job.id}: was changed by somebody else meanwhile; try again")
            daemon.happen(now, event, record)

        daemon.ask(happen)
        return event.number

    @staticmethod
    def _settings(revision: Resolved) -> dict[str, Any]:
        """Return what the life of a job depends on, of all that its file says."""
        return {
            "grace": revision.job.stop_grace,
            "time_limit": revision.job.resources.time_limit,
            "attempts_max": revision.policy_in_force().ceilings.attempts,
        }

    def saved(self, row: JobRow, lineage: int) -> Saved:
        """Return the checkpoints of one lineage of a job."""
        directory = self.service.workshop.directory(row)
        return directory.saved(directory.paths(max(row.job.attempts, 1), lineage))


def _other_image(before: Resolved, after: Resolved) -> bool:
    return (before.accelerator, before.job.image) != (after.accelerator, after.job.image)


def _promise(offer: Offer, verb: Verb) -> Promise | None:
    """Return what is expected of a change that was made for its speed."""
    now, new = offer.worth.now, offer.worth.new
    if verb not in STARTS or now is None or new is None:
        return None
    return Promise(offer.row.job.revision, now.mean, new.low / now.high)
