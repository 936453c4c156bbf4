"""``runner apply`` and ``runner rollback``, the daemon's side: what a change would bring, and doing it.

A change is weighed with what has been measured, the job's own policy answers, and one event carries the
answer: the new revision with what follows for the attempt that runs.  ``keep`` means that what runs goes
on; the new revision is taken up by the next attempt, provided that the policy would take it up if that
cost nothing.  If it would not, nothing changes at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.base.errors import Refused, UsageError
from runner.base.textfile import FileError, one_line
from runner.core.job.attempt import ExpectedSpeedup, Start, StartFrom
from runner.core.job.events import RevisionApplied
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Starting, Stopping
from runner.core.policy.change_class import ChangeClass
from runner.core.policy.model import STARTS, Verb
from runner.core.ports.attempts import SavedCheckpoints
from runner.core.ports.store import DecisionRow, JobRow, RevisionRow
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.canary import CanaryService
from runner.services.rollout.diff import compare_revisions
from runner.services.rollout.evaluate import Evaluation, RolloutEvaluator, finished_by, steps
from runner.services.rollout.trial import Trial, saves_on_stop
from runner.services.submission import dependencies as predecessors
from runner.services.submission.request import Submission
from runner.services.submission.revision import Revision, parse_revision


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A change as it was asked for."""

    reference: str | None  # None: the job of that name
    submission: Submission
    approved: bool = False
    canary: str | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class RolloutService:
    """Changes to the jobs of one daemon."""

    service: JobService
    canaries: CanaryService

    # --- what callers may ask for

    def start_canary(self, caller: Caller, request: RolloutRequest) -> Trial:
        """Begin to measure a change, and return the trial.

        Raises:
            Refused: the policy declines it whatever would be measured, or the job cannot be compared.
        """
        row, before, after = self._sides(caller, request)
        found = compare_revisions(before, after)
        self.canaries.check(row, request.steps)
        weighing = RolloutEvaluator(self.service, row, before, after, found, None, request.approved)
        if why := weighing.hopeless():
            raise Refused(f"job {row.job.id}: this change is declined, whatever a canary shows: {why}")
        self.canaries.check_comparable(row)
        return self.canaries.start(caller, row, after, request.steps, found.kind)

    def evaluate(self, caller: Caller, request: RolloutRequest) -> Evaluation:
        """Return what a change is and what would follow from it; nothing is done."""
        row, before, after = self._sides(caller, request)
        found = compare_revisions(before, after)
        trial = self._measured(row, request.canary) if request.canary else None
        return RolloutEvaluator(self.service, row, before, after, found, trial, request.approved).offer()

    def apply(self, caller: Caller, request: RolloutRequest) -> tuple[Evaluation, int | None]:
        """Do what the policy says about a change; return it and the number of the new revision.

        A change that changes nothing, or that the policy declines, becomes no revision: there is no number.
        """
        offer = self.evaluate(caller, request)
        number = None
        if offer.found.changes and offer.outcome != "decline":
            event = self._event(offer, self.name(caller), approved=request.approved)
            number = self._do(offer.row, event, offer.record)
        elif offer.found.changes:
            self.service.daemon.run_exclusively(lambda: self.service.store.decided(offer.record))
        if offer.trial is not None:
            offer.trial.decided.set()
            self.canaries.release_parent(offer.trial)
        return offer, number

    def rollback(self, caller: Caller, reference: str, number: int | None) -> tuple[int, int | None, str]:
        """Go back to an earlier revision and its lineage; return (that one, what it is now, what follows).

        Where that is what the job is already, there is no new revision: None.

        Raises:
            Refused: there is no such revision, it is the present one, or its lineage is beyond its steps.
        """
        row = self.service.queries.readable(caller, reference)
        return self.back(row, number, self.name(caller), "rolled back")

    def back(self, row: JobRow, number: int | None, by: str, why: str) -> tuple[int, int | None, str]:
        """Go back to a revision of a job, whoever asks for it."""
        known_ = self.service.store.revisions(row.job.id)
        found = _wanted(row.job, known_, number)
        wanted, there = found.number, parse_revision(found.text)
        lineage = found.lineage if found.lineage is not None else row.job.lineage
        if lineage == row.job.lineage and not compare_revisions(parse_revision(row.revision), there).changes:
            return wanted, None, "nothing differs"
        saved = self.saved(row, lineage)
        self._within(row, found, there, saved)
        runs = isinstance(row.job.state, Allocated)
        stays = runs and lineage == row.job.lineage and _runs_so(row.job, known_, there)
        event = RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=len(known_) + 1,
            text=found.text,
            verb=Verb.KEEP if stays else Verb.RESUME,
            why=f"{why}: revision {wanted}, lineage {lineage}",
            history=row.job.history.reset_tallies(),
            start=Start(),
            lineage=lineage,
            saved=saved.newest,
            other_image=_other_image(parse_revision(row.revision), there),
            **self._settings(there),
        )
        made = self._do(row, event, None)
        where = "step 0" if saved.newest is None else f"the checkpoint of step {saved.newest}"
        follows = f"begins again from {where} of lineage {lineage}" if runs else "with the next attempt"
        follows = "what runs goes on: nothing that it uses differs" if stays else follows
        return wanted, made, follows

    def _within(self, row: JobRow, found: RevisionRow, there: Revision, saved: SavedCheckpoints) -> None:
        """Refuse a way back to fewer steps than what it would go on from.

        Raises:
            Refused: the lineage has gone further than the revision wants to.
        """
        stays = found.lineage in {None, row.job.lineage}
        present = (
            finished_by(self.service, row) if stays and saves_on_stop(parse_revision(row.revision)) else 0
        )
        reached, limit = max(saved.newest or 0, present), steps(there)
        if limit is not None and reached > limit:
            raise Refused(
                f"job {row.job.id}: revision {found.number} has workload.steps: {limit}, and {reached} are "
                "done in its lineage; submit that file as a job of its own"
            )

    def revisions(self, caller: Caller, reference: str) -> list[dict[str, Any]]:
        """Return the revisions of a job, the first one first."""
        row = self.service.queries.readable(caller, reference)
        return [
            {
                "number": each.number,
                "at": each.at,
                "by": each.by,
                "why": each.why,
                "lineage": row.job.lineage if each.number == row.job.revision else each.lineage,
                "present": each.number == row.job.revision,
            }
            for each in self.service.store.revisions(row.job.id)
        ]

    def name(self, caller: Caller) -> str:
        return self.service.submission.owner(caller).name

    # --- the pieces

    def _measured(self, row: JobRow, canary: str) -> Trial:
        """Return the trial that a change is to be decided with.

        Raises:
            UsageError: there is none.
        """
        trial = self.canaries.find(canary, row.job.id)
        if trial is None:
            raise UsageError(
                f"--measured: there is no canary {one_line(canary)} of job {row.job.id}, or it is no longer "
                "known; --canary N measures the change"
            )
        return trial

    def _sides(self, caller: Caller, request: RolloutRequest) -> tuple[JobRow, Revision, Revision]:
        """Return the job, its revision, and the one that is offered."""
        after = self.service.submission.resolve(caller, request.submission)
        if after.job.schedule is not None:
            fact = "belongs to no change of one job; leave it out here, or make it with runner submit"
            raise FileError(after.job.origin.path, [after.job.origin.problem(("schedule",), fact)])
        row = self.service.queries.readable(caller, request.reference or after.job.name)
        before = parse_revision(row.revision)
        if before.uid != after.uid:
            raise Refused(f"job {row.job.id}: belongs to {row.owner.name}; only they may change what it is")
        after = after.model_copy(update={"sweep": before.sweep})
        predecessors.refuse_cycle(row.job.id, after, self.service.store)
        owner = self.service.submission.owner(caller).name
        predecessors.refuse_hopeless(request.submission, [after], owner, self.service.store)
        if request.reference is not None:  # the job keeps its name, whatever the file is called
            after = after.model_copy(update={"job": after.job.model_copy(update={"name": before.job.name})})
        return row, before, after

    def _event(self, offer: Evaluation, by: str, *, approved: bool) -> RevisionApplied:
        verb = Verb.KEEP if offer.outcome == "keep" else Verb(offer.outcome)
        start = Start(StartFrom.SCRATCH) if verb is Verb.RESTART else Start()
        return RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=len(self.service.store.revisions(offer.row.job.id)) + 1,
            text=offer.after.model_dump_json(),
            verb=verb,
            why=offer.why,
            history=offer.decision.history.reset_tallies(),
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
            now = service.queries.current(row.job.id)
            if now.job.revision != row.job.revision:
                raise Refused(f"job {row.job.id}: was changed by somebody else meanwhile; try again")
            predecessors.refuse_cycle(row.job.id, parse_revision(event.text), service.store)
            daemon.apply_event(now, event, record)

        daemon.run_exclusively(happen)
        return event.number

    @staticmethod
    def _settings(revision: Revision) -> dict[str, Any]:
        """Return what the life of a job depends on, of all that its file says."""
        return {
            "grace": revision.job.stop_grace,
            "time_limit": revision.job.resources.time_limit,
            "attempts_max": revision.policy_in_force().ceilings.attempts,
        }

    def saved(self, row: JobRow, lineage: int) -> SavedCheckpoints:
        """Return the checkpoints of one lineage of a job."""
        directory = self.service.attempt_service.directory(row)
        return directory.saved(directory.paths(max(row.job.attempts, 1), lineage))


def _runs_so(job: Job, known: Sequence[RevisionRow], wanted: Revision) -> bool:
    """Return whether what runs would begin again as what it is: as good as begun with what is wanted."""
    begun = job.state.attempt.revision if isinstance(job.state, Allocated) else job.revision
    texts = [each.text for each in known if each.number == begun]
    return any(compare_revisions(parse_revision(text), wanted).kind is ChangeClass.A for text in texts)


def _wanted(job: Job, known: Sequence[RevisionRow], number: int | None) -> RevisionRow:
    """Return the revision to go back to; without a number the one before.

    Raises:
        Refused: there is no such revision, or it is the present one.
    """
    others = ", ".join(str(each.number) for each in known if each.number != job.revision)
    if not others:
        raise Refused(f"job {job.id}: has one revision, and none to go back to")
    wanted = number if number is not None else job.revision - 1
    if wanted == job.revision:
        raise Refused(f"job {job.id}: is at revision {wanted} already; there are {others} besides")
    found = next((each for each in known if each.number == wanted), None)
    if found is None:
        raise Refused(f"job {job.id}: has no revision {wanted}; it can go back to {others}")
    return found


def _other_image(before: Revision, after: Revision) -> bool:
    return (before.accelerator, before.job.image) != (after.accelerator, after.job.image)


def _promise(offer: Evaluation, verb: Verb) -> ExpectedSpeedup | None:
    """Return what is expected of a change that was made for its speed."""
    now, new = offer.worth.now, offer.worth.new
    if verb not in STARTS or now is None or new is None:
        return None
    return ExpectedSpeedup(offer.row.job.revision, now.mean, new.low / now.high)
