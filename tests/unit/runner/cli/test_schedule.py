"""``runner schedule`` against a daemon's socket that answers from a list."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.api import FakeApi, Problem
from tests.unit.runner.cli.conftest import Invoke

LAST = {"at": "2030-01-01T02:30+01:00", "state": "left_out", "job": None, "text": "nobody was there"}
MADE: dict[str, Any] = {
    "id": 3, "name": "nightly", "owner": "ada", "state": "active", "note": "", "cron": "30 2 * * *",
    "timezone": "Europe/Berlin", "overlap": "skip", "missed": "skip", "until": None,
    "made_at": "2030-01-01T00:00:00.000Z", "last": LAST,
    "next": ["2030-01-02T02:30+01:00", "2030-01-03T02:30+01:00", "2030-01-04T02:30+01:00"],
}  # fmt: skip
DETAIL = {**MADE, "path": "/home/ada/job.yaml", "text": "name: nightly\n", "occasions": [
    {"at": "2030-01-01T02:30+01:00", "state": "submitted", "job": "12", "text": ""}, LAST,
]}  # fmt: skip


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for module in ("console", "schedule", "submit"):
        monkeypatch.setattr(f"runner.cli.{module}.on_terminal", lambda: True)


def test_a_list_for_a_pipe_has_one_line_of_cells_for_each(api: FakeApi, invoke: Invoke) -> None:
    api.schedules = [MADE, {**MADE, "id": 4, "state": "paused", "last": None}]
    lines = [line.split("\t") for line in invoke("schedule", "list").stdout.splitlines()]
    last = "2030-01-01T02:30+01:00 left out: nobody was there"
    terms = ["30 2 * * *", "Europe/Berlin"]
    assert lines == [
        ["3", "nightly", "ada", "active", *terms, "2030-01-02T02:30+01:00", last],
        ["4", "nightly", "ada", "paused", *terms, "-", "-"],
    ]
    assert api.asked[-1][1] == "/v1/schedules?all=0"


@pytest.mark.usefixtures("terminal")
def test_a_list_on_a_terminal_has_a_head_and_columns(api: FakeApi, invoke: Invoke) -> None:
    assert "no schedules: runner submit makes one" in invoke("schedule", "list").stdout
    api.schedules = [MADE]
    head, line = invoke("schedule", "list", "--all").stdout.splitlines()
    assert head.index("CRON") == line.index("30 2")
    assert api.asked[-1][1] == "/v1/schedules?all=1"


def test_json_is_what_the_daemon_said(api: FakeApi, invoke: Invoke) -> None:
    api.schedules = [DETAIL]
    for words in (("list",), ("show", "nightly"), ("pause", "3")):
        assert json.loads(invoke("schedule", *words, "--json").stdout) == DETAIL
    assert json.loads(invoke("schedule", "next", "3", "--json").stdout)["next"] == MADE["next"]


def test_one_is_shown_with_what_became_of_its_last_times(api: FakeApi, invoke: Invoke) -> None:
    api.schedules = [DETAIL]
    lines = invoke("schedule", "show", "nightly").stdout.splitlines()
    assert "cron\t30 2 * * *" in lines
    assert not any(line.startswith(("note", "until")) for line in lines)
    assert lines[-3:] == [
        "next\t2030-01-04T02:30+01:00",
        "at\t2030-01-01T02:30+01:00\tsubmitted as job 12",
        "at\t2030-01-01T02:30+01:00\tleft out: nobody was there",
    ]


def test_the_next_times_are_one_on_each_line(api: FakeApi, invoke: Invoke) -> None:
    api.schedules = [{**MADE, "state": "paused"}]
    result = invoke("schedule", "next", "nightly", "-n", "3")
    assert result.stdout.splitlines() == MADE["next"]
    assert result.stderr == "schedule 3 is paused: nothing is submitted\n"
    assert api.asked[-1][1] == "/v1/schedules/nightly/next?n=3"


@pytest.mark.parametrize(
    ("verb", "words"),
    [("pause", "paused"), ("resume", "goes on, next at 2030-01-02T02:30+01:00"), ("remove", "removed")],
)
def test_it_is_steered(api: FakeApi, invoke: Invoke, verb: str, words: str) -> None:
    api.schedules = [{**MADE, "state": "active" if verb == "resume" else "paused"}]
    assert invoke("schedule", verb, "nightly").stdout == f"schedule 3 (nightly): {words}\n"
    assert api.asked[-1][:2] == ("POST", f"/v1/schedules/nightly/{verb}")


def test_one_that_cannot_be_steered_does_not_keep_the_others_back(api: FakeApi, invoke: Invoke) -> None:
    api.schedules = [MADE]
    result = invoke("schedule", "remove", "weekly", "nightly")
    assert (result.exit_code, result.stdout.count("\n")) == (2, 1)
    assert result.stderr == "weekly: there is no schedule of that id or name\n"


@pytest.mark.parametrize("reference", ["", "a/b", "a b", "a\x1bb", "a" * 201])
def test_what_can_be_no_schedule_is_not_asked_for(api: FakeApi, invoke: Invoke, reference: str) -> None:
    assert invoke("schedule", "show", reference).exit_code == 2
    assert invoke("schedule", "pause", reference).exit_code == 2
    assert api.asked == []


def test_a_submission_that_makes_a_schedule_says_so(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.made = MADE
    assert invoke("submit", str(job_file)).stdout == "\t".join(["3", "nightly", *MADE["next"]]) + "\n"
    assert json.loads(invoke("submit", "--json", str(job_file)).stdout) == {"schedule": MADE}
    waited = invoke("submit", "--wait", str(job_file))
    assert (waited.exit_code, waited.stdout.count("\n")) == (0, 1)


@pytest.mark.usefixtures("terminal")
def test_on_a_terminal_it_is_said_in_words(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.made = MADE
    said = invoke("submit", str(job_file)).stdout.splitlines()
    assert said[0] == "nightly is schedule 3: 30 2 * * * in Europe/Berlin; no job yet, the next times are"
    assert [line.strip() for line in said[1:]] == MADE["next"]
    api.made = {**MADE, "id": None}
    assert "nightly would make a schedule: " in invoke("submit", "--dry-run", str(job_file)).stdout


def test_a_refusal_is_one_line(api: FakeApi, invoke: Invoke, job_file: Path) -> None:
    api.problem = Problem(403, "refused", 3, "nightly: schedule 3 of yours has this name")
    result = invoke("submit", str(job_file))
    assert (result.exit_code, result.stderr) == (3, "nightly: schedule 3 of yours has this name\n")
