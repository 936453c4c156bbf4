import json

import pytest

from runner.cli.wait import wait
from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke


def test_waiting_for_several_jobs_exits_with_the_first_that_did_not_succeed(
    api: FakeApi, invoke: Invoke
) -> None:
    api.add("one", **ended())
    api.add("two", **ended("cancelled", "cancelled by ada"))
    api.add("three", **ended("failed", "all 5 attempts used"))
    result = invoke("wait", "one", "two", "three")
    assert result.exit_code == 11
    assert result.stdout.splitlines()[1:] == [
        "two: cancelled by ada",
        "three: failed: all 5 attempts used",
    ]


@pytest.mark.parametrize("which", [("rate",), ("--sweep", "rate")])
def test_all_jobs_of_a_matrix_are_waited_for(api: FakeApi, invoke: Invoke, which: tuple[str, ...]) -> None:
    api.add("rate-1", **ended())
    api.add("rate-2", **ended("failed", "exception: no"))
    result = invoke("wait", *which)
    assert (result.exit_code, len(result.stdout.splitlines())) == (10, 2)


PAUSED = {"state": "held", "why": "paused at step 100, until its sweep decides"}


def test_a_candidate_that_its_sweep_has_paused_is_waited_for(api: FakeApi, invoke: Invoke) -> None:
    api.add("rate-1", **PAUSED)
    api.happen("wait", lambda: None, ended())
    result = invoke("wait", "rate")
    assert (result.exit_code, result.stdout) == (0, "rate-1: succeeded: completed\n")


def test_a_candidate_whose_sweep_waits_for_a_held_one_ends_the_wait_and_says_why(
    api: FakeApi, invoke: Invoke
) -> None:
    job_id = api.add("rate-1", **PAUSED)["id"]
    api.blocked.add(job_id)
    why = "paused at step 100, until its sweep decides; its sweep waits for rate-2"
    api.whys[job_id] = {"why": why, "never": False}
    result = invoke("wait", "rate")
    assert (result.exit_code, result.stderr) == (12, f"rate-1: {why}\n")


@pytest.mark.parametrize(
    ("outcome", "why", "code"),
    [("succeeded", "completed", 0), ("cancelled", "cancelled by its sweep", 11)],
)
def test_candidates_that_their_sweep_cancels_are_no_failure_if_another_succeeds(
    api: FakeApi, invoke: Invoke, outcome: str, why: str, code: int
) -> None:
    api.add("rate-1", **of_sweep("1"), **ended("cancelled", "cancelled by its sweep"))
    api.add("rate-2", **of_sweep("1"), **ended(outcome, why))
    assert invoke("wait", "rate").exit_code == code


@pytest.mark.parametrize("other", [{}, {"revision": None}, {"revision": {"sweep": {"id": "3"}}}])
def test_a_job_that_succeeds_is_no_success_of_a_sweep_that_it_does_not_belong_to(
    api: FakeApi, invoke: Invoke, other: dict[str, object]
) -> None:
    api.add("prep", **other, **ended())
    api.add("rate-1", **of_sweep("1"), **ended("cancelled", "cancelled by its sweep"))
    assert invoke("wait", "prep", "rate").exit_code == 11


def test_a_candidate_that_a_person_cancels_is_a_failure(api: FakeApi, invoke: Invoke) -> None:
    api.add("rate-1", **of_sweep("1"), **ended("cancelled", "cancelled by ada"))
    api.add("rate-2", **of_sweep("1"), **ended())
    assert invoke("wait", "rate").exit_code == 11


def of_sweep(first: str) -> dict[str, object]:
    """Return the facts of a job of the sweep that begins with a job."""
    return {"revision": {"sweep": {"id": first}}}


def test_a_name_that_no_job_has_is_told_before_any_is_waited_for(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    result = invoke("wait", "--timeout", "1m", "train", "nope")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "nope: there is no job of that id or name\n"
    assert not [path for _, path, _ in api.asked if "/wait" in path]


def test_a_timeout_exits_124_and_leaves_the_job_alone(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    result = invoke("wait", "--timeout", "0", "train")
    assert result.exit_code == 124
    assert result.stdout == "train: running (attempt 1 on cpu); still, after --timeout\n"


def test_a_job_that_ends_in_time_is_no_timeout(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    api.happen("wait", lambda: None, lambda: None, ended())
    result = invoke("wait", "--timeout", "1.5h", "--json", "train")
    assert (result.exit_code, json.loads(result.stdout)["outcome"]) == (0, "succeeded")


@pytest.mark.parametrize("as_json", [False, True])
def test_why_a_job_never_starts_is_said_once_on_stderr_and_it_is_waited_for(
    api: FakeApi, invoke: Invoke, *, as_json: bool
) -> None:
    job_id = api.add("train", state="queued", attempt=0)["id"]
    whys = ("waits for 1 GPU", "never starts: A", "never starts: A", "never starts: B", "never starts: B")
    says = [lambda why=why: api.whys.update({job_id: said(why)}) for why in whys]
    api.happen("wait", *says, {"state": "running"}, {"state": "queued"}, ended())
    result = invoke("wait", "train", *(["--json"] if as_json else []))
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    ends = f"; waits on, as that may change: runner cancel {job_id} ends it"
    assert result.stderr.splitlines() == [f"train: never starts: {what}{ends}" for what in "ABB"]


def said(why: str) -> dict[str, object]:
    return {"why": why, "never": why.startswith("never")}


def test_a_job_that_only_waits_is_waited_for_in_silence(api: FakeApi, invoke: Invoke) -> None:
    api.add("train", state="queued", why="waits for 1 GPU")
    api.happen("wait", lambda: None, ended())
    assert invoke("wait", "train").stderr == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90m", 5400), ("1.5h", 5400), ("7d", 604800),
        ("2h30m", 9000), ("5 m", 300), ("500ms", 0.5),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_in_a_job_file_and_a_number_alone_is_seconds(
    text: str, seconds: float
) -> None:
    given = wait.make_context("wait", ["--timeout", text, "train"]).params["timeout"]
    assert given == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("soon", ""), ("-1", "; it cannot be negative"), ("1e3", ""), ("", ""), ("٣", ""),
        ("1:30", '; did you mean "1m30s"?'), ("2H", '; did you mean "2h"?'),
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_in_the_words_that_job_files_get(
    invoke: Invoke, text: str, hint: str
) -> None:
    said = f'must be a duration such as 45s, 90m or 2h30m, not "{text}"{hint}'
    for command in (("wait", "train", "--timeout"), ("usage", "--since")):
        result = invoke(*command, text)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert f": {said}{'' if said.endswith('?') else ';'} see runner" in result.stderr
