"""Jobs are let go at one moment in every queue, and nothing of a queue is outside its directory."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.cases import burst, latency
from bench.rivals import gflow, runner
from bench.support import packages
from bench.support.jobfile import CPUS
from bench.support.result import CannotMeasure, NotMeasured
from bench.support.scratch import Effort, open_scratch
from jobs.contract import Program
from runner.files.job.load import parse_job


def test_a_program_that_tells_no_time_is_not_measured(tmp_path: Path) -> None:
    stamp = latency.StartTimestamp(tmp_path)
    (tmp_path / "started").write_text("later\n")
    with pytest.raises(CannotMeasure, match="no time"):
        stamp.written()


def test_our_job_file_is_the_command_and_takes_its_slots() -> None:
    job = parse_job(runner.job_file("x", ("sh", "-c", 'echo "a: b" > c'), CPUS).encode(), Path("/job.yaml"))
    assert isinstance(job.workload, Program)
    assert job.workload.command == ("sh", "-c", 'echo "a: b" > c')
    assert job.resources.cpus == CPUS


def test_queues_that_need_a_second_for_a_job_get_fewer_unless_all_is_wanted() -> None:
    sizes = {name: burst.job_count(Effort(), name) for name in (burst.OURS, *burst.RIVALS)}
    assert sizes[burst.OURS] == sizes["task-spooler"] == Effort().burst
    assert sizes["gflow"] < sizes["Slurm, tuned"] < Effort().burst
    assert burst.job_count(Effort(whole=True), "gflow") == Effort().burst
    assert burst.job_count(Effort(burst=4), "gflow") == 4


def test_gflow_keeps_everything_in_its_directory(tmp_path: Path) -> None:
    environment = gflow.prepare_home(tmp_path, Path("/bin"))
    places = [name for name in environment if name.startswith("XDG_") or name in {"HOME", "TMUX_TMPDIR"}]
    assert len(places) >= 7
    own = {name: environment[name] for name in places if environment[name].startswith(str(tmp_path))}
    assert {"HOME", "TMUX_TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} <= set(own)
    assert not {"TMUX", "TMUX_PANE"} & set(environment)
    assert 'host = "localhost"' in (tmp_path / "config" / "gflow" / "gflow.toml").read_text()


def test_gflow_is_not_fetched_where_that_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_NO_INSTALL", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SYSTEM_PROGRAMS", ())
    with pytest.raises(CannotMeasure, match="gflowd is not installed, and RUNNER_NO_INSTALL=1 forbids"):
        gflow.install(tmp_path, may_install=True)


def test_a_queue_that_cannot_be_had_becomes_a_line_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(packages, "SYSTEM_PROGRAMS", ())
    with open_scratch(Effort(may_install=False)) as scratch, ExitStack() as stack:
        lines = list(burst.start_rivals("burst", "ours", scratch, stack, {}))
    missing = [line.label for line in lines if isinstance(line, NotMeasured)]
    assert missing == [f"ours beside {name}" for name in burst.RIVALS]
