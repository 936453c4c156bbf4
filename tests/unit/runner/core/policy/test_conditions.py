import pytest

from runner.core.policy.conditions import (
    ALWAYS,
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    Not,
    Operator,
    Truth,
    comparisons,
    evaluate,
    format_value,
    split_conjuncts,
)
from runner.core.policy.facts import FactValue

TRUE = Comparison("nan", Operator.IS, operand=True)
FALSE = Comparison("oom.host", Operator.IS, operand=True)
UNKNOWN = Comparison("preempted", Operator.IS, operand=True)
FACTS: dict[str, FactValue] = {
    "nan": True,
    "oom.host": False,
    "exit.code": 5,
    "phase": "train",
    "device.xid": (13, 31),
}


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        (ALWAYS, True),
        (TRUE, True),
        (FALSE, False),
        (UNKNOWN, None),
        (Not(TRUE), False),
        (Not(FALSE), True),
        (Not(UNKNOWN), None),
        (AllOf((TRUE, TRUE)), True),
        (AllOf((TRUE, UNKNOWN)), None),
        (AllOf((UNKNOWN, FALSE)), False),
        (AllOf((FALSE, UNKNOWN)), False),
        (AnyOf((UNKNOWN, TRUE)), True),
        (AnyOf((TRUE, UNKNOWN)), True),
        (AnyOf((UNKNOWN, FALSE)), None),
        (AnyOf((FALSE, FALSE)), False),
        (AnyOf(()), False),
    ],
)
def test_the_logic_has_three_values(condition: Condition, truth: Truth) -> None:
    assert evaluate(condition, FACTS).truth is truth


@pytest.mark.parametrize(
    ("sign", "operand", "truth"),
    [
        (Operator.IS, 5, True),
        (Operator.IS, 6, False),
        (Operator.IN, (4, 5), True),
        (Operator.IN, (4,), False),
        (Operator.LT, 6, True),
        (Operator.LT, 5, False),
        (Operator.LE, 5, True),
        (Operator.LE, 4, False),
        (Operator.GE, 5, True),
        (Operator.GE, 6, False),
        (Operator.GT, 4, True),
        (Operator.GT, 5, False),
    ],
)
def test_a_number_is_compared(sign: Operator, operand: FactValue, truth: bool) -> None:  # noqa: FBT001
    assert evaluate(Comparison("exit.code", sign, operand), FACTS).truth is truth


@pytest.mark.parametrize(
    ("sign", "operand", "truth"),
    [
        (Operator.IS, 13, True),
        (Operator.IS, 79, False),
        (Operator.IN, (79, 31), True),
        (Operator.IN, (79,), False),
    ],
)
def test_a_list_is_what_it_holds(sign: Operator, operand: FactValue, truth: bool) -> None:  # noqa: FBT001
    assert evaluate(Comparison("device.xid", sign, operand), FACTS).truth is truth


@pytest.mark.parametrize(
    ("condition", "decided"),
    [
        (AllOf((TRUE, FALSE, UNKNOWN)), ["oom.host = false (wanted: true)"]),
        (AllOf((TRUE, UNKNOWN)), ["preempted is unknown (wanted: true)"]),
        (AllOf((TRUE, Not(FALSE))), ["nan = true (wanted: true)", "oom.host = false (wanted: not true)"]),
        (AnyOf((FALSE, TRUE)), ["nan = true (wanted: true)"]),
        (AnyOf((FALSE, UNKNOWN)), ["preempted is unknown (wanted: true)"]),
        (Comparison("exit.code", Operator.IN, (78, 93)), ["exit.code = 5 (wanted: one of 78, 93)"]),
        (Comparison("exit.code", Operator.GE, 0.5), ["exit.code = 5 (wanted: >= 0.5)"]),
        (Not(Not(TRUE)), ["nan = true (wanted: true)"]),
        (ALWAYS, []),
    ],
)
def test_the_facts_that_decided_are_named(condition: Condition, decided: list[str]) -> None:
    assert [reading.text for reading in evaluate(condition, FACTS).fact_uses] == decided


def test_every_comparison_of_a_condition_is_found() -> None:
    condition = AllOf((TRUE, AnyOf((FALSE, Not(UNKNOWN)))))
    assert list(comparisons(condition)) == [TRUE, FALSE, UNKNOWN]


def test_nested_alls_are_taken_apart() -> None:
    assert split_conjuncts(AllOf((TRUE, AllOf((FALSE, Not(UNKNOWN)))))) == {TRUE, FALSE, Not(UNKNOWN)}
    assert split_conjuncts(ALWAYS) == frozenset()


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (0.123456, "0.1235"), (7, "7"), ("a", "a"), ((1, 2), "1, 2"), ((), "nothing")],
)
def test_values_read_as_a_file_would_write_them(value: FactValue, text: str) -> None:
    assert format_value(value) == text
