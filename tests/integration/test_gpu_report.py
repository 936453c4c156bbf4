"""The GPU report is rehearsed on the CPU: every part runs, and says on every line that it is a rehearsal."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu_report.__main__ import main
from scripts.gpu_report.context import Context
from scripts.gpu_report.exact import PROMISED, finding_of
from scripts.gpu_report.forked_jobs import Job, side_by_side
from scripts.gpu_report.report import Finding, Part, markdown, not_run, read
from scripts.gpu_report.run_part import ORDER
from scripts.gpu_report.sources import HEADLINES
from tests.fakes.patience import patience

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "scripts" / "gpu-report"

MEASURES = {
    "sources": "AGI2, 124 M parameters, 1,024 tokens of 50,257",
    "exact": "causal_lm, 1 kills",
    "near_limit": "model FLOPs utilisation",
    "fast": "pair_classifier, arm by arm",
    "oom": "the losses equal those of a run that fitted",
    "restart": "stall of the training by one save",
    "lent": "the device is clean after the job",
    "seen": "health poll",
    "hang": "a hung attempt is stopped and restarted",
    "several": "the bits of 2 process(es) are those of one",
}
"""A finding of each part that cannot be missing."""


MARKED = ("  passed", "  failed", "  measured", "  not run")

QUICKLY = {"AOT_INDUCTOR_DEBUG_COMPILE": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
"""For the one arm that is compiled: without optimisation, and without finding out what the processor can."""


def rehearsed(name: str, directory: Path) -> Part:
    """Rehearse one part; what it prints is marked, too."""
    code = main(["--rehearse", "--only", name, "--results", str(directory)])
    [part] = read(directory, ORDER)
    assert code == 0, [finding for finding in part.findings if finding.status == "failed"]
    return part


@pytest.mark.parametrize("name", ORDER)
def test_a_part_of_the_report_is_rehearsed(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in QUICKLY.items():
        monkeypatch.setenv(variable, value)
    if name in {"lent", "seen", "hang"} and shutil.which("cc") is None:
        pytest.skip("no C compiler for the fake NVML library")
    part = rehearsed(name, tmp_path)
    told = [line for line in capfd.readouterr().out.splitlines() if line.startswith(("  ", name))]
    assert told
    assert [line for line in told if line.startswith(MARKED) and "(rehearsal)" not in line] == []
    found = {finding.name: finding for finding in part.findings}
    assert found[MEASURES[name]].status in {"passed", "measured"}
    assert part.rehearsal
    if name == "sources":  # all five, each with its first and its last arm, one of them compiled
        rows = [row for finding in part.findings for row in finding.figures["rows"]]
        assert [row["arm"] for row in rows if row["failure"]] == []
        assert [finding.name for finding in part.findings] == list(HEADLINES)
    if name == "restart":
        assert found["from SIGKILL (or start) to the first step"].status == "measured"
    check_that_every_line_is_marked(part)


def check_that_every_line_is_marked(part: Part) -> None:
    """Check that no line of the report with a finding or a figure can be taken for a measurement."""
    lines = markdown([part]).splitlines()
    about = [
        line for line in lines if line.startswith("| ") and not line.startswith(("| what |", "| part |"))
    ]
    assert about
    assert [line for line in about if "rehearsal" not in line] == []
    headings = [line for line in lines if line.startswith("#")]
    assert all("rehearsal" in line for line in headings), headings


def test_a_training_that_ended_before_it_could_be_killed_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def seen_late_at_first(job: Job, step: int, limit_s: float) -> int | None:
        asked.append(step)
        if len(asked) > 1:
            return kill_at(job, step, limit_s)
        assert job.wait(limit_s) == 0
        return None

    kill_at = Job.kill_at
    monkeypatch.setattr(Job, "kill_at", seen_late_at_first)
    context = Context(rehearsal=True, directory=tmp_path, deadline=time.monotonic() + patience(240))
    found = finding_of(context, PROMISED[1], [40])
    assert found.status == "passed", found.summary
    assert asked[:2] == [40, 20]
    assert found.figures["hit"]


def never_done() -> Finding:
    signal.pause()
    raise AssertionError("it was not killed")


def test_a_training_that_is_not_done_in_time_is_not_run(tmp_path: Path) -> None:
    context = Context(rehearsal=True, directory=tmp_path, deadline=time.monotonic())
    assert list(side_by_side({"slow": never_done}, context)) == [not_run("slow", "not done in time")]


def test_a_part_without_time_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--rehearse", "--only", "exact", "--budget", "5s", "--results", str(tmp_path)]) == 0
    assert [line for line in capfd.readouterr().out.splitlines() if "(rehearsal)" not in line] == []
    [part] = read(tmp_path, ORDER)
    assert [finding.status for finding in part.findings] == ["not run"]
    assert "budget left" in part.findings[0].summary


def test_without_a_device_the_report_measures_nothing(tmp_path: Path) -> None:
    """``CUDA_VISIBLE_DEVICES`` hides the devices of this machine, if it has any."""
    argv = [sys.executable, "-m", "scripts.gpu_report", "--only", "several", "--results", str(tmp_path)]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, env=hidden, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience()
    )
    [part] = read(tmp_path, ORDER)
    assert done.returncode == 0, done.stderr
    assert part.findings == (not_run("several", "no CUDA device"),)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that has the launcher alone."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(LAUNCHER, tmp_path / "scripts" / LAUNCHER.name)
    return tmp_path


def typed(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Start the launcher with a Python that has no packages."""
    command = [sys.executable, "-I", "-S", str(checkout / "scripts" / LAUNCHER.name), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience())


def test_a_python_without_torch_takes_that_of_the_checkout(checkout: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "asked: $*"\n')
    python.chmod(0o755)
    assert typed(checkout, "--rehearse").stdout == "asked: -m scripts.gpu_report --rehearse\n"


@pytest.mark.parametrize("words", [(), ("--wheels", "wheels")])
def test_where_nothing_has_torch_the_report_says_what_to_do(checkout: Path, words: tuple[str, ...]) -> None:
    done = typed(checkout, *words)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gpu-report: {sys.executable} has no torch; start this script with one")
    assert len(done.stderr.splitlines()) == 1
