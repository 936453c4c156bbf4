"""A launch script for submitit: its function runs as a job of a real daemon, is stopped, and goes on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import cloudpickle
import pytest

import gpu_job_runner as runner
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

pytest.importorskip("submitit", reason="submitit is not installed")

import submitit
from submitit.local import test_local

from gpu_job_runner.submitit_plugin import RunnerExecutor, RunnerJob

SCRIPTS = Path(__file__).parents[4] / "examples" / "scripts" / "submitit"
AS_TYPED = (
    "import runpy, sys; sys.executable, *sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], {}, '__main__')"
)
"""Runs a script with a Python that jobs may use: that of the tests may be in somebody's home."""


@pytest.fixture(scope="module", name="daemon")
def _daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


@pytest.fixture(name="shared")
def _shared(tmp_path: Path, daemon: Service, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that jobs can write to, with the scripts, and a Python that has submitit."""
    monkeypatch.setenv("RUNNER_SOCKET", str(daemon.socket))
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o777)
    for package in (submitit, cloudpickle):
        place = Path(str(package.__file__)).parent
        shutil.copytree(place, tmp_path / "lib" / place.name)
    shutil.copy(Path(sys.modules["typing_extensions"].__file__ or ""), tmp_path / "lib")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/lib exec /usr/bin/python3 "$@"\n')
    python.chmod(0o755)
    shutil.copytree(SCRIPTS, tmp_path / "project")
    (tmp_path / "project" / "experiments").mkdir()
    return tmp_path


def launch(shared: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", AS_TYPED, str(shared / "python"), "run_with_submitit.py", *arguments]
    return subprocess.Popen(
        command, cwd=shared / "project", stdout=subprocess.PIPE, text=True, umask=0, env=os.environ.copy()
    )


def test_a_launch_script_runs_here_is_preempted_and_continues_from_its_checkpoint(shared: Path) -> None:
    wait = shared / "project" / "experiments" / "wait"
    wait.touch()
    with launch(shared, "--cluster", "runner") as script:
        assert script.stdout is not None
        said = script.stdout.readline()
        job = runner.find(said.rpartition(" ")[2].strip())
        until(lambda: "epoch 2" in job.logs(), "the training waits", more=job.logs)
        job.hold()
        assert job.wait(patience()) == "held"
        wait.unlink()
        job.release()
        result = script.communicate(timeout=patience())[0]
    assert f"Result: [{{'rank': 0, 'of': 1, 'epoch': 6, 'weight': {1.5**6}, 'starts': 2}}]" in result
    assert "Requeuing" in job.logs(1)
    assert job.state == "succeeded"


def test_tasks_have_ranks_and_an_exception_is_final(shared: Path) -> None:
    with launch(shared, "--cluster", "runner", "--ntasks", "2") as script:
        result = script.communicate(timeout=patience())[0]
    assert [f"'rank': {rank}, 'of': 2, 'epoch': 6" in result for rank in (0, 1)] == [True, True]
    with launch(shared, "--cluster", "runner", "--epochs", "1", "--resume", "/") as script:
        assert script.communicate(timeout=patience())[0].startswith("Submitted")
    [job, *_] = runner.find_all()
    assert job.state == "failed"
    assert "IsADirectoryError" in job.logs()
    assert len(job.detail()["attempts"]) == 1


OWN = (
    *("test_local_map_array", "test_local_submit_array", "test_local_error", "test_pickle_output_from_main"),
    *("test_stdout", "test_load_submission"),
)
WEIRD = ("a'; echo foo", "a\n0")


@pytest.fixture(name="executor")
def _executor(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let our executor stand in the place of the local one in submitit's own tests."""
    for package in ("_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        shutil.copytree(Path(str(import_module(package).__file__)).parent, shared / "lib" / package)
    shutil.copy(str(import_module("py").__file__), shared / "lib")
    made = partial(RunnerExecutor, python=str(shared / "python"))
    monkeypatch.setattr(test_local.local, "LocalExecutor", made)
    monkeypatch.setattr(test_local.local, "LocalJob", RunnerJob)
    monkeypatch.chdir(shared / "project")
    before = os.umask(0)  # the job may be another user's, as root's are
    yield
    os.umask(before)


@pytest.mark.usefixtures("executor")
def test_submitits_own_tests_of_an_executor_pass_here(shared: Path) -> None:
    for name in OWN:
        getattr(test_local, name)(shared / name)
    for number, name in enumerate(WEIRD):
        test_local.test_weird_dir(shared / f"weird-{number}" / name)
