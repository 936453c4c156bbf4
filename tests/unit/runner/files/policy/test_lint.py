from time import thread_time

import pytest

from runner.core.policy.conditions import ALWAYS, AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import FactValue
from runner.core.policy.model import Mode, OnExhausted, Rule, Verb
from runner.files.policy.lint import find_contradiction, find_unreachable_rules

NAN = Comparison("nan", Operator.IS, operand=True)
OOM = Comparison("oom.device", Operator.IS, operand=True)


def code(sign: Operator, operand: FactValue) -> Comparison:
    return Comparison("exit.code", sign, operand)


def rule(
    name: str, when: Condition, *, mode: Mode = Mode.ACT, spent: OnExhausted = OnExhausted.GIVE_UP
) -> Rule:
    return Rule(name, Verb.RESUME, when, spent=spent, mode=mode)


@pytest.mark.parametrize(
    ("first", "second", "hides"),
    [
        (ALWAYS, NAN, True),
        (NAN, NAN, True),
        (NAN, AllOf((OOM, NAN)), True),
        (AllOf((NAN, OOM)), AllOf((OOM, NAN)), True),
        (AllOf((NAN, OOM)), NAN, False),
        (NAN, OOM, False),
        (AnyOf((NAN, OOM)), NAN, False),
    ],
)
def test_a_rule_behind_one_that_is_true_whenever_it_is_is_hidden(
    first: Condition,
    second: Condition,
    hides: bool,  # noqa: FBT001
) -> None:
    rules = (rule("a", first), rule("b", second))
    assert [(one.name, other.name) for one, other in find_unreachable_rules(rules)] == (
        [("b", "a")] if hides else []
    )


def test_a_rule_that_hands_over_or_only_speaks_hides_nothing() -> None:
    assert list(find_unreachable_rules((rule("a", ALWAYS, spent=OnExhausted.NEXT), rule("b", NAN)))) == []
    assert list(find_unreachable_rules((rule("a", ALWAYS, mode=Mode.LOG), rule("b", NAN)))) == []


def test_a_rule_that_only_speaks_is_heard_everywhere() -> None:
    assert list(find_unreachable_rules((rule("a", ALWAYS), rule("b", NAN, mode=Mode.LOG)))) == []


@pytest.mark.parametrize(
    ("condition", "fact"),
    [
        (AllOf((code(Operator.LT, 5), code(Operator.GT, 10))), "exit.code"),
        (AllOf((code(Operator.LT, 5), code(Operator.GE, 5))), "exit.code"),
        (AllOf((code(Operator.LE, 5), code(Operator.GE, 5))), None),
        (AllOf((code(Operator.IS, 5), code(Operator.IS, 6))), "exit.code"),
        (AllOf((code(Operator.IS, 5), code(Operator.IN, (5, 6)))), None),
        (AllOf((code(Operator.IN, (1, 2)), code(Operator.GT, 5))), "exit.code"),
        (AllOf((code(Operator.IS, 7), code(Operator.GT, 5))), None),
        (
            AllOf((Comparison("phase", Operator.IS, "eval"), Comparison("phase", Operator.IS, "train"))),
            "phase",
        ),
        (AllOf((Comparison("device.xid", Operator.IS, 13), Comparison("device.xid", Operator.IS, 31))), None),
        (AllOf((NAN, Not(NAN))), "nan"),
        (ALWAYS, None),
    ],
)
def test_a_condition_that_cannot_hold_is_found(condition: Condition, fact: str | None) -> None:
    assert find_contradiction(condition) == fact


@pytest.mark.parametrize(
    ("condition", "fact"),
    [
        (AllOf((code(Operator.IS, 1), Not(code(Operator.IS, 1)))), "exit.code"),
        (AllOf((code(Operator.IN, (1, 2)), Not(code(Operator.IN, (1, 2, 3))))), "exit.code"),
        (AllOf((code(Operator.IN, (1, 2)), Not(code(Operator.IS, 1)))), None),
        (AllOf((code(Operator.IN, (1, 2)), Not(code(Operator.GE, 1)))), None),
        (AllOf((OOM, Not(OOM))), "oom.device"),
        (AllOf((Not(OOM), Not(code(Operator.IS, 1)))), None),
        (AllOf((code(Operator.IN, (5, 7)), code(Operator.GT, 7))), "exit.code"),
        (AllOf((code(Operator.GE, 5), code(Operator.LE, 5), code(Operator.GT, 2))), None),
        (AllOf((code(Operator.GE, 5), code(Operator.GT, 5), code(Operator.LE, 5))), "exit.code"),
        (AllOf((code(Operator.GE, 5), code(Operator.LT, 5), code(Operator.LE, 5))), "exit.code"),
    ],
)
def test_what_is_excluded_and_the_tightest_bounds_count(condition: Condition, fact: str | None) -> None:
    assert find_contradiction(condition) == fact


def test_the_search_costs_as_much_as_there_are_rules_and_not_their_square() -> None:
    def cost_s(count: int) -> float:
        rules = [
            rule(f"r{n}", AllOf((NAN, code(Operator.GE, n), code(Operator.LE, 2 * n)))) for n in range(count)
        ]
        taken = []
        for _ in range(3):
            begun_s = thread_time()
            assert list(find_unreachable_rules(rules)) == []
            taken.append(thread_time() - begun_s)
        return min(taken)

    assert cost_s(4000) < 20 * cost_s(500)  # 64 times where the cost grows with the square
