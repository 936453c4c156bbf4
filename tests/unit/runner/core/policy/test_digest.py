from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from runner.core.policy.conditions import ALWAYS, AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.digest import canonical_text, compute_digest
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import (
    Adjustment,
    Backoff,
    Ceilings,
    Economics,
    Mode,
    OnExhausted,
    Policy,
    RestartRate,
    Rule,
    Setting,
    Source,
    StartPoint,
    Verb,
)
from tests.unit.runner.core.policy.strategies import policies

RULE = Rule("a", Verb.RESUME)
NAN = Comparison("nan", Operator.IS, operand=True)
OTHER: dict[type, dict[str, Any]] = {
    Policy: {
        "name": "other",
        "ceilings": Ceilings(attempts=1),
        "backoff": Backoff(factor=3.0),
        "economics": Economics(max_swaps=9),
        "on_exit": (RULE,),
        "on_watch": (RULE,),
        "on_change": (RULE,),
    },
    Ceilings: {
        "attempts": 7,
        "wall": timedelta(hours=1),
        "storm": RestartRate(attempts=1),
        "no_progress": 9,
    },
    RestartRate: {"attempts": 9, "within": timedelta(hours=9)},
    Backoff: {"first": timedelta(0), "factor": 1.5, "max": timedelta(days=1), "jitter": 0.3},
    Economics: {
        "hurdle": 2.0,
        "saving": timedelta(hours=2),
        "max_swaps": 8,
        "rate_window": timedelta(hours=1),
    },
    Rule: {
        "name": "b",
        "do": Verb.RESTART,
        "when": NAN,
        "start": StartPoint(Source.PREVIOUS),
        "adjust": (Adjustment(Setting.WORKERS, "halve"),),
        "charge": False,
        "tries": 1,
        "spent": OnExhausted.HOLD,
        "mode": Mode.LOG,
        "why": "because",
    },
}
"""Another value for every field of a policy."""


def policy_with(part: Any) -> Policy:
    match part:
        case Policy():
            return part
        case Ceilings():
            return Policy("p", ceilings=part)
        case RestartRate():
            return Policy("p", ceilings=Ceilings(storm=part))
        case Backoff():
            return Policy("p", backoff=part)
        case Economics():
            return Policy("p", economics=part)
        case _:
            return Policy("p", on_exit=(part,))


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (part, each.name)
        for part in (Policy("p"), Ceilings(), RestartRate(), Backoff(), Economics(), RULE)
        for each in fields(part)
    ],
)
def test_every_field_of_a_policy_changes_its_digest(part: Any, field: str) -> None:
    changed = replace(part, **{field: OTHER[type(part)][field]})
    assert compute_digest(policy_with(changed)) != compute_digest(policy_with(part))


@pytest.mark.parametrize(
    "condition",
    [
        NAN,
        replace(NAN, operand=False),
        Not(NAN),
        AllOf((NAN,)),
        AnyOf((NAN,)),
        AllOf((NAN, NAN)),
        Comparison("root", Operator.IS, "1"),
        Comparison("root", Operator.IS, 1),
        Comparison("root", Operator.IN, ("1",)),
        Comparison("exit.code", Operator.GT, 1),
        Comparison("exit.code", Operator.GE, 1),
    ],
)
def test_every_condition_has_a_digest_of_its_own(condition: Condition) -> None:
    always, one = (replace(RULE, when=when) for when in (ALWAYS, condition))
    assert compute_digest(policy_with(one)) != compute_digest(policy_with(always))


@given(policies(DecisionPoint.EXIT), policies(DecisionPoint.EXIT))
def test_two_policies_share_a_text_and_a_digest_only_if_they_are_equal(one: Policy, other: Policy) -> None:
    assert (canonical_text(one) == canonical_text(other)) == (one == other)
    assert (compute_digest(one) == compute_digest(other)) == (one == other)


def test_the_digest_is_that_of_the_words_of_the_policy_file() -> None:
    """A literal: whoever changes the canonical text changes every digest that is kept.

    A field that gets another name in the code keeps its word in ``_WORDS``.
    """
    when = AllOf((NAN, Not(Comparison("exit.code", Operator.IN, (1, 2.0)))))
    policy = Policy("p", on_exit=(replace(RULE, when=when, adjust=(Adjustment(Setting.COMPILE, "off"),)),))
    assert canonical_text(policy) == (
        '{"backoff":{"factor":2,"first":5000000,"jitter":0.2,"max":300000000},'
        '"ceilings":{"attempts":20,"no_progress":3,"storm":{"attempts":6,"within":1800000000},"wall":null},'
        '"economics":{"hurdle":1.15,"max_swaps":2,"rate_window":300000000},'
        '"name":"p","on_change":[],"on_exit":[{"charge":true,"do":"resume",'
        '"from":{"source":"newest","step":null},"mode":"act","name":"a","spent":"give_up","tries":null,'
        '"when":{"all":[{"fact":"nan","is":true},{"not":{"fact":"exit.code","in":[1,2]}}]},"why":"",'
        '"with":[["compile","off"]]}],"on_watch":[]}'
    )
    assert compute_digest(policy) == "9e545eef407e"
