"""The launcher of an attempt's processes: variables, logs, signals, and whose end is that of the attempt."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from jobs.contract import Result, RunPaths
from tests.fakes.daemon.brisk_gang import LEAVE_S
from tests.integration.process.jobs.gangs import Gang, first_of_nodes, program

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
    with program(paths, 2, "/bin/sh", "-c", script, brisk=True) as gang:
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
    with program(paths, 2, sys.executable, "-c", script, str(saved), brisk=True) as gang:
        gang.wait_for("ready")
        gang.wait_for_log(1, "ready")
        gang.launcher.send_signal(signal.SIGTERM)
        assert finished(gang) == 128 + signal.SIGTERM
    assert saved.read_text() == "saved"


def test_a_stopped_process_is_named_and_a_request_to_stop_lets_it_go_on(paths: RunPaths) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with program(paths, 2, sys.executable, "-c", script) as gang:
        gang.wait_for("ready")
        gang.wait_for_log(1, "ready")
        os.kill(gang.rank(1), signal.SIGSTOP)
        gang.wait_for("rank 1 of 2 is stopped (SIGSTOP); the others wait for it")
        gang.launcher.send_signal(signal.SIGTERM)
        assert finished(gang) == 75
    found = result(paths)
    assert (found.cause.value, found.rank) == ("stopped", None)
    assert found.note.startswith("rank 1 of 2 had been stopped (SIGSTOP) for ")


PLACE = {"SLURMD_NODENAME": "node7", "CUDA_VISIBLE_DEVICES": "4,5,6"}


def test_a_process_that_was_stopped_when_another_one_failed_is_named_with_its_node_and_device(
    paths: RunPaths,
) -> None:
    script = "echo ready; [ $RANK = 1 ] && exec sleep 600; until [ -e go ]; do sleep 0.05; done; exit 3"
    with program(
        paths, 2, "/bin/sh", "-c", f"cd {str(paths.attempt_dir)!r}; {script}", more=PLACE, brisk=True
    ) as gang:
        gang.wait_for_log(1, "ready")
        os.kill(gang.rank(1), signal.SIGSTOP)
        gang.wait_for("rank 1 of 2 on node7 (GPU 5) is stopped (SIGSTOP)")
        (paths.attempt_dir / "go").touch()
        assert finished(gang) == 3
    found = result(paths)
    assert (found.rank, found.node, found.device) == (0, "node7", "GPU 4")
    assert found.note.startswith("rank 1 of 2 on node7 (GPU 5) had been stopped (SIGSTOP) for ")


def test_of_two_that_do_not_answer_the_one_that_is_stopped_is_named(paths: RunPaths) -> None:
    script = "echo ready; [ $RANK = 0 ] || exec sleep 600; until [ -e go ]; do sleep 0.05; done; exit 95"
    with program(
        paths, 3, "/bin/sh", "-c", f"cd {str(paths.attempt_dir)!r}; {script}", more=PLACE, brisk=True
    ) as gang:
        gang.wait_for_log(2, "ready")
        os.kill(gang.rank(2), signal.SIGSTOP)
        gang.wait_for("rank 2 of 3 on node7 (GPU 6) is stopped (SIGSTOP)")
        (paths.attempt_dir / "go").touch()
        assert finished(gang) == 95
    found = result(paths)
    assert (found.cause.value, found.rank, found.node, found.device) == ("rank_lost", 2, "node7", "GPU 6")


GLOO = "RuntimeError: [/torch/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv"


def test_a_program_that_says_that_it_waited_in_vain_is_not_the_one_that_is_named(paths: RunPaths) -> None:
    script = f"[ $RANK = 1 ] && exec sleep 600; echo '{GLOO}'; exit 1"
    with program(paths, 3, "/bin/sh", "-c", script, brisk=True) as gang:
        assert finished(gang) == 95
    assert (result(paths).cause.value, result(paths).rank) == ("rank_lost", 1)


def test_if_all_have_waited_in_vain_the_first_end_is_that_of_the_attempt(paths: RunPaths) -> None:
    with program(paths, 2, "/bin/sh", "-c", f"echo '{GLOO}'; exit 1") as gang:
        assert finished(gang) == 1


def test_an_exception_is_the_end_though_a_thread_of_a_library_aborts_the_process_after_it(
    paths: RunPaths,
) -> None:
    said = "Traceback (most recent call last):\nKeyError: 3\nterminate called without an active exception"
    script = f"if [ $RANK = 1 ]; then echo '{said}' >&2; kill -ABRT $$; fi; exec sleep 600"
    with program(paths, 2, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 1
        assert "rank 1 of 2 decides the end: exit code 1" in gang.output


@pytest.mark.parametrize("exception", ["Traceback (most recent call last):\nMemoryError\n", ""])
def test_a_code_of_the_contract_is_the_end_though_the_process_is_aborted_while_it_leaves(
    paths: RunPaths, exception: str
) -> None:
    said = f"{exception}attach: exiting with 98: made up\nterminate called without an active exception"
    script = f"if [ $RANK = 1 ]; then echo '{said}' >&2; kill -ABRT $$; fi; exec sleep 600"
    with program(paths, 2, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 98
        assert "rank 1 of 2 decides the end" in gang.output


def test_an_abort_without_an_exception_of_python_stays_an_abort(paths: RunPaths) -> None:
    script = "echo 'terminate called without an active exception' >&2; kill -ABRT $$"
    with program(paths, 1, "/bin/sh", "-c", script) as gang:
        assert finished(gang) == 128 + signal.SIGABRT


def test_a_process_that_does_not_leave_after_a_failure_is_named_beside_it(paths: RunPaths) -> None:
    script = "echo ready; [ $RANK = 1 ] && exec sleep 600; until [ -e go ]; do sleep 0.05; done; exit 3"
    deaf = f"trap '' TERM; cd {str(paths.attempt_dir)!r}; {script}"
    with program(paths, 2, "/bin/sh", "-c", deaf, more=PLACE, brisk=True) as gang:
        gang.wait_for_log(1, "ready")
        (paths.attempt_dir / "go").touch()
        assert finished(gang) == 3
    assert result(paths).rank == 0
    said = "rank 1 of 2 on node7 (GPU 5) did not leave when it was asked, and was killed"
    assert result(paths).note == said


def test_of_processes_that_wait_in_vain_the_silent_one_is_named(paths: RunPaths) -> None:
    script = "[ $RANK = 1 ] || exit 95; exec sleep 600"
    with program(paths, 2, "/bin/sh", "-c", script, brisk=True) as gang:
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


def now() -> int:
    """Return hundredths of a second since the machine was started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 100)


def test_the_first_of_several_nodes_waits_for_the_others(paths: RunPaths) -> None:
    ends = paths.attempt_dir / ".ends"
    with first_of_nodes(paths, 2, 1, "/bin/sh", "-c", "echo $RANK $WORLD_SIZE $GLOO_SOCKET_IFNAME") as gang:
        gang.wait_for("0 2 lo")
        assert gang.launcher.poll() is None
        ends.write_text("left 1\n")
        assert finished(gang) == 0


def test_the_earliest_end_of_all_nodes_decides(paths: RunPaths) -> None:
    paths.rank_log(3).write_text("why rank 3 failed\n")
    ends = paths.attempt_dir / ".ends"
    with first_of_nodes(
        paths, 2, 2, "/bin/sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    ) as gang:
        gang.wait_for("ready")
        earlier = now() - 10
        os.kill(gang.rank(0), signal.SIGTERM)
        ends.write_text(f"end 2 95 {now()}\nend 3 5 {earlier}\nleft 1\n")
        assert finished(gang) == 5
        assert "why rank 3 failed" in gang.output
    assert (result(paths).rank, result(paths).processes) == (3, 4)


def test_a_node_that_says_nothing_is_named_by_its_first_process(paths: RunPaths) -> None:
    with first_of_nodes(paths, 3, 2, "/bin/sh", "-c", "exit 95", brisk=True) as gang:
        (paths.attempt_dir / ".ends").write_text("end 2 95 1\nleft 1\n")
        assert finished(gang) == 95
    assert (result(paths).cause.value, result(paths).rank, result(paths).processes) == ("rank_lost", 4, 6)


def test_a_process_of_another_node_is_named_with_that_node_and_its_device(paths: RunPaths) -> None:
    (paths.attempt_dir / ".place-1").write_text(json.dumps({"name": "node2", "devices": ["2", "3"]}))
    with first_of_nodes(paths, 2, 2, "/bin/sh", "-c", "exec sleep 600") as gang:
        (paths.attempt_dir / ".ends").write_text("end 3 5 1\nleft 1\n")
        assert finished(gang) == 5
        assert "rank 3 of 4 on node2 (GPU 3) decides the end: exit code 5" in gang.output
    assert (result(paths).node, result(paths).device) == ("node2", "GPU 3")


def test_a_process_that_its_own_nodes_launcher_has_found_to_be_stopped_is_named(paths: RunPaths) -> None:
    stopped = "rank 3 of 4 had been stopped (SIGSTOP) for 9 s"
    (paths.attempt_dir / ".lost-1").write_text(json.dumps({"rank": 3, "notes": [stopped]}))
    with first_of_nodes(paths, 2, 2, "/bin/sh", "-c", "exit 95") as gang:
        (paths.attempt_dir / ".ends").write_text("end 2 95 1\nleft 1\n")
        assert finished(gang) == 95
    found = result(paths)
    assert (found.cause.value, found.rank, found.note) == ("rank_lost", 3, stopped)


def test_the_launcher_of_another_node_tells_where_it_is_and_whom_it_waited_for(paths: RunPaths) -> None:
    node = {**PLACE, "RUNNER_NODES": "2", "RUNNER_NODE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    script = "[ $RANK = 3 ] && exec sleep 600; exit 95"
    with program(paths, 2, "/bin/sh", "-c", script, more=node, brisk=True) as gang:
        assert finished(gang) == 95
    place, lost = (json.loads((paths.attempt_dir / name).read_text()) for name in (".place-1", ".lost-1"))
    assert place == {"name": "node7", "devices": ["4", "5", "6"]}
    assert lost == {"rank": 3, "notes": []}
