"""The script that becomes a program on a node."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.adapters.slurm.executor import SlurmExecutor
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner

WORDS = 'it\'s $HOME `x`\n\\ "secret"'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    settings = SimpleNamespace(containers=None, path=os.environ["PATH"])
    stand_in = cast("Any", SimpleNamespace(settings=settings, _with_interface=lambda request: request))
    request = LaunchRequest(
        Key("i", "1", 1),
        "job",
        Owner(os.getuid(), os.getgid(), "me"),
        "none",
        ("/usr/bin/env", "-0"),
        tmp_path,
        tmp_path / "log.txt",
        Limits(1.0, 1024**3),
        environment={"TOKEN": WORDS},
    )
    path = tmp_path / "program"
    path.write_text(SlurmExecutor._program(stand_in, request, tmp_path))
    return path


def test_no_value_of_the_environment_is_an_argument(script: Path) -> None:
    text = script.read_text()
    [statement] = [part for part in text.split("export ") if part.startswith("TOKEN=")]
    assert "secret" in statement
    assert "secret" not in text.replace(statement, "")
    assert "setpriv" not in statement


def test_the_program_has_the_variables_of_the_job_and_none_of_slurm(script: Path) -> None:
    environment = {**os.environ, "SLURM_EXPORTED": "x", "SLURM_JOB_ID": "7"}
    subprocess.run(["/bin/sh", str(script)], env=environment, check=True)
    found = dict(each.split("=", 1) for each in (script.parent / "log.txt").read_text().split("\0") if each)
    assert (found["TOKEN"], found["SLURM_JOB_ID"]) == (WORDS, "7")
    assert not {"SLURM_EXPORTED", "RUNNER_CLEAN"} & set(found)
