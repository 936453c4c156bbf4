import pytest

from jobs.contract import Cause, Phase
from runner.core.policy.catalog import FACTS, SECTIONS, facts_at, validate_facts
from runner.core.policy.catalog_attempt import PHASES
from runner.core.policy.causes import ExitCause
from runner.core.policy.facts import MAX_ENTRIES, MAX_TEXT, DecisionPoint, Fact, FactKind


@pytest.mark.parametrize("fact", FACTS.values(), ids=lambda fact: fact.name)
def test_every_fact_says_what_it_is_and_where_it_comes_from(fact: Fact) -> None:
    assert fact.decision_points
    assert fact.meaning
    assert fact.source
    assert bool(fact.values) == (fact.kind is FactKind.WORD)
    assert not (fact.hint and fact.derived)


def test_no_two_facts_have_one_name() -> None:
    assert len(FACTS) == sum(len(facts) for _, facts in SECTIONS)


def test_the_phases_are_those_of_the_contract() -> None:
    assert tuple(Phase) == PHASES


def test_the_causes_include_those_that_a_program_reports() -> None:
    assert set(Cause) <= set(ExitCause)


def test_what_is_known_is_kept_and_none_is_unknown() -> None:
    given = {"exit.code": 1, "oom.host": None, "progress.rate": 2, "device.xid": [13, 31]}
    assert validate_facts(given, DecisionPoint.EXIT) == {
        "exit.code": 1,
        "progress.rate": 2,
        "device.xid": (13, 31),
    }


@pytest.mark.parametrize("name", ["exit.cod", "heartbeat.age_s"])
def test_a_fact_that_does_not_exist_at_this_moment_is_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match=f"there is no fact '{name}' on exit"):
        validate_facts({name: 1}, DecisionPoint.EXIT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exit.code", 256),
        ("exit.code", True),
        ("exit.code", "1"),
        ("phase", "dreaming"),
        ("nan", "yes"),
        ("data_wait", 1.5),
        ("progress.step", -1),
        ("root", 7),
        ("root", ("a",)),
        ("progress.rate_recent", float("inf")),
        ("progress.rate_recent", float("nan")),
    ],
)
def test_a_hint_that_makes_no_sense_is_unknown(name: str, value: object) -> None:
    assert validate_facts({name: value}, DecisionPoint.EXIT) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("oom.host", 1),
        ("killed_by", "ghost"),
        ("device.xid", 13),
        ("device.xid", ["13"]),
        ("checkpoint.step", -1),
    ],
)
def test_what_the_runner_itself_got_wrong_is_a_mistake(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be"):
        validate_facts({name: value}, DecisionPoint.EXIT)


def test_a_stop_by_any_watch_rule_is_a_word_of_killed_by() -> None:
    assert validate_facts({"killed_by": "watch/mine"}, DecisionPoint.EXIT) == {"killed_by": "watch/mine"}
    assert not FACTS["phase"].has_word("watch/mine")


def test_what_a_container_writes_is_cut_short() -> None:
    assert validate_facts({"root": "x" * 1000}, DecisionPoint.EXIT) == {"root": "x" * MAX_TEXT}
    assert validate_facts({"device.xid": list(range(200))}, DecisionPoint.EXIT) == {
        "device.xid": tuple(range(MAX_ENTRIES))
    }


def test_each_moment_has_its_own_facts() -> None:
    assert "exit.code" in facts_at(DecisionPoint.EXIT)
    assert "exit.code" not in facts_at(DecisionPoint.WATCH)
    assert "diff.class" in facts_at(DecisionPoint.CHANGE)
    assert "diff.class" not in facts_at(DecisionPoint.EXIT)


def test_texts_may_be_words_of_a_list() -> None:
    assert validate_facts({"diff.fields": ["seed"]}, DecisionPoint.CHANGE) == {"diff.fields": ("seed",)}
