"""The published schema accepts what the reader accepts, and finds the plain mistakes."""

import jsonschema  # type: ignore[import-untyped]
import pytest

from runner.base import yaml
from runner.files.policy.dump import dump_policy
from runner.files.policy.load import SHIPPED, PolicySource, load_named_policy
from runner.files.policy.schema import policy_schema

VALIDATOR = jsonschema.Draft202012Validator(policy_schema())


def plain(text: str) -> object:
    node, problems = yaml.compose(text.encode())
    assert node is not None
    assert not problems
    return _lists(yaml.to_plain(node))


def _lists(value: object) -> object:
    if isinstance(value, dict):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, tuple) else value


def complaints(text: str) -> list[str]:
    return [str(error) for error in VALIDATOR.iter_errors(plain(text))]


def test_the_schema_is_one() -> None:
    of_schemas = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
    assert [str(error) for error in of_schemas.iter_errors(policy_schema())] == []


@pytest.mark.parametrize("name", PolicySource().names())
def test_the_schema_accepts_the_shipped_policies(name: str) -> None:
    assert complaints((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")) == []
    assert complaints(dump_policy(load_named_policy(name))) == []


@pytest.mark.parametrize(
    "when",
    [
        "{}",
        "{exit.code: {not: {in: [1, 2]}}}",
        "{exit.code: {not: 1}}",
        "{data_wait: {gt: 0.1, le: 1}}",
        "{killed_by: watch/mine}",
        "{any: [{nan: true}, {not: {root: x}}]}",
        "{device.xid: {in: [79]}}",
    ],
)
def test_the_schema_knows_every_kind_of_condition(when: str) -> None:
    assert complaints(f"policy: 1\non_exit: [{{name: a, when: {when}, do: hold}}]\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "on_exit: []",
        "policy: 2",
        "{policy: 1, ceilings: {atempts: 3}}",
        "{policy: 1, on_exit: [{name: a, when: {}, do: stop}]}",
        "{policy: 1, on_exit: [{name: a, when: {phase: trian}, do: hold}]}",
        "{policy: 1, on_exit: [{name: a, when: {heartbeat.age_s: {gt: 5}}, do: hold}]}",
        "{policy: 1, on_exit: [{name: a, when: {phase: {gt: train}}, do: hold}]}",
        "{policy: 1, on_watch: [{name: a, when: {phase: train}, do: stop, tries: 1}]}",
        "{policy: 1, on_exit: [{name: a, when: {}, do: resume, with: {micro_batch: double}}]}",
    ],
)
def test_the_schema_underlines_plain_mistakes(text: str) -> None:
    assert complaints(text)
