import json

import pytest

from tests.fakes.daemon.api import AT, FakeApi, an_attempt, ended
from tests.unit.runner.cli.conftest import Invoke


def test_the_list_in_a_pipe_is_one_line_per_job_between_tabs(api: FakeApi, invoke: Invoke) -> None:
    api.add("one")
    api.add("two", **ended("failed", "line one\nline two"), attempt=5)
    result = invoke("list", "--all", "--mine")
    assert result.stdout == (
        f"000001\tone\tada\trunning\t1\t0\t10/100\t{AT}\t-\n"
        f"000002\ttwo\tada\tfailed\t5\t0\t-\t{AT}\tline one\\nline two\n"
    )
    assert [each[1] for each in api.asked if each[1].startswith("/v1/jobs")] == [
        "/v1/jobs?all=1&mine=1&last=1"
    ]


@pytest.mark.usefixtures("api")
def test_an_empty_list_prints_nothing(invoke: Invoke) -> None:
    result = invoke("list")
    assert (result.exit_code, result.stdout) == (0, "")


def test_the_list_as_json_is_one_object_per_line(api: FakeApi, invoke: Invoke) -> None:
    api.add("one")
    api.add("two")
    lines = invoke("list", "--json", "--limit", "7").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["one", "two"]
    assert api.asked[-1][1] == "/v1/jobs?all=0&mine=0&last=1&limit=7"


def test_jobs_are_listed_by_label_and_those_of_a_matrix_by_any_of_them(api: FakeApi, invoke: Invoke) -> None:
    api.add("rate-1")
    assert invoke("list", "--label", "seed=1").stdout.startswith("000001\trate-1")
    assert api.asked[-1][1] == "/v1/jobs?all=0&mine=0&label=seed%3D1&last=1"
    assert invoke("list", "--sweep", "rate").stdout.startswith("000001\trate-1")
    assert api.asked[-1][1] == "/v1/jobs?sweep=rate&last=1"


def test_jobs_with_all_of_several_labels_are_listed(api: FakeApi, invoke: Invoke) -> None:
    for name, labels in (("both", {"seed": "1", "lr": "3"}), ("one", {"seed": "1"}), ("other", {"lr": "4"})):
        api.add(name, labels=labels)
    listed = invoke("list", "--label", "seed=1", "--label", "lr", "--label", "lr=3", "--columns", "name")
    assert listed.stdout == "both\n"
    assert api.asked[-1][1] == "/v1/jobs?all=0&mine=0&label=seed%3D1"


@pytest.mark.parametrize("label", ["", "=", "=1"])
def test_a_label_without_a_key_is_refused_before_anybody_is_asked(
    label: str, api: FakeApi, invoke: Invoke
) -> None:
    result = invoke("list", "--label", label)
    assert (result.exit_code, result.stdout, api.asked) == (2, "", [])
    assert result.stderr.endswith(f"{label!r} has no key; write KEY or KEY=VALUE; see runner list --help\n")


def test_of_a_matrix_those_in_a_state_are_listed(api: FakeApi, invoke: Invoke) -> None:
    for number, outcome in enumerate(("succeeded", "failed", "failed"), start=1):
        api.add(f"rate-{number}", **ended(outcome), labels={"seed": str(number)})

    def listed(*options: str) -> list[str]:
        return [
            line.split("\t")[1] for line in invoke("list", "--sweep", "rate", *options).stdout.splitlines()
        ]

    assert listed("--state", "failed") == ["rate-2", "rate-3"]
    assert listed("--state", "failed", "--label", "seed=3") == ["rate-3"]
    assert listed("--limit", "1") == ["rate-1"]
    assert invoke("list", "--sweep", "rate", "--mine").exit_code == 2


def test_a_job_in_a_pipe_is_facts_and_then_attempts(api: FakeApi, invoke: Invoke) -> None:
    first = an_attempt(1, ended_at="2026-03-01T12:01:00Z", exit_code=137, cause="killed", checkpoint_step=50)
    api.add(
        "train", **ended(), attempts=[first, an_attempt(2, resumed_from=50)],
        result={"step": 100, "weights_sha256": "ab" * 32},
    )  # fmt: skip
    lines = invoke("show", "train").stdout.splitlines()
    assert "state\tsucceeded" in lines
    assert "run_dir\t/state/jobs/000001" in lines
    assert f"weights_sha256\t{'ab' * 32}" in lines
    assert lines[-2] == f"attempt\t1\t1\t{AT}\t1m\t137\tkilled\t-\t50\t-"
    assert lines[-1] == f"attempt\t2\t1\t{AT}\t-\t-\trunning\t50\t-\t-"


def test_a_job_tells_of_its_matrix_and_of_the_jobs_that_it_waits_for(api: FakeApi, invoke: Invoke) -> None:
    sweep = {"id": "4", "number": 2, "count": 5, "values": {"seed": 2}, "at_a_time": None}
    api.add("rate-2", revision={"after": [["1", "ok"], ["3", "any"]], "sweep": sweep})
    lines = invoke("show", "rate-2").stdout.splitlines()
    assert {"after\t1 (ok), 3 (any)", "matrix\t2 of 5; runner list --sweep 4"} <= {*lines}
    api.add("theirs", revision=None)
    told = invoke("show", "theirs").stdout
    assert "matrix" not in told
    assert "after" not in told


def test_a_job_as_json_is_what_the_daemon_answered(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    assert json.loads(invoke("show", "--json", "00000").stdout) == job


@pytest.mark.usefixtures("api")
def test_an_unknown_job_exits_with_the_daemons_code(invoke: Invoke) -> None:
    result = invoke("show", "nobody")
    assert (result.exit_code, result.stderr) == (2, "nobody: there is no job of that id or name\n")


def test_what_cannot_be_a_job_is_a_usage_error_without_a_question(api: FakeApi, invoke: Invoke) -> None:
    for ref in ("a/b", "", "a b", "a\nb", "x" * 201):
        assert invoke("show", ref).exit_code == 2
    assert api.asked == []
