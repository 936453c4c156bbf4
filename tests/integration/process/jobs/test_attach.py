import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_job_runner import attach
from jobs.contract import Cause, ExitCode, Result, RunPaths
from tests.fakes.patience import patience


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    return paths


SCRIPT = """
import os, signal, sys
from gpu_job_runner.attach import attach

with attach() as job:
    heard, told = os.pipe()
    never, ours = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        os.write(told, b"here")
        os.read(never, 1)
        os._exit(0)
    os.read(heard, 4)
    os.kill(child, signal.SIGTERM)
    os.close(ours)
    _, status = os.waitpid(child, 0)
    print("child ended by", os.WTERMSIG(status), "stopping", job.stopping)
"""


def test_a_forked_process_is_ended_by_the_signal_as_usual(tmp_path: Path) -> None:
    root = str(Path(attach.__file__).parents[1])
    script = [sys.executable, "-c", SCRIPT]
    said = subprocess.check_output(
        script, env={"PYTHONPATH": root}, cwd=tmp_path, text=True, timeout=patience()
    )
    assert "child ended by 15 stopping False\n" in said


def test_a_copy_works_without_anything_else(tmp_path: Path) -> None:
    shutil.copy(attach.__file__, tmp_path / "attach.py")
    (tmp_path / "train.py").write_text("""
import sys
from attach import attach
with attach(lambda d: (d / "x").write_text("x")) as job:
    for step in job.steps(3):
        job.report(loss=0.5)
assert not {"torch", "numpy", "pydantic", "jobs"} & set(sys.modules)
""")
    subprocess.run([sys.executable, "-S", "train.py"], cwd=tmp_path, env={}, check=True, timeout=patience())
    assert (tmp_path / "checkpoints" / "step-00000003" / "x").exists()


# --- Before the training begins

DRAWS = "print(random.random(), numpy.random.random(), float(torch.rand(())))"
ORDERS = {
    "the libraries first": f"import random, numpy, torch\nfrom gpu_job_runner.attach import attach\n{DRAWS}",
    "attach first": f"from gpu_job_runner.attach import attach\nimport random, numpy, torch\n{DRAWS}",
}


def draws(script: str, directory: Path, **more: str) -> str:
    environ = {
        "PYTHONPATH": str(Path(attach.__file__).parents[1]),
        "PATH": os.environ["PATH"],
        "RUNNER_CHECKPOINT_DIR": str(directory),
        **more,
    }
    return subprocess.check_output(
        [sys.executable, "-c", script], env=environ, cwd=directory, text=True, timeout=patience()
    )


def test_a_model_that_is_built_before_attach_begins_with_the_same_weights(tmp_path: Path) -> None:
    first = draws(ORDERS["the libraries first"], tmp_path, RUNNER_SEED="7")
    assert first == draws(ORDERS["attach first"], tmp_path, RUNNER_SEED="7")
    assert first != draws(ORDERS["attach first"], tmp_path, RUNNER_SEED="8")


def test_a_script_that_is_started_by_hand_keeps_its_own_seeds(tmp_path: Path) -> None:
    alone = {"RUNNER_CHECKPOINT_DIR": "", "RUNNER_SEED": "7"}
    without_torch = ORDERS["attach first"].replace(", torch", "").replace(", float(torch.rand(()))", "")
    first, again = (draws(without_torch, tmp_path, **alone).split() for _ in range(2))
    assert not {*first} & {*again}  # torch begins with a seed of its own that is always the same


TWO_TRAININGS = """
from gpu_job_runner.attach import attach
for _ in range(2):
    with attach(lambda d: (d / "x").write_text("x"), lambda d: None) as job:
        for step in job.steps(3):
            pass
"""


def test_a_second_training_in_one_script_is_refused_and_not_resumed_from_the_first(paths: RunPaths) -> None:
    environ = {
        "PYTHONPATH": str(Path(attach.__file__).parents[1]),
        "RUNNER_CHECKPOINT_DIR": str(paths.lineage_dir),
        "RUNNER_ATTEMPT_DIR": str(paths.attempt_dir),
    }
    ended = subprocess.run(
        [sys.executable, "-c", TWO_TRAININGS],
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    assert ended.returncode == ExitCode.INVALID_SPEC
    assert "attach() was called twice" in ended.stderr
    result = Result.model_validate_json(paths.result.read_bytes())
    assert (result.cause, result.step) == (Cause.INVALID_SPEC, 3)
    assert "would resume from the checkpoints of the first" in result.message
