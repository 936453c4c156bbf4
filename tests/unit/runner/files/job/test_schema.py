"""The published JSON Schema: accepts what is right, underlines the common mistakes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import jsonschema  # type: ignore[import-untyped]
import pytest

from runner.base.yaml import compose, to_plain
from runner.files.job.schema import job_schema

REPOSITORY = Path(__file__).parents[5]
SHIPPED = sorted(
    (*(REPOSITORY / "examples").glob("*.yaml"), REPOSITORY / "runner" / "files" / "job" / "template.yaml")
)
WORKLOAD = {"kind": "causal_lm", "data": "stdlib"}


class Validator(Protocol):
    """Part of jsonschema that these tests use; it has no types."""

    def is_valid(self, instance: object) -> bool: ...

    def iter_errors(self, instance: object) -> Iterable[Exception]: ...


@pytest.fixture(scope="module")
def validator() -> Validator:
    document = job_schema()
    jsonschema.Draft202012Validator.check_schema(document)
    validator: Validator = jsonschema.Draft202012Validator(document)
    return validator


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_schema_accepts_every_shipped_job_file(validator: Validator, path: Path) -> None:
    tree, problems = compose(path.read_bytes())
    assert tree is not None
    assert not problems
    job = json.loads(json.dumps(to_plain(tree)))
    assert [str(error) for error in validator.iter_errors(job)] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"profile": "cpu"},
        {"profile": {"extends": "cpu", "threads": 2}},
        {"profile": {"extends": "auto", "compile": True, "micro_batch": "auto"}},
        {"profile": {"compile": "off", "stream_buffer": 100, "compile_dynamic": None}},
        {"workload": {"kind": "program", "command": ["./train"]}},
        {"image": "auto"},
        {"resources": {"memory": 2**33, "shm": "1.5GB", "time_limit": "2h 30m"}},
        {"resources": {"time_limit": None}},
        {"environment": {"A": "b", "N": 1.5}},
        {"checkpoint": {"every": None, "every_steps": 3}},
        {"queue": {"after": ["prepare", {"job": "7", "condition": "any"}], "priority_class": "urgent"}},
        {"queue": {"not_before": "2030-01-31 18:00:00+01:00"}},
        {"resources": {"gpus": 2}, "devices": {"model": "H100", "linked": True, "capability": "9.0"}},
        {"resources": {"gpus": 1}, "devices": {"model": ["H100", "A100"], "memory": "40GiB"}},
        {"matrix": {"values": {"seed": [1, 2], "profile": ["cpu", "cuda"]}, "exclude": [{"seed": 1}]}},
        {"schedule": {"cron": "0 2 * * 1-5", "timezone": "Europe/Berlin", "until": None}},
    ],
)
def test_the_schema_accepts_what_the_runner_accepts(validator: Validator, fields: dict[str, object]) -> None:
    assert validator.is_valid({"workload": WORKLOAD, **fields})


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"workload": {"data": "stdlib"}},
        {"workload": {"kind": "causal_lm"}},
        {"workload": WORKLOAD, "gpus": 1},
        {"workload": WORKLOAD, "profile": "nonesuch"},
        {"workload": WORKLOAD, "profile": {"compile": "fast"}},
        {"workload": {"kind": "program"}},
        {"workload": {"kind": "program", "command": ["./train"], "data": "stdlib"}},
        {"workload": {"kind": "nonesuch", "data": "stdlib"}},
        {"workload": WORKLOAD, "resources": {"time_limit": 90}},
        {"workload": WORKLOAD, "resources": {"memory": "much"}},
        {"workload": WORKLOAD, "environment": {"A": True}},
        {"workload": WORKLOAD, "checkpoint": {"keep": 1}},
        {"workload": WORKLOAD, "queue": {"after": [{"job": "7", "condition": "done"}]}},
        {"workload": WORKLOAD, "devices": {"kind": "half"}},
        {"workload": WORKLOAD, "matrix": {"values": {"seed": 1}}},
        {"workload": WORKLOAD, "schedule": {"timezone": "UTC"}},
    ],
)
def test_the_schema_refuses_the_common_mistakes(validator: Validator, job: dict[str, object]) -> None:
    assert not validator.is_valid(job)


def test_defaults_are_written_as_a_user_would() -> None:
    document = job_schema()
    definitions = document["$defs"]
    assert document["properties"]["stop_grace"]["default"] == "30s"
    assert document["properties"]["profile"]["default"] == "auto"
    assert definitions["Resources"]["properties"]["memory"]["default"] == "4GiB"
    assert definitions["Resources"]["properties"]["shm"]["default"] is None
    assert definitions["Retry"]["properties"]["backoff_max"]["default"] is None
