"""``runner tune`` on a daemon whose jobs end at once, with rates that depend on their settings."""

import json
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.cli.tune.attempts import applied_switches, first_losses, items_per_step, steps_per_s
from runner.services.rollout.throughput import MetricsLine
from tests.fakes.daemon.api import FakeApi, Problem, ended
from tests.unit.runner.cli.conftest import Invoke

Rate = Callable[[dict[str, Any]], float]
JOB = {
    "name": "mine",
    "workload": {"kind": "program", "command": ["python", "train.py"]},
    "resources": {"cpus": 2},
    "labels": {"version": "1.10"},
}


def lines(rate: float, count: int = 40) -> str:
    return "".join(
        json.dumps({"time": 1000 + step / rate, "step": step, "loss": 1 / step}) + "\n"
        for step in range(1, count + 1)
    )


def serve(api: FakeApi, rate: Rate, outcome: str = "succeeded", applied: str = "optimizer") -> None:
    """Let every job end at once, with the metrics of its rate."""

    def turn() -> None:
        job = list(api.jobs.values())[-1]
        said = json.loads(api.submitted[-1])
        reports = {
            "metrics.jsonl": lines(rate(said)),
            "status.json": json.dumps({"step": 40, "items": 1280}),
            "effective.json": json.dumps({"switches": {applied: {"applied": "foreach"}}}),
        }
        for name, text in reports.items():
            api.files[job["id"], f"/job/attempts/1/{name}"] = text.encode()
        job.update({**ended(outcome, "completed"), "progress": None})

    api.turns["wait"].extend([turn] * 200)


def by_threads(said: dict[str, Any]) -> float:
    profile = said["profile"]
    fast = profile.get("environment", {}).get("FAST") == "1"
    return 100.0 * (2.0 if profile.get("threads") == 1 else 1.0) * (1.5 if fast else 1.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(JOB))
    return path


def test_what_is_kept_is_written_with_its_measurements(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, by_threads)
    result = invoke("tune", str(file), "--variable", "FAST=1")
    assert result.exit_code == 0, result.stderr
    assert "all that was kept, measured again: 3.00 (3.00 to 3.00, 4 pairs) times as fast" in result.stdout
    [gpu] = [line for line in result.stdout.splitlines() if line.endswith(": needs a GPU")]
    assert "allocator" in gpu
    target = file.with_name("mine.tuned.yaml")
    text = target.read_text()
    assert "  threads: 1  # 2.00 (2.00 to 2.00, 4 pairs) x, was threads: 2 -> 1\n" in text
    assert '    FAST: "1"  # 1.50 (1.50 to 1.50, 4 pairs) x, was FAST: null -> 1\n' in text
    assert "3.00 (3.00 to 3.00, 4 pairs) times as fast as before, all together" in text.splitlines()[0]
    profile = {"extends": "auto", "threads": 1, "environment": {"FAST": "1"}}
    assert yaml.safe_load(text) == {**JOB, "profile": profile}
    assert json.loads(file.read_text()) == JOB
    assert "optimizer: fused -> foreach" in result.stdout


def test_programs_read_the_results_as_json(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, by_threads)
    found = json.loads(invoke("tune", str(file), "--json").stdout)
    assert found["kept"] == [{"place": "profile", "name": "threads", "value": 1, "before": 2}]
    [row] = [each for each in found["rows"] if each["name"] == "threads"]
    assert row["kept"]
    assert row["ratio"]["mean"] == pytest.approx(2.0)
    assert found["final"]["pairs"] == 4
    assert found["left_out"]["allocator"] == "needs a GPU"


def test_nothing_is_written_if_nothing_is_faster(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, lambda _: 100.0)
    result = invoke("tune", str(file))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "nothing is kept: no setting that was decided is faster"
    assert list(file.parent.glob("*.tuned.yaml")) == []


def test_where_nothing_can_be_tried_that_is_said_and_takes_one_attempt(
    api: FakeApi, invoke: Invoke, file: Path
) -> None:
    file.write_text(json.dumps({**JOB, "resources": {"cpus": 1}}))
    serve(api, lambda _: 100.0, applied="deterministic")
    result = invoke("tune", str(file), "--for", "0.01s", "--json")
    assert (result.exit_code, json.loads(result.stdout)["rows"]) == (0, [])
    told = invoke("tune", str(file)).stdout.splitlines()
    assert "nothing is kept: there is no setting to try" in told[-1]


def test_an_argument_of_the_command_is_told_above(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, lambda said: 200.0 if "--fast=1" in said["workload"]["command"] else 100.0)
    assert invoke("tune", str(file), "--argument", "--fast=1").exit_code == 0
    text = file.with_name("mine.tuned.yaml").read_text()
    assert "# --fast: null -> 1: 2.00 (2.00 to 2.00, 4 pairs) x" in text.splitlines()
    assert yaml.safe_load(text)["workload"]["command"] == ["python", "train.py", "--fast=1"]


def test_a_job_that_fails_is_not_tuned(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, lambda _: 100.0, "failed")
    result = invoke("tune", str(file))
    assert result.exit_code == 4
    assert "mine: failed: completed; runner logs 000001; nothing was tried" in result.stderr


def test_a_job_without_steps_is_not_tuned(api: FakeApi, invoke: Invoke, file: Path) -> None:
    api.turns["wait"].append(lambda: next(iter(api.jobs.values())).update(ended()))
    result = invoke("tune", str(file))
    assert result.exit_code == 4
    assert re.search(
        "mine: 0 steps in [0-9]+ s are too few for a rate; it reports none, or --for", result.stderr
    )


def test_too_little_time_is_refused_with_what_is_needed(api: FakeApi, invoke: Invoke, file: Path) -> None:
    serve(api, lambda _: 100.0)
    result = invoke("tune", str(file), "--for", "0.01s")
    assert result.exit_code == 2
    assert "--for 0s: one attempt takes 0 s" in result.stderr
    assert len(api.submitted) == 3  # the first one is the check of the file


def test_an_attempt_that_goes_on_is_watched_and_cancelled(
    api: FakeApi, invoke: Invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program that writes no file, the steps of its heartbeats make the rate."""
    monkeypatch.setattr("runner.cli.tune.command.WINDOW_S", (0.0, 0.0))

    def beat() -> None:
        job = list(api.jobs.values())[-1]
        step = (job["progress"] or {}).get("step", 0) + 10
        rate = by_threads(json.loads(api.submitted[-1]))
        job["progress"] = {"phase": "train", "step": step, "time": 1000 + step / rate}

    api.turns["wait"].extend([beat] * 2000)
    found = json.loads(invoke("tune", str(file), "--json").stdout)
    assert [each["name"] for each in found["kept"]] == ["threads"]
    assert {job["outcome"] for job in api.jobs.values()} == {"cancelled"}
    said = json.loads(api.submitted[-1])
    assert (said["stop_grace"], said["checkpoint"]["every"]) == (
        "1s",
        "1d",
    )  # it saves nothing, also at its end


def test_an_attempt_that_waits_for_resources_has_its_time_still(
    api: FakeApi, invoke: Invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.cli.tune.command.LONGEST_S", 0.0)
    monkeypatch.setattr("runner.cli.tune.command.LONGER", 0.0)
    serve(api, by_threads)
    ends = list(api.turns["wait"])
    looks = count()

    def turn() -> None:
        job = list(api.jobs.values())[-1]
        if job["state"] == "running" and job["outcome"] is None:
            job["state"] = "queued"
        elif next(looks) % 3 == 2:
            ends[0]()

    api.turns["wait"] = deque([turn] * 1000)
    found = json.loads(invoke("tune", str(file), "--json").stdout)
    assert [each["name"] for each in found["kept"]] == ["threads"]


def test_a_job_that_never_starts_is_not_tuned(api: FakeApi, invoke: Invoke, file: Path) -> None:
    def turn() -> None:
        job = list(api.jobs.values())[-1]
        job.update({"attempt": 0, **({"state": "queued"} if job["outcome"] is None else {})})

    api.turns["wait"].extend([turn] * 1000)
    result = invoke("tune", str(file), "--for", "0.2s")
    assert re.search("mine: waited for [0-9]+ s to start; nothing was tried", result.stderr)
    assert {job["outcome"] for job in api.jobs.values()} == {"cancelled"}


def test_what_is_wrong_in_the_file_is_told_with_its_place_there(
    api: FakeApi, invoke: Invoke, file: Path
) -> None:
    fact = f"{file}:3:9: secrets.TOKEN: /no/such: does not exist"
    api.problem = Problem(422, "invalid", 2, fact)
    result = invoke("tune", str(file))
    assert (result.exit_code, result.stderr.splitlines()) == (2, [fact])
    assert api.jobs == {}


def test_an_interrupt_leaves_no_attempt(api: FakeApi, invoke: Invoke, file: Path) -> None:
    api.turns["wait"].extend([lambda: None, lambda: os.kill(os.getpid(), signal.SIGINT)])
    result = invoke("tune", str(file))
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "interrupted; 000001 is cancelled")
    assert [job["outcome"] for job in api.jobs.values()] == ["cancelled"]


def test_an_interrupt_during_the_submission_waits_for_the_job(
    api: FakeApi, invoke: Invoke, file: Path
) -> None:
    api.turns["submit"].extend([lambda: None, lambda: os.kill(os.getpid(), signal.SIGINT)])
    result = invoke("tune", str(file))
    assert result.exit_code == 130
    assert [job["outcome"] for job in api.jobs.values()] == ["cancelled"]


@pytest.mark.parametrize("name", ["mine.yaml", "sub/other.yaml"])
@pytest.mark.usefixtures("api")
def test_the_result_lies_beside_the_file_and_never_in_its_place(
    invoke: Invoke, file: Path, name: str
) -> None:
    result = invoke("tune", str(file), "-o", str(file.parent / name))
    assert (result.exit_code, "name another file in the directory of mine.yaml" in result.stderr) == (2, True)


def test_reports_that_are_damaged_tell_nothing() -> None:
    assert items_per_step(b"[1]") == 1.0
    assert items_per_step(b"{") == 1.0
    assert items_per_step(b'{"items": "x", "step": 3}') == 1.0
    assert items_per_step(b'{"items": 96, "step": 3}') == 32.0
    assert first_losses(b'{"step": 1, "loss": 2}\nx\n{"step": 2}\n') == {1: 2.0}
    assert applied_switches(b'{"switches": {"a": 1, "b": {"applied": null}, "c": {"applied": "x"}}}') == {"c"}
    assert applied_switches(b'{"switches": []}') == frozenset()


def reports(*steps: int, per_s: float = 3.0, since: float = 1000.0) -> list[MetricsLine]:
    return [MetricsLine(since + step / per_s, step, trained=True) for step in steps]


def test_the_first_quarter_of_the_steps_is_left_out() -> None:
    slow = reports(*range(1, 5), per_s=1.0)
    fast = [MetricsLine(1004.0 + step / 10, 4 + step, trained=True) for step in range(1, 13)]
    assert steps_per_s([*slow, *fast]) == pytest.approx(10.0)


@pytest.mark.parametrize("every", [1, 2, 10, 40])
def test_steps_are_counted_by_their_numbers_however_often_they_are_reported(every: int) -> None:
    assert steps_per_s(reports(*range(every, 121, every))) == pytest.approx(3.0)


@pytest.mark.parametrize("steps", [(), (5,), (1, 2, 3), (100, 200), range(1, 9)])
def test_few_steps_and_a_single_stretch_make_no_rate(steps: Sequence[int]) -> None:
    assert steps_per_s(reports(*steps)) is None


def test_evaluations_belong_to_no_rate() -> None:
    evaluated = MetricsLine(1020.0, 40, trained=False)
    after = reports(50, 60, since=1040.0)
    assert steps_per_s([*reports(10, 20, 30, 40), evaluated, *after]) == pytest.approx(3.0)


def test_a_clock_that_stands_still_makes_no_rate() -> None:
    assert steps_per_s([MetricsLine(1.0, step, trained=True) for step in range(20)]) is None
