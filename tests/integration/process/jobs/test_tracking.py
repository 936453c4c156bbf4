"""The process that sends metrics to MLflow, with its file store, and trainings that are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_job_runner import attach, tracking
from gpu_job_runner.tracking import Place, Trackers
from jobs.contract import RunPaths
from tests.fakes.daemon.ports import free_port
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

TRAIN = """
import os, sys, time
from gpu_job_runner.attach import attach

def save(directory): (directory / "state").write_text("x")

with attach(save, lambda directory: None) as job:
    for step in job.steps(int(sys.argv[1])):
        job.report(loss=1.0 / (step + 1))
        if step == int(sys.argv[2]):
            print("here", flush=True)
            time.sleep(600)
"""


def read(store: Path | str) -> list[tuple[dict[str, Any], dict[str, list[int]]]]:
    """Return the runs of a file store: what is known of each, and the steps of its metrics."""
    script = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
found = []
for run in client.search_runs([each.experiment_id for each in client.search_experiments()]):
    steps = {k: [m.step for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics}
    about = {"status": run.info.status, "name": run.info.run_name, "params": run.data.params}
    found.append([about, steps])
print(json.dumps(found))
"""
    argv = [sys.executable, "-c", script, store if isinstance(store, str) else store.as_uri()]
    environ = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    found = subprocess.check_output(argv, env=environ, text=True, timeout=patience())
    return [(about, steps) for about, steps in json.loads(found.splitlines()[-1])]


def environment(paths: RunPaths, store: Path | str) -> dict[str, str]:
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True, exist_ok=True)
    paths.home.mkdir(exist_ok=True)
    track = {
        "tensorboard": True,
        "mlflow": store if isinstance(store, str) else store.as_uri(),
        "name": "fit",
    }
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(attach.__file__).parents[1]),
        "RUNNER_CHECKPOINT_DIR": str(paths.lineage_dir),
        "RUNNER_ATTEMPT_DIR": str(paths.attempt_dir),
        "RUNNER_JOB_DIR": str(paths.root),
        "RUNNER_JOB_ID": "7",
        "RUNNER_ATTEMPT": str(paths.attempt),
        "RUNNER_SAVE_EVERY_STEPS": "4",
        "RUNNER_TRACK": json.dumps(track),
    }


def shown(paths: RunPaths) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(paths.home / "tensorboard"))
    board.Reload()
    return [event.step for event in board.Scalars("loss")]


def test_a_killed_training_leaves_no_doubled_and_no_missing_step(tmp_path: Path) -> None:
    store, argv = tmp_path / "mlruns", [sys.executable, "-c", TRAIN]
    first = RunPaths(tmp_path, 1, 1)
    with subprocess.Popen(
        [*argv, "20", "10"],
        env=environment(first, store),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        # What the run has behind the checkpoint, the next attempt must not report a second time.
        until(
            lambda: [len(each.read_text().splitlines()) for each in store.rglob("metrics/loss")] == [10],
            "MLflow has the ten steps",
        )
        os.killpg(process.pid, signal.SIGKILL)
    assert shown(first) == list(range(1, 11))
    second = RunPaths(tmp_path, 2, 1)
    subprocess.run(
        [*argv, "20", "-1"], env=environment(second, store), cwd=tmp_path, check=True, timeout=patience()
    )
    assert shown(second) == list(range(1, 21))
    [(about, steps)] = read(store)
    assert steps == {"loss": list(range(1, 21))}
    assert about == {"status": "FINISHED", "name": "fit", "params": {"seed": "0"}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place("7", 1, tmp_path / "lineages/1", tmp_path / "attempts/1", tmp_path / "home")
    for each in (found.lineage_dir, found.attempt_dir, found.home):
        each.mkdir(parents=True)
    return found


@pytest.fixture
def tracked(place: Place) -> Callable[..., Trackers]:
    def train(uri: str, begin: int, end: int, attempt: int = 1, *, is_chosen: bool = False) -> Trackers:
        where = place._replace(
            attempt=attempt, attempt_dir=place.attempt_dir.with_name(str(attempt)), is_chosen=is_chosen
        )
        where.attempt_dir.mkdir(exist_ok=True)
        trackers = Trackers({"mlflow": uri, "name": "fit"}, where, {"learning_rate": 0.1})
        trackers.begin(begin)
        with (where.attempt_dir / "metrics.jsonl").open("a") as file:
            for step in range(begin + 1, end + 1):
                file.write(json.dumps({"time": 1000.0 + step, "step": step, "a b(c)": step}) + "\n")
        return trackers

    return train


def test_an_older_checkpoint_begins_another_run_that_has_what_came_before(
    tmp_path: Path, tracked: Callable[..., Trackers], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "mlruns"
    monkeypatch.setitem(tracking.LEAVE_S, "SCHEDULED", 60.0)
    tracked(store.as_uri(), 0, 12).end("SCHEDULED", 12)
    tracked(store.as_uri(), 4, 8, 2, is_chosen=True).end("SCHEDULED", 8)
    tracked(store.as_uri(), 8, 9, 3).end("FAILED", 9)
    runs = sorted(read(store), key=lambda run: len(run[1]["a b_c_"]))
    assert [(about["status"], steps["a b_c_"]) for about, steps in runs] == [
        ("FAILED", list(range(1, 10))),
        ("SCHEDULED", list(range(1, 13))),
    ]


def test_a_server_that_is_gone_holds_nobody_up_and_the_next_attempt_sends_all(
    tmp_path: Path,
    tracked: Callable[..., Trackers],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tracking.LEAVE_S, "SCHEDULED", 1.0)
    tracked(f"http://127.0.0.1:{free_port()}", 0, 5).end("SCHEDULED", 5)
    assert capfd.readouterr().err.startswith("track: ")
    tracked((tmp_path / "mlruns").as_uri(), 5, 7, 2).end("FINISHED", 7)
    [(_, steps)] = read(tmp_path / "mlruns")
    assert steps == {"a b_c_": list(range(1, 8))}


def test_a_missing_package_is_said(place: Place, tmp_path: Path) -> None:
    task = {"uri": tmp_path.as_uri(), "name": "fit", "params": {}, **place._asdict()}
    argv = [sys.executable, "-S", tracking.__file__, json.dumps(task, default=str)]
    ended = subprocess.run(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "track: warning: mlflow: No module named 'mlflow'; going on without it\n",
    )
