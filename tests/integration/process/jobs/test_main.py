"""The program as the runner meets it: exit status, result file, one line on stderr."""

import os
import subprocess
import sys
from pathlib import Path

from jobs.contract import ExitCode, Phase
from tests.unit.jobs.conftest import JobDir

REPOSITORY = Path(__file__).parents[4]


def test_a_bad_spec_is_told_before_torch_is_imported(job: JobDir) -> None:
    paths = job.attempt()
    paths.spec.write_text("{}")
    program = (
        "import sys; from jobs.__main__ import main; code = main(sys.argv[1:]);"
        "sys.exit(code if 'torch' not in sys.modules else 'torch was imported')"
    )
    arguments = ["--root", str(job.root), "--attempt", "1", "--lineage", "1"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert done.returncode == ExitCode.INVALID_SPEC


def test_the_program_runs_by_its_name(job: JobDir) -> None:
    paths = job.attempt()
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "jobs",
        "--root",
        str(job.root),
        "--attempt",
        "1",
        "--lineage",
        "1",
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "step 8/8  loss" in done.stdout
    assert job.status().phase is Phase.DRAIN
    assert paths.result.exists()
