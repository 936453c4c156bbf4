"""Evaluating a change: its facts, its cost and benefit, and the decision of the job's policy.

Nothing is changed here.  Progress, checkpoints and throughput are read, cost and benefit are computed, and
the policy decides; ``runner.services.rollout.service`` applies the decision.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from jobs.contract import Phase
from runner.agent.attempts import facts as exit_facts
from runner.base.readable import readable_duration
from runner.control.decisions import decision_row
from runner.core.job.attempt import Attempt
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Held, Running
from runner.core.policy import explain as records
from runner.core.policy.catalog import select_facts, validate_facts
from runner.core.policy.change_class import ChangeClass, RevisionChange, change_rows
from runner.core.policy.decision import PolicyDecision, Situation
from runner.core.policy.economics import ChangeCosts, Overheads, Risk, Work, estimate_mtbf_s
from runner.core.policy.evaluate import decide, pays
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.model import STARTS, Verb
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.store import DecisionRow, JobRow
from runner.files.revision import Revision
from runner.services.jobs import JobService
from runner.services.rollout.cost_benefit import NO_TOTAL, CostBenefit, explain
from runner.services.rollout.progress import Saving, StepTimes, saves_when_asked
from runner.services.rollout.throughput import (
    FEW,
    NEVER,
    MetricsLine,
    Pair,
    RunningEvaluation,
    Throughput,
    comparable_rates,
    compare_beside,
    expect_evaluations,
    measure_throughput,
    present_throughput,
    seconds_to_first_step,
    without_warm_up,
)
from runner.services.rollout.trial import TIME_LIMIT, Trial, TrialMeasurement

Outcome: TypeAlias = Literal["keep", "resume", "restart", "store", "decline"]
"""``keep`` and ``decline`` change nothing: what runs ends sooner as it is, or the change is not admissible.
``store`` leaves what runs as it is, and the next start uses the change."""

FREE: Final = records.UNBOUNDED_GAIN
"""The gain of a change that costs nothing, because the next attempt starts anyway."""

_NO_COST: Final[Mapping[str, FactValue]] = {
    "econ.resume_gain": FREE,
    "econ.restart_gain": FREE,
    "checkpoint.on_demand": True,
}
"""The facts when no attempt runs: nothing is lost, and nothing has to pay off."""

ALLOWED: Final = "changed_training"

AT_NEXT_START: Final = "leave --at-next-start out"

AT_ONCE: Final = frozenset({"queue.preemptible", "resources.time_limit"})
"""Fields that apply to the running attempt, too."""

SOON_S: Final = 5.0
"""Least time for which an attempt trains on, from its last heartbeat to its reaction to SIGTERM."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A change with its facts, its cost and benefit, and the decision about it."""

    row: JobRow
    before: Revision
    after: Revision
    found: RevisionChange
    worth: CostBenefit
    decision: PolicyDecision
    outcome: Outcome
    why: str
    record: DecisionRow
    trial: Trial | None = None

    @property
    def is_taken_up(self) -> bool:
        """Return True if the job gets a new revision."""
        return bool(self.found.changes) and self.outcome not in {"keep", "decline"}

    def json(self, number: int | None, *, approved: bool) -> dict[str, Any]:
        """Return the evaluation as JSON values; ``number`` is the number of the new revision."""
        verdict = self.decision.action
        columns = ("field", "before", "after", "class", "why")
        return {
            "job": {
                "id": self.row.job.id,
                "name": self.row.name,
                "state": self.row.job.state.kind,
                "parked": self.trial is not None and self.trial.parked is not None,
            },
            "changes": [dict(zip(columns, row, strict=True)) for row in change_rows(self.found)],
            "class": str(self.found.kind),
            "same_bits": self.found.same_bits,
            "facts": {name: value for name, value in self.decision.facts.items() if value != FREE},
            "arithmetic": list(explain(self.worth)),
            "econ": self.worth.json(),
            "verdict": {
                "verb": str(verdict.verb),
                "rule": verdict.rule,
                "reason": verdict.reason,
                "limit": None if verdict.limit is None else str(verdict.limit),
            },
            "rules": list(records.explain_record(json.loads(self.record.body))),
            "outcome": self.outcome,
            "why": self.why,
            "approved": approved,
            "revision": number,
        }


@dataclass(frozen=True, slots=True)
class RolloutEvaluator:
    """Evaluates one change."""

    service: JobService
    step_times: StepTimes
    row: JobRow
    before: Revision
    after: Revision
    found: RevisionChange
    trial: Trial | None
    approved: bool
    at_next_start: bool = False

    def evaluate(self) -> Evaluation:
        """Return the evaluation of the change."""
        now = self.service.clock.now()
        attempt = _attempt(self.row.job)
        saved = self.service.attempt_service.saved(self.row, attempt.lineage)  # once: it goes on saving
        worth = self._cost_benefit(now, saved)
        beyond = self._excess_steps(worth)
        facts = self._facts(now, attempt, worth, saved, beyond=bool(beyond))
        if not self._runs:  # nothing is interrupted, so nothing has to pay
            facts |= _NO_COST
        pinned = self.service.attempt_service.policy(self.row)
        started = self.row.job.state.since if isinstance(self.row.job.state, Running) else None
        situation = Situation(validate_facts(facts, DecisionPoint.CHANGE), now, started, "", self.row.job.id)
        history = self.row.job.history
        waits = self.at_next_start or not self._runs  # it is no change of what runs, and is not counted
        counted = replace(history, swaps=0) if waits else history
        decision = decide(pinned.policy, DecisionPoint.CHANGE, counted, situation)
        decision = replace(decision, history=history) if waits else decision
        record = decision_row(self.row, attempt, pinned, situation, decision)
        outcome, why = self._outcome(decision, situation, worth, beyond)
        return Evaluation(
            self.row, self.before, self.after, self.found, worth, decision, outcome, why, record, self.trial
        )

    def unconditional_decline(self) -> str:
        """Return the reason to decline the change whatever a canary shows; empty if a canary could decide."""
        evaluation = self.evaluate()
        if evaluation.outcome != "decline":
            return ""
        facts = evaluation.decision.facts
        situation = Situation(facts, self.service.clock.now(), seed=self.row.job.id)
        may_pay = any(self._would_accept(situation, **{"econ.best": str(verb)}) for verb in STARTS)
        measurable = not self._incomparable() and not self._excess_steps(evaluation.worth)
        return "" if may_pay and measurable else evaluation.why

    @property
    def _runs(self) -> bool:
        return isinstance(self.row.job.state, Allocated) or self._stands_still

    @property
    def _stands_still(self) -> bool:
        """Return True if the job is held for its canary, and goes on in any case."""
        held = isinstance(self.row.job.state, Held)
        return held and self.trial is not None and self.trial.parked is not None

    def _outcome(
        self, decision: PolicyDecision, situation: Situation, worth: CostBenefit, beyond: str
    ) -> tuple[Outcome, str]:
        """Return the outcome of a change: what the policy decides, as far as something runs."""
        if not self.found.changes:
            return "keep", "nothing differs"
        verdict, waits = decision.action, self.at_next_start or not self._runs
        if verdict.verb in STARTS and not waits:
            return ("restart" if verdict.verb is Verb.RESTART else "resume"), verdict.reason
        if verdict.verb is Verb.RESTART and not self._runs:
            return "restart", verdict.reason
        if beyond:
            return "decline", f"{verdict.reason}; {beyond}"
        if self.found.kind is ChangeClass.A:
            return self._stored(verdict.reason)
        if not self._would_accept(situation):
            return "decline", f"{verdict.reason}; {self._hint(decision, situation, worth)}"
        if not waits:
            return "keep", f"{verdict.reason}; {self._ways_on(worth)}"
        if self._runs and self.found.kind in {ChangeClass.D, ChangeClass.E}:
            return "decline", f"{verdict.reason}; no checkpoint would fit at the next start: {AT_NEXT_START}"
        return self._stored("stored as asked" if self._runs else verdict.reason)

    def _ways_on(self, worth: CostBenefit) -> str:
        """Return the user's options for a change that does not stop the job."""
        ways = ["--at-next-start stores it for the next start"]
        if not worth.case.work.total:
            ways = [NO_TOTAL, *ways]
        elif self.trial is None or self.trial.found is None or self.trial.found.pace is None:
            ways.insert(0, "--canary N measures it")
        elif longer := worth.longer_canary(self.trial.done, TIME_LIMIT.total_seconds(), self._would_pay):
            where = "in which it stands still" if self.trial.parked else "beside it"
            said = f"--canary {longer.steps} could tell: about {readable_duration(longer.seconds)} {where}"
            ways.insert(0, f"the measurement is too wide to decide; {said}")
        return ", ".join(ways)

    def _would_pay(self, facts: Facts) -> bool:
        """Return True if some arithmetic would make the policy stop what runs."""
        policy = self.service.attempt_service.policy(self.row).policy
        known = {**facts, "diff.class": str(self.found.kind)}
        return any(pays(policy.economics, verb, known) for verb in STARTS)

    def _stored(self, reason: str) -> tuple[Outcome, str]:
        """Return the outcome of a change that the next start uses."""
        before, after = steps(self.before), steps(self.after)
        if self._runs and before and after and after < before:
            goes_on = f"the running attempt goes on to step {before}, beyond workload.steps: {after}"
            return "decline", f"{reason}; {goes_on}"
        changed = {each.name for each in self.found.changes}
        at_once = sorted(changed & AT_ONCE) if self._runs else []
        if at_once:
            reason += f"; {' and '.join(at_once)} {'applies' if len(at_once) == 1 else 'apply'} at once"
        if changed <= set(at_once):
            return "store", reason
        rest = "the rest takes" if at_once else "the change takes"
        return "store", f"{reason}; {rest} effect with the next start"

    def _excess_steps(self, worth: CostBenefit) -> str:
        """Return the reason why the job has done more steps than the change has; empty if it has not."""
        wanted, had, work = steps(self.after), steps(self.before), worth.case.work
        if wanted is None or wanted == had or self.found.kind in {ChangeClass.D, ChangeClass.E}:
            return ""
        reached = work.done if self._runs and work.on_demand else work.saved
        own = "or submit the file as a job of its own"
        if reached > wanted:
            return f"workload.steps: {wanted}, and {reached:.0f} are done: give it more than that, {own}"
        soon = max(worth.now.high * SOON_S if worth.now else 1.0, 1.0) if work.on_demand else 0.0
        runs = isinstance(self.row.job.state, Running)
        if runs and min(reached + soon, had or reached) > wanted:
            said = f"workload.steps: {wanted}; {reached:.0f} are done, and it may be beyond before it stops"
            return f"{said}: give it more, {own}"
        return ""

    def _would_accept(self, situation: Situation, **more: FactValue) -> bool:
        """Return True if the policy would accept the change at no cost, and with the facts ``more``."""
        free = {**situation.facts, **_NO_COST, **more}
        policy = self.service.attempt_service.policy(self.row).policy
        history = replace(self.row.job.history, swaps=0)
        decided = decide(policy, DecisionPoint.CHANGE, history, replace(situation, facts=free))
        return decided.action.verb in STARTS

    def _hint(self, decision: PolicyDecision, situation: Situation, worth: CostBenefit) -> str:
        """Return the user's options for a change that is declined."""
        if self.found.kind is ChangeClass.C and self._would_accept(situation, **{"diff.allowed": True}):
            return f"the job file allows such a change with allow: [{ALLOWED}]"
        approved = {"operator.approved": True}
        if self.found.kind in {ChangeClass.D, ChangeClass.E} and self._would_accept(situation, **approved):
            price = worth.price_s()
            cost = "" if price is None else f", and costs {readable_duration(price)} of work that is done"
            return f"--approve begins again at step 0, in a new lineage{cost}; the old one is kept"
        name = self.service.attempt_service.policy(self.row).policy.name
        if not decision.action.rule:
            return (
                f"the policy {name} has no on_change rule that answers: "
                "add extends: default to it, and apply that first"
            )
        return f"the policy {name} does not take such a change up"

    def _facts(
        self, now: datetime, attempt: Attempt, worth: CostBenefit, saved: SavedCheckpoints, *, beyond: bool
    ) -> dict[str, object]:
        """Return the facts of the decision point ``change``."""
        directory = self.service.attempt_service.directory(self.row)
        paths = directory.paths(attempt.number, attempt.lineage)
        reports = exit_facts.AttemptReports(
            directory.status(paths), None, directory.effective(paths), directory.rates(paths)
        )
        fits = self.found.kind not in {ChangeClass.D, ChangeClass.E}
        allowed = ALLOWED in getattr(self.after.job, "allow", ())
        facts: dict[str, FactValue | None] = {
            **exit_facts.of_progress(reports),
            **exit_facts.of_checkpoints(saved, attempt, now, keeps_files=self.before.keeps_files),
            **exit_facts.of_settings(
                self.before.spec(self.row.job.id, attempt, in_container=False),
                self.before.profile_name(attempt.turned),
                reports.effective,
            ),
            **self.found.facts(allowed=allowed),
            **worth.facts(),
            **self._devices(attempt),
            **self.service.daemon.scheduler.jobs.queue_facts(self.row.job.id, now),
            "checkpoint.compatible": False if beyond else fits if saved.steps else None,
            "checkpoint.on_demand": self._saving().on_demand,
            "operator.approved": self.approved,
        }
        return dict(select_facts(facts, DecisionPoint.CHANGE))

    def _devices(self, attempt: Attempt) -> Mapping[str, Any]:
        """Return the facts about the devices of a running attempt."""
        del attempt
        state = self.row.job.state
        if not isinstance(state, Running):
            return {}
        return self.service.daemon.context.inventory.facts(state.allocation.devices, state.since)

    # --- the arithmetic

    def _cost_benefit(self, now: datetime, saved: SavedCheckpoints) -> CostBenefit:
        measured = self.trial.found if self.trial else None
        written = self._written() if self._runs else ()
        pair = self._pair(measured, written, now)
        costs = self._costs(measured, written, pair)
        every = getattr(self.before.job.workload, "eval_every", None)
        case = ChangeCosts(
            self._work(saved),
            costs,
            self._risk(pair.now),
            expect_evaluations(every, pair.now, pair.new, self._running_evaluation(written, now)),
            costs.start_s if self._stands_still else None,
        )
        return CostBenefit(
            case,
            *comparable_rates(pair),
            pair.slowed if self._is_beside else 1.0,
            self._runs and not self.at_next_start,
            self._incomparable(),
            self.found.kind in {ChangeClass.D, ChangeClass.E},
            self._left_s(now),
        )

    @property
    def _is_beside(self) -> bool:
        """Return True if there is a canary that ran beside the job."""
        return self.trial is not None and self.trial.parked is None

    def _pair(self, measured: TrialMeasurement | None, written: Sequence[MetricsLine], now: datetime) -> Pair:
        """Return the rates of the job and of the change, both as they are without a canary."""
        written = without_warm_up(written)
        alone = self._present_throughput(written, now)
        if measured is None:
            return Pair(alone, None)
        if not self._is_beside:
            return Pair(alone or measure_throughput(written, least=FEW), measured.pace)
        beside = measure_throughput(written, measured.span, least=FEW)
        return compare_beside(alone or beside, beside, measured.pace)

    def _costs(
        self, measured: TrialMeasurement | None, written: Sequence[MetricsLine], pair: Pair
    ) -> Overheads:
        """Return the overheads of a restart as the canary has shown them, or the start of what runs.

        Loading is part of a start.
        """
        if measured is not None and measured.pace is not None:
            slowed = pair.slowed or 1.0
            return Overheads(stop_s=measured.stop_s / slowed, start_s=measured.start_s / slowed)
        number = _attempt(self.row.job).number
        attempts = self.service.store.attempts(self.row.job.id)
        launched = next((each.launched_at for each in attempts if each.number == number), None)
        if launched is None or pair.now is None:
            return Overheads()
        return Overheads(start_s=seconds_to_first_step(written, launched, pair.now.steps.mean))

    def _running_evaluation(self, written: Sequence[MetricsLine], now: datetime) -> RunningEvaluation | None:
        """Return the evaluation that runs, None if none does."""
        status, now_s = self.service.queries.progress(self.row), now.timestamp()
        if status is None or status.phase is not Phase.EVAL:
            return None
        if status.eval_s is not None and status.eval_left_s is not None:  # as its log tells
            left_s = max(status.eval_left_s - max(now_s - status.time, 0.0), 0.0)
            return RunningEvaluation(max(status.eval_s - left_s, 0.0), left_s)
        last_s = max((line.time for line in written if line.trained), default=status.time)
        return RunningEvaluation(max(now_s - last_s, 0.0))

    def _left_s(self, now: datetime) -> float | None:
        """Return the time that the limit of the job leaves, None without a limit."""
        limit, state = self.row.job.time_limit, self.row.job.state
        if limit is None:
            return None
        since = now - state.since if isinstance(state, Running) else timedelta()
        return max((limit - self.row.job.history.ran - since).total_seconds(), 0.0)

    def _risk(self, pace: Throughput | None) -> Risk:
        """Return the rate of this host's interruptions if there were any, and that of this job's saves."""
        status, wanted = self.service.queries.progress(self.row), self.before.job.checkpoint
        every = status.save_every_s if status is not None else None
        if every is None and isinstance(wanted.every, timedelta):
            every = wanted.every.total_seconds()
        if every is None and wanted.every_steps is not None and pace is not None:
            every = wanted.every_steps / pace.steps.mean
        ran_s, interruptions = self.service.store.interruptions()
        return Risk(estimate_mtbf_s(ran_s, interruptions) if interruptions else None, every)

    def _written(self) -> tuple[MetricsLine, ...]:
        attempt = _attempt(self.row.job)
        return self.step_times.of(self.row, attempt.number, attempt.lineage)

    def _present_throughput(self, written: Sequence[MetricsLine], now: datetime) -> Throughput | None:
        """Return the recent throughput of the job without the time of its canary."""
        window = self.service.attempt_service.policy(self.row).policy.economics.rate_window
        without, until = NEVER, now
        if self.trial is not None:
            without = (self.trial.began.timestamp(), (self.trial.over or now).timestamp())
            until = self.trial.began
        # What is later counts more, and a canary may have taken all of it.
        recent = [((end - window).timestamp(), end.timestamp()) for end in (now, until)]
        return present_throughput(written, recent, without)

    def _saving(self) -> Saving:
        return saves_when_asked(self.service, self.row, self.before)

    def _work(self, saved: SavedCheckpoints) -> Work:
        """Return the work in steps: in total, done, and saved."""
        kept = self._saved_step(saved)
        done = float(finished_by(self.service, self.row) or kept)
        on_demand = self._saving().on_demand
        return Work(float(steps(self.before) or self._reported_steps()), done, float(kept), on_demand)

    def _saved_step(self, saved: SavedCheckpoints) -> int:
        """Return the step of the newest checkpoint; of one that has none, that at which it was written."""
        if saved.are_steps or saved.changed is None:
            return saved.newest or 0
        until = saved.changed.timestamp()
        return max((line.step for line in self._written() if line.time <= until), default=0)

    def _reported_steps(self) -> int:
        """Return the steps that the program counts; 0 if it says nothing."""
        status = self.service.queries.progress(self.row)
        return (status.total_steps if status is not None else None) or 0

    def _incomparable(self) -> str:
        """Return the reason why a step of the change is other work than one now; empty if it is the same."""
        names = {change.name for change in self.found.changes}
        if names & {"workload.steps", "workload.epochs"}:
            return f"with the change there are {steps(self.after) or 'other'} steps, which is other work"
        return "a batch of another size is other work" if "workload.batch_size" in names else ""


def steps(revision: Revision) -> int | None:
    """Return the steps of a revision; None if only its program knows."""
    return revision.job.workload.known_steps


def finished_by(service: JobService, row: JobRow) -> int:
    """Return the step of a running attempt; 0 until it has loaded its checkpoint."""
    status = service.queries.progress(row)
    return 0 if status is None else status.step or 0


def _attempt(job: Job) -> Attempt:
    """Return the attempt that runs, or the one that ran last."""
    if isinstance(job.state, Allocated):
        return job.state.attempt
    return Attempt(max(job.attempts, 1), job.lineage)
