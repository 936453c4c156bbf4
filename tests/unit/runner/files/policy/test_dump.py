from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base.textfile import FileError
from runner.core.policy.conditions import AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import Policy, Rule, Verb
from runner.files.policy.dump import dump_policy
from runner.files.policy.load import PolicySource, load_named_policy, parse_policy
from tests.unit.runner.core.policy.strategies import policies


@pytest.mark.parametrize("name", PolicySource().names())
def test_a_policy_written_out_is_the_same_policy(name: str) -> None:
    policy = load_named_policy(name)
    assert parse_policy(dump_policy(policy).encode(), Path("again.yaml")) == policy


NAN = Comparison("nan", Operator.IS, operand=True)
OOM = Comparison("oom.host", Operator.IS, operand=False)
WAIT = Comparison("data_wait", Operator.GT, 0.5)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (AllOf(()), "{}"),
        (NAN, "{nan: true}"),
        (AllOf((NAN, OOM)), "{nan: true, oom.host: false}"),
        (AllOf((NAN, Not(NAN))), "{nan: true, not: {nan: true}}"),
        (AllOf((NAN, NAN)), "{all: [{nan: true}, {nan: true}]}"),
        (AllOf((WAIT, Comparison("data_wait", Operator.LE, 1))), "{data_wait: {gt: 0.5, le: 1}}"),
        (AllOf((WAIT, WAIT)), "{all: [{data_wait: {gt: 0.5}}, {data_wait: {gt: 0.5}}]}"),
        (AllOf((NAN, AllOf((OOM, WAIT)))), "{nan: true, all: [{oom.host: false}, {data_wait: {gt: 0.5}}]}"),
        (AnyOf((NAN, Not(OOM))), "{any: [{nan: true}, {not: {oom.host: false}}]}"),
        (
            Comparison("root", Operator.IN, ("a b", "c: d", "7", "true")),
            '{root: {in: [a b, "c: d", "7", "true"]}}',
        ),
    ],
)
def test_a_condition_takes_its_shortest_form(condition: Condition, text: str) -> None:
    policy = Policy("p", on_exit=(Rule("a", Verb.HOLD, condition),))
    assert f"  - {{name: a, when: {text}, do: hold}}\n" in dump_policy(policy)


@pytest.mark.parametrize("moment", list(DecisionPoint))
@settings(max_examples=25)
@given(rest=st.data())
def test_whatever_can_be_read_can_be_written(moment: DecisionPoint, rest: st.DataObject) -> None:
    """Not every arbitrary policy is a sensible one; those that the reader takes survive the round trip."""
    text = dump_policy(rest.draw(policies(moment))) + (
        "" if moment is DecisionPoint.EXIT else "on_exit: [{name: o, when: {}, do: hold}]\n"
    )
    try:
        once = parse_policy(text.encode(), Path("p.yaml"))
    except FileError as error:
        assert "not valid YAML" not in str(error)  # noqa: PT017 - one way of two
        return
    assert parse_policy(dump_policy(once).encode(), Path("p.yaml")) == once
