"""Jobs are let go at one moment in every queue, and nothing of a queue is outside its directory."""

import subprocess
import time
from pathlib import Path

import pytest

from bench.cases import latency
from bench.rivals.protocol import BlockingJob, run_command
from bench.support.result import CannotMeasure
from tests.fakes.patience import patience


def test_the_program_at_the_gate_ends_when_it_is_let_go_and_not_before(tmp_path: Path) -> None:
    gate = BlockingJob(tmp_path)
    with subprocess.Popen(gate.argv) as program:
        gate.await_start()
        assert program.poll() is None
        gate.release()
        assert program.wait(patience()) == 0


def test_a_program_tells_when_it_was_started(tmp_path: Path) -> None:
    stamp, before = latency.StartTimestamp(tmp_path), time.time()
    subprocess.run(stamp.argv, check=True)
    assert before <= stamp.written() <= time.time()


def test_a_command_that_fails_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="sh ended with exit code 3: no room"):
        run_command(["sh", "-c", "echo no room >&2; exit 3"], {}, tmp_path)
