"""Rollouts: the daemon's side of ``runner apply`` and ``runner rollback``.

A change is evaluated with what has been measured, and the policy of the job decides.  One event carries the
decision: the new revision, and what follows for the running attempt.  ``keep`` means that what runs goes on
as it is, and that the change is declined; a job that stands still for its canary goes on with its old file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from runner.base.errors import Refused, RunnerError, UsageError
from runner.base.textfile import FileError, one_line
from runner.core.job.attempt import ExpectedSpeedup, Start, StartFrom
from runner.core.job.events import RevisionApplied
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Starting, Stopping
from runner.core.policy.change_class import ChangeClass, RevisionChange
from runner.core.policy.model import STARTS, Verb
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.store import DecisionRow, JobRow, RevisionRow
from runner.files.revision import Revision, parse_revision
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.canary import CanaryService
from runner.services.rollout.cost_benefit import NO_TOTAL
from runner.services.rollout.diff import compare_revisions, in_place_of
from runner.services.rollout.evaluate import Evaluation, RolloutEvaluator, finished_by, steps
from runner.services.rollout.progress import saves_when_asked
from runner.services.rollout.trial import Trial
from runner.services.submission import dependencies as predecessors
from runner.services.submission.code_changes import has_same_code
from runner.services.submission.packages import KnownRevisions

NOT_CHECKED: Final = (
    "--expect is not checked: that takes an attempt that is stopped now, and has shown its rate"
)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """A change that a caller requests."""

    reference: str | None  # None: the job with the name of the file
    submission: Submission
    approved: bool = False
    canary: str | None = None
    steps: int = 0
    at_next_start: bool = False
    expect: float | None = None
    """Factor by which the change is to make the job faster; it is taken back if it does not."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RolloutService:
    """Changes to the jobs of one daemon."""

    service: JobService
    canaries: CanaryService

    def start_canary(self, caller: Caller, request: RolloutRequest) -> Trial:
        """Start to measure a change, and return the trial.

        Raises:
            Refused: the policy declines the change whatever a canary shows, or the job cannot be compared.
        """
        row, before, after = self._load_revisions(caller, request)
        found = self._compare(before, after)
        self.canaries.check(row, request.steps)
        evaluator = self._evaluator(row, before, after, found, None, request)
        if why := evaluator.unconditional_decline():
            raise Refused(f"job {row.job.id}: this change is declined, whatever a canary shows: {why}")
        self.canaries.check_comparable(row)
        work = evaluator.evaluate().worth.case.work
        if work.done and not work.total:
            raise Refused(f"job {row.job.id}: a canary could decide nothing: {NO_TOTAL}")
        if request.dry_run:
            self.canaries.check_room(row, after)
        return self.canaries.start(caller, row, after, request.steps, found.kind)

    def evaluate(self, caller: Caller, request: RolloutRequest) -> Evaluation:
        """Return the differences of a change and the policy's decision about it; changes nothing."""
        row, before, after = self._load_revisions(caller, request)
        found = self._compare(before, after)
        trial = self._find_trial(row, request.canary) if request.canary else None
        evaluation = self._evaluator(row, before, after, found, trial, request).evaluate()
        if (
            request.expect
            and evaluation.is_taken_up
            and _expected_speedup(evaluation, request.expect) is None
        ):
            return replace(evaluation, why=f"{evaluation.why}; {NOT_CHECKED}")
        return evaluation

    def _evaluator(  # noqa: PLR0913, PLR0917  (both revisions, and what is known of the change)
        self,
        row: JobRow,
        before: Revision,
        after: Revision,
        found: RevisionChange,
        trial: Trial | None,
        request: RolloutRequest,
    ) -> RolloutEvaluator:
        step_times, how = self.canaries.step_times, (request.approved, request.at_next_start)
        return RolloutEvaluator(self.service, step_times, row, before, after, found, trial, *how)

    def apply(self, caller: Caller, request: RolloutRequest) -> tuple[Evaluation, int | None]:
        """Apply a change as the policy decides; return its evaluation and the number of the new revision.

        The number is None if nothing differs or if the policy declines: then there is no new revision.
        """
        evaluation = self.evaluate(caller, request)
        number = None
        if evaluation.is_taken_up:
            event = self._make_event(evaluation, self.owner_name(caller), request.expect)
            number = self._apply_event(evaluation.row, event, evaluation.record)
        elif evaluation.found.changes:
            self.service.daemon.run_exclusively(lambda: self.service.store.decided(evaluation.record))
        if evaluation.trial is not None:
            evaluation.trial.decided.set()
            self.canaries.release_parent(evaluation.trial)
        return evaluation, number

    def rollback(self, caller: Caller, reference: str, number: int | None) -> tuple[int, int | None, str]:
        """Roll a job back to an earlier revision and its lineage.

        Returns the number of that revision, the number of the new revision that equals it (None if nothing
        differs), and the consequence as text.

        Raises:
            Refused: there is no such revision, it is the present one, or its lineage is beyond its steps.
        """
        row = self.service.queries.readable(caller, reference)
        return self.roll_back_to(row, number, self.owner_name(caller), "rolled back")

    def roll_back_to(
        self, row: JobRow, number: int | None, by: str, why: str, *, since: int | None = None
    ) -> tuple[int, int | None, str]:
        """Roll a job back to a revision, on behalf of ``by``; limits that were set ``since`` another stay."""
        found = _find_revision(row.job, self.service.store.revisions(row.job.id), number)
        wanted, text = found.number, self.service.store.revision(row.job.id, found.number)
        if text is None:
            raise Refused(f"job {row.job.id}: the text of revision {wanted} cannot be read")
        whole, there = text.whole, parse_revision(text.whole)
        if since is not None and (changed := self.service.store.revision(row.job.id, since)) is not None:
            there = _with_limits(there, parse_revision(changed.whole), parse_revision(row.revision))
            whole = there.model_dump_json()
        lineage = found.lineage if found.lineage is not None else row.job.lineage
        if lineage == row.job.lineage and not self._compare(parse_revision(row.revision), there).changes:
            return wanted, None, "nothing differs"
        saved = self.service.attempt_service.saved(row, lineage)
        self._check_steps(row, found, there, saved)
        runs = isinstance(row.job.state, Allocated)
        stays = runs and lineage == row.job.lineage and self._runs_revision(row.job, there)
        event = RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=row.job.revision + 1,
            text=whole,
            verb=Verb.KEEP if stays else Verb.RESUME,
            why=f"{why}: revision {wanted}, lineage {lineage}",
            history=row.job.history.reset_tallies(),
            start=Start(),
            lineage=lineage,
            saved=saved.newest,
            other_image=_other_image(parse_revision(row.revision), there),
            **self._settings(there),
        )
        made = self._apply_event(row, event, None)
        newest = f"the checkpoint of step {saved.newest}" if saved.are_steps else "the newest checkpoint"
        where = "step 0" if saved.newest is None else newest
        follows = f"begins again from {where} of lineage {lineage}" if runs else "with the next attempt"
        follows = "the running attempt goes on: nothing that it uses differs" if stays else follows
        return wanted, made, follows

    def _check_steps(self, row: JobRow, found: RevisionRow, there: Revision, saved: SavedCheckpoints) -> None:
        """Check that the revision has at least the steps that its lineage has done.

        Raises:
            Refused: the lineage has done more steps than the revision has.
        """
        stays = found.lineage in {None, row.job.lineage}
        present = (
            finished_by(self.service, row)
            if stays and saves_when_asked(self.service, row, parse_revision(row.revision)).on_demand
            else 0
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

    def owner_name(self, caller: Caller) -> str:
        """Return the name of the user whose jobs a caller steers."""
        return self.service.submission.owner(caller).name

    def _compare(self, before: Revision, after: Revision) -> RevisionChange:
        """Return the differences of two revisions; their code is compared by content, job files apart."""
        return compare_revisions(before, after, same_code=has_same_code(self.service.code, before, after))

    def _runs_revision(self, job: Job, wanted: Revision) -> bool:
        """Return True if the running attempt was started with what the wanted revision says."""
        begun = job.state.attempt.revision if isinstance(job.state, Allocated) else job.revision
        text = self.service.store.revision(job.id, begun)
        if text is None:
            return False
        return self._compare(parse_revision(text.whole), wanted).kind is ChangeClass.A

    def _find_trial(self, row: JobRow, canary: str) -> Trial:
        """Return the trial whose result the decision uses.

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

    def _load_revisions(self, caller: Caller, request: RolloutRequest) -> tuple[JobRow, Revision, Revision]:
        """Return the job, its present revision, and the revision of the request."""
        known = partial(self._known, caller, request.reference)
        after = self._resolve(caller, request, known)
        if after.job.schedule is not None:
            fact = "belongs to no change of one job; leave it out here, or make it with runner submit"
            raise FileError(after.job.origin.path, [after.job.origin.problem(("schedule",), fact)])
        row = self.service.queries.readable(caller, request.reference or after.job.name)
        before = parse_revision(row.revision)
        if before.uid != after.uid:
            raise Refused(f"job {row.job.id}: belongs to {row.owner.name}; only they may change what it is")
        kept = {"code": before.code, "own": before.own} if request.submission.file_only else {}
        after = in_place_of(before, after).model_copy(update=kept)
        predecessors.refuse_cycle(row.job.id, after, self._waits_for)
        owner = self.service.submission.owner(caller).name
        predecessors.refuse_hopeless(request.submission, [after], owner, self.service.store)
        if request.reference is not None:  # the job keeps its name, whatever the file is called
            after = after.model_copy(update={"job": after.job.model_copy(update={"name": before.job.name})})
        return row, before, after

    def _waits_for(self, job_id: str) -> Iterator[str]:
        """Yield the jobs that a job waits for, as the loop knows them; one that has ended waits for none."""
        if tracked := self.service.daemon.tracked_jobs.get(job_id):
            yield from (each.job_id for each in self.service.attempt_service.terms(tracked.row).after)

    def _resolve(self, caller: Caller, request: RolloutRequest, known: KnownRevisions) -> Revision:
        """Return the revision of a request; the paths of a file alone mean what they meant to its job."""
        submission, resolve = request.submission, self.service.submission.resolve
        if not submission.file_only:
            return resolve(caller, submission, known)
        name = "" if request.reference is not None else resolve(caller, submission, known).job.name
        shown, before = submission.shown or submission.path, known(name)
        place = submission.path if before is None else before.path
        return resolve(caller, replace(submission, path=place, shown=shown), known)

    def _known(self, caller: Caller, reference: str | None, name: str) -> Revision | None:
        """Return the present revision of the job that is changed."""
        try:
            return parse_revision(self.service.queries.readable(caller, reference or name).revision)
        except RunnerError:
            return None  # which is told where the job is needed

    def _make_event(self, evaluation: Evaluation, by: str, expect: float | None) -> RevisionApplied:
        verb = Verb.KEEP if evaluation.outcome == "store" else Verb(evaluation.outcome)
        start = Start(StartFrom.SCRATCH) if verb is Verb.RESTART else Start()
        return RevisionApplied(
            at=self.service.clock.now(),
            by=by,
            number=evaluation.row.job.revision + 1,
            text=evaluation.after.model_dump_json(),
            verb=verb,
            why=evaluation.why,
            history=evaluation.decision.history.reset_tallies(),
            start=start,
            other_image=_other_image(evaluation.before, evaluation.after),
            promise=_expected_speedup(evaluation, expect),
            **self._settings(evaluation.after),
        )

    def _apply_event(self, row: JobRow, event: RevisionApplied, record: DecisionRow | None) -> int:
        daemon, service = self.service.daemon, self.service
        if isinstance(row.job.state, Starting | Stopping):
            raise Refused(f"job {row.job.id}: is {row.job.state.kind}; try again in a moment")

        def happen() -> None:
            now = service.queries.current(row.job.id)
            if now.job.revision != row.job.revision:
                raise Refused(f"job {row.job.id}: was changed by somebody else meanwhile; try again")
            predecessors.refuse_cycle(row.job.id, parse_revision(event.text), self._waits_for)
            service.submission.check_size(row.owner.name, len(event.text), f"job {row.job.id}")
            daemon.apply_event(now, event, record)

        daemon.run_exclusively(happen)
        return event.number

    @staticmethod
    def _settings(revision: Revision) -> dict[str, Any]:
        """Return the settings of a job that its life cycle depends on."""
        return {
            "grace": revision.job.stop_grace,
            "time_limit": revision.job.resources.time_limit,
            "attempts_max": revision.policy_in_force().ceilings.attempts,
        }


def _find_revision(job: Job, known: Sequence[RevisionRow], number: int | None) -> RevisionRow:
    """Return the revision to roll back to; without a number the one before the present one.

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


def _with_limits(there: Revision, before: Revision, now: Revision) -> Revision:
    """Return a revision with what ``runner set`` has changed between two others."""

    def kept(old: BaseModel, was: BaseModel, new: BaseModel) -> BaseModel:
        values = ((name, getattr(new, name)) for name in type(new).model_fields)
        return old.model_copy(update={name: value for name, value in values if value != getattr(was, name)})

    jobs = (there.job, before.job, now.job)
    limits: dict[str, object] = {
        name: kept(*(getattr(job, name) for job in jobs)) for name in ("resources", "queue")
    }
    if now.job.priority != before.job.priority:
        limits["priority"] = now.job.priority
    return there.model_copy(update={"job": there.job.model_copy(update=limits)})


def _other_image(before: Revision, after: Revision) -> bool:
    here, there = ((each.accelerator, each.job.image, each.image, each.lock) for each in (before, after))
    return here != there


def _expected_speedup(evaluation: Evaluation, expect: float | None) -> ExpectedSpeedup | None:
    """Return the speed-up that a change must show: as said, or as measured of one made for speed alone.

    What its owner allowed for another reason, such as another batch, is held to no speed.
    """
    now, new = evaluation.worth.now, evaluation.worth.new
    if evaluation.outcome not in STARTS or now is None:
        return None
    if expect is None and new is not None and evaluation.found.kind is ChangeClass.B:
        expect = new.low / now.high
    if expect is None or expect <= 1:
        return None
    rate, costs = now.mean * _work_of_a_step(evaluation), evaluation.worth.case.costs
    return ExpectedSpeedup(evaluation.row.job.revision, rate, expect, costs.stop_s + costs.start_s)


def _work_of_a_step(evaluation: Evaluation) -> float:
    """Return the work of a step without the change as a share of one with it."""
    sizes = [getattr(each.job.workload, "batch_size", None) for each in (evaluation.before, evaluation.after)]
    return sizes[0] / sizes[1] if sizes[0] and sizes[1] else 1.0
