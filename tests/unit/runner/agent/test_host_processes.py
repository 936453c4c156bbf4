"""Warnings and refusals where attempts run without containers."""

from pathlib import Path

import pytest

from runner.agent.host_processes import HostProcesses
from runner.files.job.load import parse_job

TRAINING = "workload: {kind: causal_lm, data: stdlib}\n"
PROGRAM = "workload: {kind: program, command: [./train]}\n"


def processes(*, torch: bool = True, problem: str | None = None) -> HostProcesses:
    return HostProcesses("/venv/bin/python", lambda _: torch, problem)


def test_a_daemon_that_found_no_engine_says_so_and_what_to_do() -> None:
    (warning,) = processes(problem="permission denied").warnings()
    assert warning.startswith(
        "runs as a plain process with /venv/bin/python, not in a container: permission denied; give"
    )
    assert "executor: process" in warning


def test_processes_that_the_settings_ask_for_need_no_warning() -> None:
    assert processes().warnings() == ()


@pytest.mark.parametrize(
    ("text", "torch", "refused"), [(TRAINING, False, True), (TRAINING, True, False), (PROGRAM, False, False)]
)
def test_a_built_in_workload_needs_torch_in_the_daemons_python(
    text: str, *, torch: bool, refused: bool, tmp_path: Path
) -> None:
    problem = processes(torch=torch).torch_problem(parse_job(text.encode(), tmp_path / "job.yaml"))
    assert (problem is not None) is refused
    if problem:
        assert problem.startswith("causal_lm needs torch, which /venv/bin/python lacks")


def test_a_built_in_workload_is_told_which_packages_its_trackers_lack(tmp_path: Path) -> None:
    here = HostProcesses("/venv/bin/python", lambda name: name == "tensorboardX", None)
    track = "track: [tensorboard, {mlflow: 'file:///data/mlruns'}]\n"

    def problem(text: str) -> str | None:
        return here.tracking_problem(parse_job(text.encode(), tmp_path / "job.yaml"))

    fact = "needs mlflow-skinny, which /venv/bin/python lacks, and jobs have no containers here"
    assert (
        problem(TRAINING + track)
        == f"{fact}; install it there: /venv/bin/python -m pip install mlflow-skinny"
    )
    assert problem(TRAINING) is None
    assert problem(PROGRAM + track) is None  # it gets its packages as a program does
