"""Evaluating a change: its facts, its cost and benefit, and the decision of the job's policy.

Nothing is changed here.  Progress, checkpoints and throughput are read, cost and benefit are computed, and
the policy decides; ``runner.services.rollout.service`` applies the decision.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from runner.agent.attempts import facts as exit_facts
from runner.control.decisions import decision_row
from runner.core.job.attempt import Attempt
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Running
from runner.core.policy import explain as records
from runner.core.policy.catalog import facts_at, validate_facts
from runner.core.policy.change_class import ChangeClass, RevisionChange, change_rows
from runner.core.policy.decision import PolicyDecision, Situation
from runner.core.policy.economics import ChangeCosts, Overheads, Rate, Risk, Work, estimate_mtbf_s
from runner.core.policy.evaluate import decide
from runner.core.policy.facts import DecisionPoint, FactValue
from runner.core.policy.model import STARTS, Verb
from runner.core.ports.store import DecisionRow, JobRow
from runner.files.revision import Revision
from runner.services.jobs import JobService
from runner.services.rollout.cost_benefit import CostBenefit, explain
from runner.services.rollout.throughput import (
    METRICS_BYTES,
    NEVER,
    MetricsLine,
    Throughput,
    measure_throughput,
    parse_metrics,
    slowdown,
)
from runner.services.rollout.trial import Trial, TrialMeasurement, saves_on_stop

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
"""How long an attempt trains on at least, from its last heartbeat to its reaction to SIGTERM."""


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
        """Whether the job gets a new revision."""
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
        worth = self._cost_benefit(now)
        beyond = self._excess_steps(worth)
        facts = self._facts(now, attempt, worth, beyond=bool(beyond))
        if not self._runs:  # nothing is interrupted, so nothing has to pay
            facts |= _NO_COST
        pinned = self.service.attempt_service.policy(self.row)
        started = self.row.job.state.since if isinstance(self.row.job.state, Running) else None
        situation = Situation(validate_facts(facts, DecisionPoint.CHANGE), now, started, "", self.row.job.id)
        decision = decide(pinned.policy, DecisionPoint.CHANGE, self.row.job.history, situation)
        record = decision_row(self.row, attempt, pinned, situation, decision)
        outcome, why = self._outcome(decision, situation, beyond)
        return Evaluation(
            self.row, self.before, self.after, self.found, worth, decision, outcome, why, record, self.trial
        )

    def unconditional_decline(self) -> str:
        """Return why the change is declined whatever a canary shows; empty if a canary could decide."""
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
        return isinstance(self.row.job.state, Allocated) or (
            self.trial is not None and self.trial.parked is not None
        )

    def _outcome(self, decision: PolicyDecision, situation: Situation, beyond: str) -> tuple[Outcome, str]:
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
            return "decline", f"{verdict.reason}; {self._hint(decision, situation)}"
        if not waits:
            return "keep", f"{verdict.reason}; {self._ways_on()}"
        if self._runs and self.found.kind in {ChangeClass.D, ChangeClass.E}:
            return "decline", f"{verdict.reason}; no checkpoint would fit at the next start: {AT_NEXT_START}"
        return self._stored("stored as asked" if self._runs else verdict.reason)

    def _ways_on(self) -> str:
        """Return what the user can do about a change for which what runs is not stopped."""
        measured = self.trial is not None and self.trial.found is not None and self.trial.found.pace
        ways = () if measured else ("--canary N measures it",)
        return f"{', '.join((*ways, '--at-next-start stores it for the next start'))}"

    def _stored(self, reason: str) -> tuple[Outcome, str]:
        """Return the outcome of a change that the next start uses."""
        before, after = steps(self.before), steps(self.after)
        if self._runs and before and after and after < before:
            goes_on = f"what runs goes on to step {before}, beyond workload.steps: {after}"
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
        """Return why the job has done more steps than the change has; empty if it has not."""
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
        """Return whether the policy would accept the change at no cost, and with the facts ``more``."""
        free = {**situation.facts, **_NO_COST, **more}
        policy = self.service.attempt_service.policy(self.row).policy
        history = replace(self.row.job.history, swaps=0)
        decided = decide(policy, DecisionPoint.CHANGE, history, replace(situation, facts=free))
        return decided.action.verb in STARTS

    def _hint(self, decision: PolicyDecision, situation: Situation) -> str:
        """Return what the user can do about a change that is declined."""
        if self.found.kind is ChangeClass.C and self._would_accept(situation, **{"diff.allowed": True}):
            return f"the job file allows such a change with allow: [{ALLOWED}]"
        approved = {"operator.approved": True}
        if self.found.kind in {ChangeClass.D, ChangeClass.E} and self._would_accept(situation, **approved):
            return "--approve begins again at step 0, in a new lineage; the old one is kept"
        name = self.service.attempt_service.policy(self.row).policy.name
        if not decision.action.rule:
            return (
                f"the policy {name} has no on_change rule that answers: "
                "add extends: default to it, and apply that first"
            )
        return f"the policy {name} does not take such a change up"

    def _facts(
        self, now: datetime, attempt: Attempt, worth: CostBenefit, *, beyond: bool
    ) -> dict[str, object]:
        """Return the facts of the decision point ``change``."""
        directory = self.service.attempt_service.directory(self.row)
        paths = directory.paths(attempt.number, attempt.lineage)
        reports = exit_facts.AttemptReports(
            directory.status(paths), None, directory.effective(paths), directory.rates(paths)
        )
        saved = self.service.attempt_service.verified(self.row, attempt.lineage)
        fits = self.found.kind not in {ChangeClass.D, ChangeClass.E}
        allowed = ALLOWED in getattr(self.after.job, "allow", ())
        facts: dict[str, FactValue | None] = {
            **exit_facts.of_progress(reports),
            **exit_facts.of_checkpoints(saved, attempt, now),
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
            "checkpoint.on_demand": saves_on_stop(self.before),
            "operator.approved": self.approved,
        }
        there = facts_at(DecisionPoint.CHANGE)
        return {name: value for name, value in facts.items() if name in there and value is not None}

    def _devices(self, attempt: Attempt) -> Mapping[str, Any]:
        """Return the facts about the devices of a running attempt."""
        del attempt
        state = self.row.job.state
        if not isinstance(state, Running):
            return {}
        return self.service.daemon.context.inventory.facts(state.allocation.devices, state.since)

    # --- the arithmetic

    def _cost_benefit(self, now: datetime) -> CostBenefit:
        measured = self.trial.found if self.trial else None
        now_pace = self._present_throughput(now)
        new_pace = measured.pace if measured else None
        rate = self._rate(now_pace, self.before)
        case = ChangeCosts(self._work(), _costs(measured), self._risk(rate), self._trial_s(now, measured))
        new = self._rate(new_pace, self.after, now_pace)
        return CostBenefit(case, rate, new, self._slowed(now_pace), self._runs, self._incomparable())

    def _slowed(self, alone: Throughput | None) -> float:
        """Return how many times slower the job was while its canary ran beside it."""
        if alone is None or self.trial is None or self.trial.over is None or self.trial.parked is not None:
            return 1.0
        beside = (self.trial.began.timestamp(), self.trial.over.timestamp())
        return slowdown(self._written(), beside, alone.steps)

    def _risk(self, rate: Rate | None) -> Risk:
        """Return how often this host interrupts jobs, and how often this job saves."""
        status, wanted = self.service.queries.progress(self.row), self.before.job.checkpoint
        every = status.save_every_s if status is not None else None
        if every is None and isinstance(wanted.every, timedelta):
            every = wanted.every.total_seconds()
        if every is None and wanted.every_steps is not None and rate is not None:
            every = wanted.every_steps / rate.mean
        return Risk(estimate_mtbf_s(*self.service.store.interruptions()), every)

    def _written(self) -> tuple[MetricsLine, ...]:
        attempt = _attempt(self.row.job)
        service = self.service.attempt_service
        return parse_metrics(service.metrics(self.row, attempt.number, attempt.lineage, METRICS_BYTES))

    def _present_throughput(self, now: datetime) -> Throughput | None:
        """Return the recent throughput of the job without the time of its canary."""
        if not self._runs:
            return None
        window = self.service.attempt_service.policy(self.row).policy.economics.rate_window
        written, without = self._written(), NEVER
        if self.trial is not None:
            without = (self.trial.began.timestamp(), (self.trial.over or now).timestamp())
        recent = measure_throughput(written, ((now - window).timestamp(), now.timestamp()), without)
        return recent or measure_throughput(written, without=without)

    def _work(self) -> Work:
        """Return the work in steps: in total, done, and saved."""
        attempt = _attempt(self.row.job)
        saved = self.service.attempt_service.verified(self.row, attempt.lineage).newest or 0
        done = float(finished_by(self.service, self.row) or saved)
        on_demand = saves_on_stop(self.before) is True
        return Work(float(steps(self.before) or self._reported_steps()), done, float(saved), on_demand)

    def _reported_steps(self) -> int:
        """Return the steps that the program counts; 0 if it says nothing."""
        status = self.service.queries.progress(self.row)
        return (status.total_steps if status is not None else None) or 0

    def _incomparable(self) -> str:
        """Return why a step of the change is other work than a step now; empty if it is the same."""
        names = {change.name for change in self.found.changes}
        if names & {"workload.steps", "workload.epochs"}:
            return f"with the change there are {steps(self.after) or 'other'} steps, which is other work"
        return "a batch of another size is other work" if "workload.batch_size" in names else ""

    def _trial_s(self, now: datetime, measured: TrialMeasurement | None) -> float:
        """Return for how long the job was held for its canary, with the cost of its new start."""
        if self.trial is None or self.trial.parked is None:
            return 0.0
        back = measured.start_s if measured else 0.0
        return (now - self.trial.parked).total_seconds() + back

    @staticmethod
    def _rate(seen: Throughput | None, revision: Revision, other: Throughput | None = None) -> Rate | None:
        if seen is None:
            return None
        every = getattr(revision.job.workload, "eval_every", None)
        return seen.overall(every, other.eval_s if other else None)


def steps(revision: Revision) -> int | None:
    """Return the steps of a revision; None if only its program knows."""
    return revision.job.workload.known_steps


def finished_by(service: JobService, row: JobRow) -> int:
    """Return the step of a running attempt; 0 until it has loaded its checkpoint."""
    status = service.queries.progress(row)
    return status.step if status is not None else 0


def _costs(measured: TrialMeasurement | None) -> Overheads:
    """Return the overheads of a restart as the canary has shown them; loading is part of its start."""
    return Overheads() if measured is None else Overheads(stop_s=measured.stop_s, start_s=measured.start_s)


def _attempt(job: Job) -> Attempt:
    """Return the attempt that runs, or the one that ran last."""
    if isinstance(job.state, Allocated):
        return job.state.attempt
    return Attempt(max(job.attempts, 1), job.lineage)
