"""The launcher of an attempt's processes: variables, logs, signals, and whose end is that of the attempt."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from jobs.contract import Result, RunPaths
from jobs.inside.gang import LEAVE_S
from tests.integration.process.jobs.gangs import Gang, program

SAY = 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR"'


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run dir", 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    return paths


def result(paths: RunPaths) -> Result:
    return Result.model_validate_json(paths.result.read_bytes())


def finished(gang: Gang) -> int:
    """Return the exit code, after a check that no process is left."""
    code = gang.end()
    with pytest.raises(ProcessLookupError):
        os.killpg(gang.launcher.pid, 0)
    return code


def test_each_process_knows_its_place_and_has_a_log(paths: RunPaths) -> None:
    with program(paths, 3, "/bin/sh", "-c", SAY) as gang:
        assert finished(gang) == 0
        assert gang.output == "rank 0 of 3, local 0 of 3, 127.0.0.1\n"
        assert gang.log(2) == "rank 2 of 3, local 2 of 3, 127.0.0.1\n"
    assert not paths.result.exists()


def test_the_first_failure_is_the_end_and_the_others_are_asked_to_leave(paths: RunPaths) -> None:
    script = "if [ $RANK = 1 ]; then echo why >&2; exit 3; fi; exec sleep 600"
    with program(paths, 2, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 3
        assert "the log of rank 1 ends with:\nwhy\n" in gang.output
        assert "rank 1 of 2 decides the end: exit code 3" in gang.output
    assert (result(paths).rank, result(paths).processes) == (1, 2)


def test_a_process_that_does_not_leave_is_killed(paths: RunPaths) -> None:
    script = 'trap "" TERM; [ $RANK = 0 ] || kill -KILL $$; exec sleep 600'
    with program(paths, 2, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 128 + signal.SIGKILL
        assert "rank 1 of 2 decides the end: SIGKILL" in gang.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_all_processes_and_75_is_an_agreed_end(paths: RunPaths, number: int) -> None:
    script = (
        "import signal, sys\n"
        f"signal.signal({number}, lambda *_: sys.exit(75))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with program(paths, 2, sys.executable, "-c", script) as gang:
        gang.wait_for("ready")
        gang.wait_for_log(1, "ready")
        gang.launcher.send_signal(number)
        assert finished(gang) == 75
    assert not paths.result.exists()


def test_a_process_that_dies_of_the_stop_does_not_hurry_the_one_that_saves(paths: RunPaths) -> None:
    script = (
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        f"    time.sleep({LEAVE_S} + 0.5)\n"
        "    pathlib.Path(sys.argv[1]).write_text('saved')\n"
        "    sys.exit(0)\n"
        "if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    saved = paths.attempt_dir / "saved"
    with program(paths, 2, sys.executable, "-c", script, str(saved)) as gang:
        gang.wait_for("ready")
        gang.wait_for_log(1, "ready")
        gang.launcher.send_signal(signal.SIGTERM)
        assert finished(gang) == 128 + signal.SIGTERM
    assert saved.read_text() == "saved"


def test_of_processes_that_wait_in_vain_the_silent_one_is_named(paths: RunPaths) -> None:
    script = "[ $RANK = 1 ] || exit 95; exec sleep 600"
    with program(paths, 2, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 95
    assert (result(paths).cause.value, result(paths).rank) == ("rank_lost", 1)


def test_what_the_failed_process_says_takes_the_place_of_what_the_first_one_says(paths: RunPaths) -> None:
    (paths.attempt_dir / "rank-1.result.json").write_text(
        json.dumps({"cause": "non_finite", "message": "nan"})
    )
    paths.result.write_text(json.dumps({"cause": "rank_lost", "message": "a peer is gone", "step": 7}))
    with program(paths, 2, "/bin/sh", "-c", "[ $RANK = 1 ] && exit 97; exit 95") as gang:
        assert finished(gang) == 97
    found = result(paths)
    assert (found.cause.value, found.message, found.step, found.rank) == ("non_finite", "nan", 7, 1)


def test_a_program_that_is_not_there_ends_as_in_a_shell(paths: RunPaths) -> None:
    with program(paths, 2, "/no/such/program") as gang:
        assert finished(gang) == 127
        assert "/no/such/program: No such file or directory" in gang.output


def test_processes_die_with_their_launcher(paths: RunPaths) -> None:
    with program(paths, 2, "/bin/sh", "-c", "echo ready; exec sleep 600") as gang:
        gang.wait_for("ready")
        ranks = [gang.rank(0), gang.rank(1)]
        os.kill(gang.launcher.pid, signal.SIGKILL)
        gang.end()
        for pid in ranks:
            gang.wait_until_dead(pid)
            assert not Path(f"/proc/{pid}/exe").exists()
