"""The policies that come with the runner do what their cases say, and every rule has its cases."""

import pytest

from runner.core.policy.conditions import evaluate, split_conjuncts
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import Rule
from runner.files.policy.cases import decide_case, read_cases, run_case
from runner.files.policy.load import SHIPPED, PolicySource, load_named_policy

NAMES = PolicySource().names()
SHIPPED_POLICIES = {name: load_named_policy(name) for name in NAMES}
CASES = {name: read_cases(SHIPPED / f"{name}.cases.yaml") for name in NAMES}
AS_DEFAULT = {"lost-by-the-engine", "out-of-time", "mistake", "unreadable", "oom-program"} | {
    "other-training-slower",
    "other-training-dear",
}
CASES["patient"] += tuple(  # what it repeats of "default", as it does not extend it
    case for case in CASES["default"] if {case.expected.get("rule"), case.expected.get("nearly")} & AS_DEFAULT
)
TEXTS = {name: (SHIPPED / f"{name}.yaml").read_text(encoding="utf-8") for name in NAMES}
OWN = [
    (name, rule)
    for name, one in SHIPPED_POLICIES.items()
    for rule in one.on_exit
    if f"name: {rule.name} " in TEXTS[name].replace("\n", " ")
]
ANSWERING = {
    name: {decide_case(SHIPPED_POLICIES[name], case).action.rule for case in cases}
    for name, cases in CASES.items()
}


@pytest.mark.parametrize("name", NAMES)
def test_every_case_is_decided_as_it_should_be(name: str) -> None:
    wrong = {case.name: list(run_case(SHIPPED_POLICIES[name], case)) for case in CASES[name]}
    assert {case: facts for case, facts in wrong.items() if facts} == {}


def test_the_default_policy_has_sixty_cases_and_no_name_twice() -> None:
    names = [case.name for case in CASES["default"]]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("name", "rule"), OWN, ids=lambda value: getattr(value, "name", value))
def test_every_rule_has_a_case_in_which_it_answers(name: str, rule: Rule) -> None:
    """But for ``cancelled``: a person's word comes before every rule, and is a clamp."""
    assert rule.name in ANSWERING[name] | {"cancelled"}


@pytest.mark.parametrize(("name", "rule"), OWN, ids=lambda value: getattr(value, "name", value))
def test_every_rule_with_a_condition_has_a_case_that_misses_it_by_one_fact(name: str, rule: Rule) -> None:
    nearly = [case for case in CASES[name] if case.expected.get("nearly") == rule.name]
    parts = split_conjuncts(rule.when)
    facts = [decide_case(SHIPPED_POLICIES[name], case).facts for case in nearly]  # the derived ones, too
    missing = [sum(evaluate(part, known).truth is not True for part in parts) for known in facts]
    assert 1 in missing or not parts


def test_the_last_rule_of_every_shipped_policy_leaves_nothing_unanswered() -> None:
    for name in NAMES:
        assert not split_conjuncts(SHIPPED_POLICIES[name].on_exit[-1].when)


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_of_a_shipped_policy_says_why_beside_it_or_above_it(name: str) -> None:
    lines = TEXTS[name].splitlines()
    assert lines[0].startswith("# ")
    assert sum("#" in line for line in lines) >= 6


def test_only_the_learned_stall_limit_stops_what_runs() -> None:
    """Device utilisation and the like are hints at best; a wrong stop costs more than a late one."""
    for name in NAMES:
        stops = [rule for rule in SHIPPED_POLICIES[name].on_watch if rule.do == "stop"]
        stopping = [rule for rule in stops if rule.name != "idle-session"]  # a shell has nothing to lose
        facts = {
            str(part.fact)
            for rule in stopping
            for part in split_conjuncts(rule.when)
            if hasattr(part, "fact")
        }
        assert facts <= {"phase", "heartbeat.age_over_limit"}


def test_strict_changes_no_bits() -> None:
    turned = {str(each.knob) for rule in SHIPPED_POLICIES["strict"].on_exit for each in rule.adjust}
    assert turned == {"eval_batch", "workers"}
    assert {rule.do for rule in SHIPPED_POLICIES["strict"].rules(DecisionPoint.CHANGE)[:2]} == {
        "keep",
        "restart",
    }
