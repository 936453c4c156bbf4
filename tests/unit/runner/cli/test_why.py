"""``runner why`` says what the daemon says."""

import json

import pytest

from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke

SAID = {
    "job": "000001",
    "name": "train",
    "state": "queued",
    "why": "waits for 1 GPU: 0 free, 8 allocated; starts about 14:20",
    "starts_at": "2026-03-01T14:20:00.000Z",
    "never": False,
    "until": None,
}


@pytest.fixture(autouse=True)
def _a_job(api: FakeApi) -> None:
    api.whys[api.add("train", state="queued")["id"]] = SAID


def test_in_a_pipe_it_is_one_line_between_tabs(invoke: Invoke) -> None:
    assert invoke("why", "train").stdout == f"000001\tqueued\t{SAID['starts_at']}\t{SAID['why']}\n"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_in_a_pipe_a_finished_job_is_told_by_its_outcome_as_in_a_list(
    api: FakeApi, invoke: Invoke, outcome: str
) -> None:
    job = api.add("done", **ended(outcome))
    api.whys[job["id"]] = SAID | {
        "job": job["id"],
        "state": "finished",
        "outcome": outcome,
        "starts_at": None,
        "why": "so it is",
    }
    assert invoke("why", "done").stdout.split("\t")[:2] == [job["id"], outcome]
    assert json.loads(invoke("why", "done", "--json").stdout)["state"] == "finished"


def test_as_json_it_is_what_the_daemon_answered(invoke: Invoke) -> None:
    assert json.loads(invoke("why", "train", "--json").stdout) == SAID


def test_of_several_jobs_each_is_told(api: FakeApi, invoke: Invoke) -> None:
    other = api.add("other", state="queued")
    api.whys[other["id"]] = SAID | {"job": other["id"], "name": "other"}
    result = invoke("why", "train", "nobody", "other")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["000001", other["id"]]
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_without_a_job_it_is_told_of_all_of_ones_own_that_wait(api: FakeApi, invoke: Invoke) -> None:
    other = api.add("other", state="held")
    api.add("busy", state="running")
    api.whys[other["id"]] = SAID | {"job": other["id"], "name": "other"}
    result = invoke("why")
    assert sorted(line.split("\t")[0] for line in result.stdout.splitlines()) == ["000001", other["id"]]


def test_without_a_job_and_with_none_that_waits_that_is_told(api: FakeApi, invoke: Invoke) -> None:
    api.jobs.clear()
    result = invoke("why")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "none of your jobs waits\n")


def test_on_a_terminal_it_is_a_sentence(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.cli.why.on_terminal", lambda: True)
    assert invoke("why", "train").stdout == f"train (job 000001) is queued: {SAID['why']}\n"
