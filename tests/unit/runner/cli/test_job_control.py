import json

import pytest

from runner.base.errors import Unavailable
from runner.client.client import Client
from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke


def test_cancelling_twice_changes_nothing_and_is_no_error(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    first, second = invoke("cancel", "train"), invoke("cancel", "train")
    assert (first.exit_code, first.stdout) == (0, "train: cancelled by ada\n")
    assert (second.exit_code, second.stdout) == (0, "train: cancelled by ada; nothing changed\n")


def test_every_job_is_tried_although_one_is_unknown(api: FakeApi, invoke: Invoke) -> None:
    job = api.add("train")
    result = invoke("cancel", "--json", "nobody", "train")
    assert (result.exit_code, job["outcome"]) == (2, "cancelled")
    assert json.loads(result.stdout)["changed"] is True


def test_a_matrix_is_cancelled_with_one_question_and_what_has_ended_is_left_alone(
    api: FakeApi, invoke: Invoke
) -> None:
    api.add("rate-1")
    api.add("rate-2", **ended())
    api.add("rate-3")
    result = invoke("cancel", "--sweep", "rate")
    assert result.stdout == "rate-1: cancelled by ada\nrate-3: cancelled by ada\n"
    assert [path for method, path, _ in api.asked if method == "POST"] == ["/v1/cancel"]


def test_several_jobs_are_cancelled_with_one_question(api: FakeApi, invoke: Invoke) -> None:
    for number in range(1, 4):
        api.add(f"rate-{number}")
    result = invoke("cancel", "rate-1", "rate-3")
    assert (result.exit_code, result.stdout) == (0, "rate-1: cancelled by ada\nrate-3: cancelled by ada\n")
    assert [path for method, path, _ in api.asked if method == "POST"] == ["/v1/cancel"]


def test_a_job_that_is_unknown_is_told_once(invoke: Invoke, api: FakeApi) -> None:
    result = invoke("cancel", "nobody")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "nobody: there is no job of that id or name\n"
    assert [path for method, path, _ in api.asked if method == "POST"] == ["/v1/cancel"]


def test_a_daemon_that_has_gone_is_told_once_for_all_the_jobs(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise Unavailable("no daemon answers")

    for number in range(1, 4):
        api.add(f"rate-{number}")
    monkeypatch.setattr(Client, "act", gone)
    result = invoke("hold", "nobody", "rate-1", "rate-2")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == "no daemon answers; 2 more were not asked for\n"
    monkeypatch.setattr(Client, "cancel_all", gone)
    result = invoke("cancel", "--sweep", "rate")
    assert (result.exit_code, result.stderr) == (4, "no daemon answers\n")


def test_all_of_ones_own_jobs_are_cancelled_and_none_is_no_error(api: FakeApi, invoke: Invoke) -> None:
    assert invoke("cancel", "--mine").stderr == "there is no job to cancel\n"
    api.add("a")
    api.add("b")
    assert invoke("cancel", "--mine").stdout == "a: cancelled by ada\nb: cancelled by ada\n"
    assert any("mine=1" in path and "ended=0" in path for _, path, _ in api.asked)
    assert invoke("cancel", "--all").exit_code == 0
    assert any("mine=0" in path for _, path, _ in api.asked)


@pytest.mark.parametrize("which", [("rate",), ("--sweep", "rate"), ("rate-1", "rate-2", "rate-3")])
def test_of_a_matrix_those_that_failed_are_restarted(
    api: FakeApi, invoke: Invoke, which: tuple[str, ...]
) -> None:
    api.add("rate-1", **ended())
    api.add("rate-2", **ended("failed"))
    api.add("rate-3", **ended("cancelled"))
    assert invoke("restart", "--failed", *which).stdout == "rate-2: restarts from checkpoint\n"
    api.jobs["000002"].update(ended())
    result = invoke("restart", "--failed", *which)
    assert (result.exit_code, result.stderr) == (0, "none of these jobs has failed\n")


def test_several_jobs_are_held_and_released_and_each_is_tried(api: FakeApi, invoke: Invoke) -> None:
    api.add("a", state="held", why="held by ada")
    api.add("b", state="held", why="held by ada")
    result = invoke("hold", "a", "nobody", "b")
    assert (result.exit_code, result.stdout) == (2, "a: held by ada\nb: held by ada\n")
    assert result.stderr == "nobody: there is no job of that id or name\n"
    assert invoke("release", "a", "b").stdout.count("released") == 2


@pytest.mark.parametrize("which", [("rate",), ("--sweep", "rate")])
def test_of_a_matrix_those_are_held_and_released_that_can_be(
    api: FakeApi, invoke: Invoke, which: tuple[str, ...]
) -> None:
    api.add("rate-1", **ended())
    api.add("rate-2", state="held", why="held by ada")
    api.add("rate-3", state="running")
    invoke("hold", *which)
    invoke("release", *which)
    posted = [path for method, path, _ in api.asked if method == "POST" and "rate" not in path]
    assert posted == ["/v1/jobs/000003/hold", "/v1/jobs/000002/release"]
    api.jobs["000002"].update(ended())
    result = invoke("release", *which)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert result.stderr.startswith("rate: none of the 3 jobs of this matrix")


def test_a_matrix_of_which_nothing_fits_is_told_also_beside_a_job(api: FakeApi, invoke: Invoke) -> None:
    api.add("rate-1", state="running")
    api.add("train", state="held", why="held by ada")
    result = invoke("release", "rate", "train")
    assert (result.exit_code, result.stdout.count("released")) == (2, 1)
    assert result.stderr.startswith("rate: none of the 1 jobs of this matrix")


@pytest.mark.parametrize(
    "args", [(), ("--sweep", "rate", "train"), ("--sweep", "a b"), ("--mine", "--all"), ("--mine", "train")]
)
def test_either_jobs_or_a_matrix_are_cancelled(api: FakeApi, invoke: Invoke, args: tuple[str, ...]) -> None:
    assert invoke("cancel", *args).exit_code == 2
    assert api.asked == []


@pytest.mark.parametrize("text", ["USR1", "SIGUSR1", "sigusr1", "10"])
def test_a_signal_is_written_as_kill_takes_it(api: FakeApi, invoke: Invoke, text: str) -> None:
    api.add("train")
    result = invoke("kill", "--signal", text, "train")
    assert (result.exit_code, result.stdout) == (0, "train: SIGUSR1 sent\n")
    assert api.asked[-1] == ("POST", "/v1/jobs/train/signal", {"signal": "USR1"})


@pytest.mark.parametrize("text", ["USR9", "0", "99", "", "SIG"])
def test_what_is_no_signal_is_a_usage_error(api: FakeApi, invoke: Invoke, text: str) -> None:
    assert invoke("kill", "-s", text, "train").exit_code == 2
    assert api.asked == []


@pytest.mark.parametrize(
    ("args", "start"), [((), "checkpoint"), (("--from", "scratch"), "scratch"), (("--from", "1200"), 1200)]
)
def test_a_restart_begins_where_it_is_told_and_the_daemon_says_where_that_is(
    api: FakeApi, invoke: Invoke, args: tuple[str, ...], start: object
) -> None:
    api.add("train", **ended("failed", "no progress"))
    result = invoke("restart", *args, "train")
    assert result.stdout == f"train: restarts from {start}\n"
    assert api.asked[-1][2] == {"from": start}


@pytest.mark.parametrize("text", ["newest", "-1", "1.5", "²"])
def test_what_is_no_starting_point_is_a_usage_error(invoke: Invoke, text: str) -> None:
    assert invoke("restart", "--from", text, "train").exit_code == 2


def test_a_job_is_held_and_released(api: FakeApi, invoke: Invoke) -> None:
    held = api.add("train", state="held", why="held by ada")
    assert invoke("hold", "train").stdout == "train: held by ada\n"
    assert api.asked[-1] == ("POST", "/v1/jobs/train/hold", {})
    assert invoke("release", "train").stdout == "train: released, begins from the newest checkpoint\n"
    assert api.asked[-1] == ("POST", "/v1/jobs/train/release", {})
    assert json.loads(invoke("release", "train", "--json").stdout)["job"]["id"] == held["id"]
