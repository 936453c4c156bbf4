import json
from pathlib import Path

import pytest

from runner.files.job.load import parse_jobs
from runner.files.job.model import JobFile
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

FILE = Path("rate.yaml")
PARTS = {"values": [0.5], "final": None, "device_h": 0.25, "step": 10, "decisions": []}
SWEEP = {
    "sweep": "000001",
    "name": "rate",
    "metric": "loss",
    "direction": "minimize",
    "rungs": [10, 30],
    "device_h": 1.0,
    "best": "000003",
    "candidates": [
        {**PARTS, "job": "000001", "name": "rate-1", "state": "paused", "parameters": {"seed": 1}},
        {
            **PARTS,
            "job": "000002",
            "name": "rate-2",
            "state": "paused",
            "parameters": {"seed": 2},
            "values": [0.25],
        },
        {
            **PARTS,
            "job": "000003",
            "name": "rate-3",
            "state": "succeeded",
            "parameters": {"seed": 3},
            "values": [0.1, 0.05],
            "final": 0.01,
        },
    ],
}


def test_results_are_a_table_with_the_best_first(api: FakeApi, invoke: Invoke) -> None:
    api.answers["sweeps"] = SWEEP
    assert invoke("sweep", "results", "--csv", "rate").stdout.splitlines() == [
        "job,name,state,seed,step_10,step_30,final,device_h",
        "000003,rate-3,succeeded,3,0.1,0.05,0.01,0.25",
        "000002,rate-2,paused,2,0.25,,,0.25",
        "000001,rate-1,paused,1,0.5,,,0.25",
    ]
    rows = [json.loads(line) for line in invoke("sweep", "results", "--json", "rate").stdout.splitlines()]
    assert [row["job"] for row in rows] == ["000003", "000002", "000001"]
    assert invoke("sweep", "results", "rate").stdout.splitlines()[1] == (
        "000002\trate-2\tpaused\t2\t0.25\t-\t-\t0.25"
    )


def test_the_path_of_a_job_file_stands_for_its_submission(
    api: FakeApi, invoke: Invoke, job_file: Path
) -> None:
    assert invoke("sweep", str(job_file), "--name", "other").stdout == "000001\tother\n"
    assert api.submitted == [b"name: train\n"]
    assert invoke("sweep", "absent.yaml").exit_code == 2


def test_show_marks_the_best_and_what_was_reached(api: FakeApi, invoke: Invoke) -> None:
    api.answers["sweeps"] = SWEEP
    first, second, _ = invoke("sweep", "show", "rate").stdout.splitlines()
    assert first == "000003\trate-3\tsucceeded, best\t10\t0.1 0.05\t0.01\t0.25"
    assert second == "000002\trate-2\tpaused\t10\t0.25\t-\t0.25"
    assert json.loads(invoke("sweep", "show", "--json", "rate").stdout) == SWEEP


def candidate(text: str) -> JobFile:
    """Return the last candidate of a sweep."""
    sweep = "sweep: {parameters: {seed: [1, 2, 3]}, metric: loss}\n"
    return parse_jobs(f"{text}{sweep}".encode(), FILE).jobs[-1]


def revision(job: JobFile) -> dict[str, object]:
    return {"job": json.loads(job.model_dump_json()), "path": "/home/ada/x/rate.yaml"}


def test_the_winner_is_a_job_file_of_its_own(api: FakeApi, invoke: Invoke) -> None:
    best = candidate(
        "workload: {kind: causal_lm, data: stdlib, steps: 100, eval_every: null}\n"
        "checkpoint: {every: null, every_steps: 50}\n"
    )
    for _ in range(3):
        api.add("rate", revision=revision(best))
    api.answers["sweeps"] = SWEEP
    printed = invoke("sweep", "winner", "rate").stdout
    assert printed.splitlines()[:3] == [
        "# the best of rate: job 000003; its weights: init_from: job/000003/final",
        "# The file of job 000003; paths are relative to /home/ada/x",
        "name: rate-3",
    ]
    assert parse_jobs(printed.encode(), FILE).jobs == (best.model_copy(update={"sweep": None}),)
    assert invoke("show", "--file", "000003").stdout == printed.partition("\n")[2]
    program = candidate("workload: {kind: program, command: [x]}\n")
    api.jobs["000003"]["revision"] = revision(program)
    heading, *_ = invoke("sweep", "winner", "rate").stdout.splitlines()
    assert heading == "# the best of rate: job 000003; runner cp 000003:PATH ."  # it has no "final"
    api.answers["sweeps"] = {**SWEEP, "best": None}
    result = invoke("sweep", "winner", "rate")
    assert (result.exit_code, result.stderr) == (
        3,
        "rate: no candidate has succeeded with a finite loss so far; runner sweep show rate\n",
    )


def test_stop_and_resume_tell_how_many(api: FakeApi, invoke: Invoke) -> None:
    api.answers["sweeps"] = {"jobs": ["000001", "000002"]}
    assert invoke("sweep", "stop", "rate").stdout == "rate: 2 candidates held\n"
    assert invoke("sweep", "resume", "rate").stdout == "rate: 2 candidates released\n"
    assert [path for method, path, _ in api.asked if method == "POST"] == [
        "/v1/sweeps/rate/stop",
        "/v1/sweeps/rate/resume",
    ]


def test_top_is_drawn_until_the_sweep_is_over(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers["sweeps"] = SWEEP
    once = invoke("sweep", "top", "rate").stdout
    assert once == invoke("sweep", "show", "rate").stdout  # in a pipe
    monkeypatch.setattr("runner.cli.sweep.takes_escapes", lambda: True)
    ended = [{**PARTS, "job": "000001", "name": "rate-1", "state": "cancelled", "parameters": {"seed": 1}}]

    def later(_seconds: float) -> bool:
        api.answers["sweeps"] = {**SWEEP, "best": None, "candidates": ended}
        return False

    monkeypatch.setattr("runner.cli.sweep.wait", later)
    heading = "rate: minimize loss; rungs: 10, 30; 1 h\n"
    _, first, second = invoke("sweep", "top", "rate").stdout.split(heading)
    assert "rate-3" in first
    assert "succeeded, best" in first
    assert "rate-3" not in second
    assert "cancelled" in second


def test_top_says_how_many_candidates_the_screen_has_no_line_for(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {**PARTS, "name": "rate-1", "state": "cancelled", "parameters": {"seed": 1}}
    over = [{**one, "job": f"{number:06}"} for number in range(1, 6)]
    api.answers["sweeps"] = {**SWEEP, "best": None, "candidates": over}
    monkeypatch.setattr("runner.cli.sweep.takes_escapes", lambda: True)
    monkeypatch.setenv("LINES", "6")
    drawn = invoke("sweep", "top", "rate").stdout.splitlines()
    assert (len(drawn), drawn[-1]) == (5, "and 3 more")
    monkeypatch.setenv("LINES", "8")
    assert len(invoke("sweep", "top", "rate").stdout.splitlines()) == 7
