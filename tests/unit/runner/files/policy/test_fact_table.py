import pytest

from runner.core.policy.catalog import FACTS
from runner.core.policy.facts import FactKind
from runner.files.policy.fact_table import rows, values


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exit.code", "whole 0-255"),
        ("phase", "init, data, compile, train, eval, save, drain"),
        ("device.util", "number 0-100 %"),
        ("checkpoint.step", "whole ≥ 0"),
        ("root", "text"),
        ("cause", "a cause"),
    ],
)
def test_the_values_of_a_fact_fit_into_a_few_words(name: str, expected: str) -> None:
    assert values(FACTS[name]) == expected


def test_every_kind_of_value_is_described() -> None:
    assert all(values(fact) for fact in FACTS.values())
    assert {fact.kind for fact in FACTS.values()} == set(FactKind)


def test_there_is_one_row_for_each_fact() -> None:
    assert [name for name, *_ in rows()] == list(FACTS)
