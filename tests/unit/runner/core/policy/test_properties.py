"""Properties of every policy, whatever its rules say and whatever happens."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.policy.conditions import Comparison, Operator, comparisons, evaluate
from runner.core.policy.decision import PolicyDecision, Situation
from runner.core.policy.evaluate import decide, failure_fingerprint
from runner.core.policy.facts import DecisionPoint, Facts
from runner.core.policy.history import History
from runner.core.policy.model import (
    DISTURBS,
    STARTS,
    Ceilings,
    OnExhausted,
    Policy,
    RestartRate,
    Rule,
    Verb,
    tightest,
)
from tests.fakes.host.disk import examples
from tests.unit.runner.core.policy.strategies import CEILINGS, conditions, facts, gathered, policies

EXAMPLES = examples(15)
"""Enough for every build; thousands were tried when these were written."""

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ends = st.tuples(
    facts(DecisionPoint.EXIT),
    st.integers(0, 600).map(lambda minutes: timedelta(minutes=minutes)),  # how long the attempt lasts
    st.integers(0, 60).map(lambda minutes: timedelta(minutes=minutes)),  # how long it waits for a device
    st.sampled_from(["s", "t"]),
)
stuck_ends = ends.map(lambda end: ({"progress.advanced": False, **end[0]}, *end[1:]))
AGAIN = Rule("again", Verb.RESUME)
ONCE_MORE = replace(AGAIN, tries=1)


def tireless(policy: Policy, last: Rule = AGAIN) -> Policy:
    """Let a policy resume where none of its rules answers: else hardly a life has a third attempt."""
    return replace(policy, on_exit=(*policy.on_exit, last))


@dataclass(frozen=True)
class Made:
    """One attempt of a life: when it started, how it ended, what was decided."""

    started: datetime
    facts: Facts
    effective: str
    decision: PolicyDecision
    ran_before: timedelta


def life(
    policy: Policy, story: Sequence[tuple[Facts, timedelta, timedelta, str]], most: int = 60
) -> list[Made]:
    """Live through ends until the policy makes no further attempt."""
    made: list[Made] = []
    history, clock, ran = History(), NOW, timedelta()
    for number in range(most):
        known, lasts, waits, effective = story[number % len(story)]
        situation = Situation(known, clock + lasts, clock, effective, "job")
        decision = decide(policy, DecisionPoint.EXIT, history, situation)
        made.append(Made(clock, known, effective, decision, ran))
        if decision.action.verb not in STARTS:
            break
        history, ran = decision.history, ran + lasts
        clock += lasts + decision.action.delay + waits
    return made


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT), st.lists(ends, min_size=1, max_size=4))
def test_no_policy_starts_more_attempts_than_its_ceilings_allow(
    policy: Policy, story: list[tuple[Facts, timedelta, timedelta, str]]
) -> None:
    patient = replace(policy.ceilings, attempts=20, no_progress=20)  # there are others to be reached
    for ceilings in (policy.ceilings, patient):
        made = life(tireless(replace(policy, ceilings=ceilings)), story)
        assert made
        assert sum(each.decision.action.charged for each in made) <= ceilings.attempts
        assert most_within([each.started for each in made], ceilings.storm.within) <= ceilings.storm.attempts
        assert all(ceilings.wall is None or each.ran_before < ceilings.wall for each in made)


def most_within(starts: Sequence[datetime], span: timedelta) -> int:
    """Return the largest number of starts within a time."""
    return max(sum(last - span < start <= last for start in starts) for last in starts)


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT), st.lists(stuck_ends, min_size=1, max_size=3))
def test_no_policy_repeats_what_ended_alike_without_progress_more_often_than_it_says(
    policy: Policy, story: list[tuple[Facts, timedelta, timedelta, str]]
) -> None:
    stuck: Counter[tuple[str, str]] = Counter()
    policy = tireless(replace(policy, ceilings=Ceilings(no_progress=policy.ceilings.no_progress)))
    for each in life(policy, story):
        verdict = each.decision.action
        if each.facts.get("progress.advanced") is True:
            stuck.clear()
        if verdict.charged and each.facts.get("progress.advanced") is False:
            stuck[failure_fingerprint(each.facts), each.effective] += 1
        repeats = verdict.verb in STARTS and all(one.knob == "device" for one in verdict.adjust)
        if repeats:
            assert stuck[failure_fingerprint(each.facts), each.effective] < policy.ceilings.no_progress


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT), st.lists(ends, min_size=1, max_size=3))
def test_a_container_that_only_talks_gets_no_attempt_for_free(
    policy: Policy, story: list[tuple[Facts, timedelta, timedelta, str]]
) -> None:
    hints = {fact.name for fact in gathered(DecisionPoint.EXIT) if fact.hint}
    talk = [
        ({name: known[name] for name in known if name in hints}, lasts, waits, effective)
        for known, lasts, waits, effective in story
    ]
    unexcused = [
        rule for rule in policy.on_exit if not list(comparisons(rule.when))
    ]  # the loader refuses these
    careful = [rule for rule in policy.on_exit if rule not in unexcused]
    policy = tireless(replace(policy, on_exit=(*excused(talk[0][0]), *careful)))
    assert all(each.decision.action.charged for each in life(policy, talk))


def excused(known: Facts) -> list[Rule]:
    """Return a rule for each of these facts that is true of it and charges nothing."""
    return [
        Rule(f"free-{name}", Verb.RESUME, Comparison(name, Operator.IS, value), charge=False)
        for name, value in known.items()
        if not isinstance(value, tuple)
    ]


@pytest.mark.parametrize("moment", [DecisionPoint.WATCH, DecisionPoint.CHANGE])
@settings(max_examples=EXAMPLES)
@given(rest=st.data())
def test_when_nothing_is_known_nothing_that_runs_is_disturbed(
    moment: DecisionPoint, rest: st.DataObject
) -> None:
    policy = rest.draw(policies(moment))
    verdict = decide(policy, moment, History(), Situation({}, NOW)).action
    assert verdict.verb not in DISTURBS


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT))
def test_when_nothing_is_known_no_rule_with_a_condition_answers(policy: Policy) -> None:
    decision = decide(policy, DecisionPoint.EXIT, History(), Situation({}, NOW))
    conditional = {rule.name for rule in policy.on_exit if list(comparisons(rule.when))}
    assert decision.action.rule not in conditional
    assert all(each.truth is None for each in decision.rule_results if each.rule in conditional)


@pytest.mark.parametrize("moment", list(DecisionPoint))
@settings(max_examples=EXAMPLES)
@given(rest=st.data())
def test_to_forget_a_fact_makes_a_condition_unknown_but_never_turns_it_round(
    moment: DecisionPoint, rest: st.DataObject
) -> None:
    condition, known = rest.draw(conditions(moment)), rest.draw(facts(moment))
    forgotten = rest.draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
    fewer = {name: value for name, value in known.items() if name not in forgotten}
    truth = evaluate(condition, fewer).truth
    assert truth is None or truth == evaluate(condition, known).truth


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT), facts(DecisionPoint.EXIT))
def test_the_first_rule_that_is_true_and_acts_answers(policy: Policy, known: Facts) -> None:
    decision = decide(policy, DecisionPoint.EXIT, History(), Situation(known, NOW))
    handing_over = {each.rule for each in decision.rule_results if "the next rule is asked" in each.note}
    true = [
        rule.name
        for rule, each in zip(policy.on_exit, decision.rule_results, strict=True)
        if each.truth and not rule.only_advises and rule.name not in handing_over
    ]
    asked = known.get("operator.request") in ("cancel", "hold") and known.get("exit.class") != "success"
    assert decision.action.rule == ("" if asked or not true else true[0])


@settings(max_examples=EXAMPLES)
@given(policies(DecisionPoint.EXIT), st.lists(ends, min_size=1, max_size=3))
def test_a_spent_remedy_never_falls_through_by_default(
    policy: Policy, story: list[tuple[Facts, timedelta, timedelta, str]]
) -> None:
    policy = tireless(replace(policy, on_exit=tuple(map(_by_default, policy.on_exit))), ONCE_MORE)
    for each in life(policy, story):
        answering = [one for one in each.decision.rule_results if one.truth and one.note != "only says so"]
        if answering and each.decision.action.rule:
            assert each.decision.action.rule == answering[0].rule
            spent = "used" in answering[0].note or "any further" in answering[0].note
            assert not spent or each.decision.action.verb is Verb.GIVE_UP


def _by_default(rule: Rule) -> Rule:
    return replace(rule, spent=OnExhausted.GIVE_UP)


@given(CEILINGS, CEILINGS)
def test_extending_never_loosens_a_ceiling(parent: Ceilings, child: Ceilings) -> None:
    both = tightest(parent, child)
    for each in (parent, child):
        assert both.attempts <= each.attempts
        assert both.no_progress <= each.no_progress
        assert (both.wall or timedelta.max) <= (each.wall or timedelta.max)
        assert both.storm.attempts <= each.storm.attempts
        assert both.storm.within >= each.storm.within
    assert both == tightest(child, parent)


def test_the_stricter_storm_is_put_together_from_both() -> None:
    often, long = RestartRate(3, timedelta(minutes=1)), RestartRate(9, timedelta(hours=1))
    assert tightest(Ceilings(storm=often), Ceilings(storm=long)).storm == RestartRate(3, timedelta(hours=1))


@settings(max_examples=EXAMPLES)
@given(st.sampled_from(list(DecisionPoint)), st.data())
def test_the_same_question_always_gets_the_same_answer(moment: DecisionPoint, rest: st.DataObject) -> None:
    policy = rest.draw(policies(moment))
    situation = Situation(rest.draw(facts(moment)), NOW, NOW - timedelta(hours=1), "s", "job")
    assert decide(policy, moment, History(), situation) == decide(policy, moment, History(), situation)
