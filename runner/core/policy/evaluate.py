"""The decision of a policy as a pure function of facts, history and situation.

The first rule that is true and acts decides.  A rule whose tries are used up, or whose adjustments are
exhausted, decides too (``spent``), unless it says ``next``.  The guards and ceilings are applied
afterwards.  All rules are evaluated, later ones too, so that a user can see the result of each.
"""

from dataclasses import dataclass, replace
from typing import Final

from runner.base.readable import readable_duration
from runner.core.policy import adjustments as remedies
from runner.core.policy import guards as limits
from runner.core.policy.adjustments import NO_SETTING, can_adjust
from runner.core.policy.conditions import ConditionResult, evaluate
from runner.core.policy.decision import Action, Advice, Guard, PolicyDecision, RuleResult, Situation
from runner.core.policy.explain import (
    describe_action,
    describe_exit,
    describe_program_exit,
    describe_warning,
    with_reason,
)
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.history import History
from runner.core.policy.model import DISTURBS, STARTS, Adjustment, Economics, OnExhausted, Policy, Rule, Verb

ANSWERS: Final = "answers"
ASKED_FIRST: Final = "would answer; what was asked for comes first"


def decide(policy: Policy, moment: DecisionPoint, history: History, situation: Situation) -> PolicyDecision:
    """Return the decision of a policy at one decision point."""
    facts = {**situation.facts, **derive_facts(policy, moment, history, situation)}
    situation = replace(situation, facts=facts)
    match moment:
        case DecisionPoint.EXIT:
            return _after_exit(policy, history, situation)
        case DecisionPoint.WATCH:
            return _while_running(policy, history, situation)
        case DecisionPoint.CHANGE:  # exhaustive
            return _offered(policy, history, situation)


def derive_facts(
    policy: Policy, moment: DecisionPoint, history: History, situation: Situation
) -> dict[str, FactValue]:
    """Return the facts that follow from the history and the policy."""
    facts: dict[str, FactValue] = {
        "attempt.n": history.attempts + 1,
        "attempt.charged": history.charged,
        "attempt.wall_s": (history.ran + situation.uptime).total_seconds(),
    }
    if situation.started:
        facts["attempt.uptime_s"] = situation.uptime.total_seconds()
    if moment is DecisionPoint.EXIT:
        facts["attempt.same_root"] = history.times_stuck(
            failure_fingerprint(situation.facts), situation.effective
        )
    if moment is DecisionPoint.CHANGE:
        for verb in STARTS:
            if (worth_it := pays(policy.economics, verb, situation.facts)) is not None:
                facts[f"econ.{verb}_pays"] = worth_it
    return facts


def pays(economics: Economics, verb: Verb, facts: Facts) -> bool | None:
    """Return True if a change is worth its interruption; None if nobody knows its gain.

    A tenth of twelve hours is worth it, and a seventh of a minute is: a saving counts by its share of what
    is left, or by its length.  Where only one of the two ends within the time limit, nothing else counts.
    """
    gain, saves_s = facts.get(f"econ.{verb}_gain"), facts.get(f"econ.{verb}_saves_s")
    if not isinstance(gain, int | float):
        return None
    long = isinstance(saves_s, int | float) and saves_s >= economics.saving.total_seconds()
    kept, changed = facts.get("econ.keep_in_time"), facts.get(f"econ.{verb}_in_time")
    if isinstance(kept, bool) and isinstance(changed, bool) and kept is not changed:
        return changed
    return gain >= economics.hurdle or long


def failure_fingerprint(facts: Facts) -> str:
    """Return the fingerprint of a failure; attempts that failed alike have the same."""
    return str(facts.get("root") or facts.get("cause") or facts.get("exit.class") or "unknown")


# --- Asking the rules ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    """The rule that decides, the adjustments that are still possible, and why it is exhausted, if it is."""

    rule: Rule
    adjust: tuple[Adjustment, ...]
    spent: str = ""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    weighed: tuple[RuleResult, ...]
    advice: tuple[Advice, ...]
    answer: _Answer | None


def _evaluate_rules(
    policy: Policy, moment: DecisionPoint, history: History, situation: Situation
) -> _Evaluation:
    """Evaluate every rule; the first that is true, acts and does not pass on decides."""
    weighed: list[RuleResult] = []
    advice: list[Advice] = []
    answer: _Answer | None = None
    for rule in policy.rules(moment):
        finding = evaluate(rule.when, situation.facts)
        note = ""
        if finding.truth and rule.only_advises:
            note = "only says so"
            advice.append(Advice(rule.name, describe_warning(rule, situation.facts)))
        elif finding.truth and answer is None:
            answer, note = _try(rule, finding, moment, history, situation)
        elif finding.truth:
            note = "an earlier rule has answered"
        weighed.append(RuleResult(rule.name, rule.do, finding.truth, finding.fact_uses, note))
    return _Evaluation(tuple(weighed), tuple(advice), answer)


def _try(
    rule: Rule, finding: ConditionResult, moment: DecisionPoint, history: History, situation: Situation
) -> tuple[_Answer | None, str]:
    """Return the answer of a rule that is true, or None if it passes on, and a note about it."""
    if moment is not DecisionPoint.EXIT and rule.do in DISTURBS and not finding.fact_uses:
        return None, "no fact speaks for it: a running attempt is not disturbed"
    left = tuple(adjustment for adjustment in rule.adjust if can_adjust(adjustment, situation.facts))
    spent = _spent(rule, left, history, situation) if moment is DecisionPoint.EXIT else ""
    if spent and rule.spent is OnExhausted.NEXT:
        return None, f"{spent}; the next rule is asked"
    return _Answer(rule, left, spent), spent or ANSWERS


def _spent(rule: Rule, left: tuple[Adjustment, ...], history: History, situation: Situation) -> str:
    """Return the reason why a rule is exhausted; empty if it is not."""
    if rule.adjust and not left:
        return remedies.describe_exhausted(rule.adjust, situation.facts)
    tried = history.times_tried(rule, failure_fingerprint(situation.facts), situation.effective)
    if rule.tries is not None and tried >= rule.tries:
        return f"all {rule.tries} retries are used" if rule.tries > 1 else "its one retry is used"
    return ""


# --- The end of an attempt ----------------------------------------------------------------------------


def _after_exit(policy: Policy, history: History, situation: Situation) -> PolicyDecision:
    facts, root = situation.facts, failure_fingerprint(situation.facts)
    advanced = facts.get("progress.advanced")
    restarting = {rule.name for rule in policy.on_exit if rule.do is Verb.RESTART}
    before = history.reset_tallies(restarting) if advanced is True else history
    seen = facts.get("checkpoint.present") is True
    ended = replace(
        before.add_attempt(situation.started or situation.now, situation.uptime),
        had_checkpoint=history.had_checkpoint or seen,
    )
    asked = _evaluate_rules(policy, DecisionPoint.EXIT, before, situation)
    wish = limits.decide_operator_request(facts)
    verdict = wish or _decide_exit(asked.answer, history, facts)
    if asked.answer and verdict.rule:
        verdict = limits.guard_charge(verdict, asked.answer.rule, facts)
    after = ended.charge(root, situation.effective, advanced=_truth(advanced)) if verdict.charged else ended
    if verdict.verb in STARTS:
        delay = policy.backoff.wait(after.setbacks, f"{situation.seed}/{after.attempts}")
        verdict = replace(verdict, delay=delay)
    verdict = limits.apply_ceilings(verdict, policy, after, situation, root)
    if asked.answer and verdict.verb in STARTS:
        after = after.add_try(asked.answer.rule, root, situation.effective)
    decision = PolicyDecision(DecisionPoint.EXIT, verdict, after, facts, asked.weighed, asked.advice)
    return mark_overruled(decision) if wish else decision


def mark_overruled(decision: PolicyDecision) -> PolicyDecision:
    """Return a decision whose results say that a request of a user came first."""
    weighed = (
        each._replace(note=ASKED_FIRST) if each.note == ANSWERS else each for each in decision.rule_results
    )
    return replace(decision, rule_results=tuple(weighed))


def _decide_exit(answer: _Answer | None, history: History, facts: Facts) -> Action:
    """Return the action of a rule for an end, as far as the checkpoints allow it."""
    if answer is None:
        return Action(Verb.HOLD, "", f"no rule answers: {describe_exit(facts)}")
    rule = answer.rule
    if answer.spent:
        verb = Verb(rule.spent)
        said = (
            describe_program_exit(facts)
            if answer.spent == NO_SETTING
            else f"{describe_exit(facts)}, and {answer.spent}"
        )
        return Action(verb, rule.name, with_reason(said, rule))
    reason = f"{describe_action(rule.do, rule.start, answer.adjust, facts)}: {describe_exit(facts)}"
    verdict = Action(
        rule.do, rule.name, with_reason(reason, rule), rule.start, answer.adjust, charged=rule.charge
    )
    return limits.guard_exit(verdict, history, facts)


def _truth(value: FactValue | None) -> bool | None:
    return value if isinstance(value, bool) else None


# --- While it runs ------------------------------------------------------------------------------------


def _while_running(policy: Policy, history: History, situation: Situation) -> PolicyDecision:
    asked = _evaluate_rules(policy, DecisionPoint.WATCH, history, situation)
    verdict = Action(Verb.KEEP, "", "nothing speaks against it", charged=False)
    wall = policy.ceilings.wall
    if wall is not None and history.ran + situation.uptime >= wall:
        verdict = Action(
            Verb.STOP, "", f"the running time of {readable_duration(wall)} is used", limit=Guard.WALL
        )
    elif asked.answer:
        rule = asked.answer.rule
        verdict = Action(rule.do, rule.name, f"stop: {describe_warning(rule, situation.facts)}")
    return PolicyDecision(DecisionPoint.WATCH, verdict, history, situation.facts, asked.weighed, asked.advice)


def _offered(policy: Policy, history: History, situation: Situation) -> PolicyDecision:
    """Decide about a new revision or profile; without a rule for it the attempt goes on."""
    facts = situation.facts
    asked = _evaluate_rules(policy, DecisionPoint.CHANGE, history, situation)
    verdict = Action(Verb.KEEP, "", "no rule speaks for the change", charged=False)
    if asked.answer:
        rule, adjust = asked.answer.rule, asked.answer.adjust
        reason = with_reason(
            f"{describe_action(rule.do, rule.start, adjust, facts)}: {_argument(asked)}", rule
        )
        verdict = Action(rule.do, rule.name, reason, rule.start, adjust, charged=False)
        verdict = limits.guard_change(verdict, policy, history, facts)
    swapped = verdict.verb in STARTS and facts.get("operator.approved") is not True
    after = replace(history, swaps=history.swaps + 1) if swapped else history
    return PolicyDecision(DecisionPoint.CHANGE, verdict, after, facts, asked.weighed, asked.advice)


def _argument(asked: _Evaluation) -> str:
    """Return the facts that made the deciding rule true, as text."""
    said = next(each for each in asked.weighed if each.note == ANSWERS)
    return (
        ", ".join(f"{r.comparison.fact} {r.comparison.wanted}" for r in said.fact_uses)
        or "nothing speaks for a change"
    )
