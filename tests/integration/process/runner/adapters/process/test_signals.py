"""Signals at moments that pass: to shells between their commands, and before a program has begun."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from runner.adapters.launch import SIGNALS, SUPERVISED_ENTRY
from tests.fakes.daemon.service import until

SURVEYS = """\
eval "$1"; told=" " waited=" " forked=" "
while read -r _; do survey 15 "$2"; echo "$listeners:$attended"; done
"""
SHELL = (
    "trap 'echo trapped' TERM; python3 -c 'import signal; signal.signal(15, print); signal.pause()'; exit $?"
)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _listens(pid: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1) and status["Name"] == "python3"


def _survey(surveys: "subprocess.Popen[bytes]") -> str:
    assert surveys.stdin is not None
    assert surveys.stdout is not None
    surveys.stdin.write(b"\n")
    surveys.stdin.flush()
    return surveys.stdout.readline().decode().strip()


def test_a_shell_whose_command_has_ended_and_is_not_yet_waited_for_is_no_listener() -> None:
    with ExitStack() as ends:
        shell = ends.enter_context(subprocess.Popen(["bash", "-c", SHELL]))
        ends.callback(shell.kill)
        argv = ["sh", "-c", SURVEYS, "sh", SIGNALS, str(shell.pid)]
        surveys = ends.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        ends.callback(surveys.kill)
        program = int(until(lambda: _children(shell.pid), "the program starts")[0])
        until(lambda: _listens(program), "the program listens")
        assert _survey(surveys) == f"{program}: {shell.pid}"
        shell.send_signal(signal.SIGSTOP)
        until(lambda: _state(shell.pid) == "T", "the shell is stopped")
        os.kill(program, signal.SIGKILL)
        until(lambda: _state(program) == "Z", "the program has ended")
        assert _survey(surveys) == f": {shell.pid}"
        shell.send_signal(signal.SIGCONT)
        assert shell.wait() == 128 + signal.SIGKILL


STOPS = 'eval "$1"; begin_stop "$2"; while echo "$told" && read -r _; do go_on_stopping "$2"; done'
FORKING = """\
import ctypes, os, signal
ctypes.CDLL(None).prctl(15, b"sh")  # to the eye a shell with a handler, which has forked
signal.signal(signal.SIGTERM, lambda number, frame: os.write(1, b"trapped" + bytes([10])))
hear = "signal.signal(15, lambda *_: (os.write(1, b'heard' + bytes([10])), os._exit(0)))"
program = "import os, signal; " + hear
goes_on, begins = os.pipe()
child = os.fork()
if child:
    print(child, flush=True)
    input()
    os.write(begins, b"!")
    os.waitpid(child, 0)
else:
    os.read(goes_on, 1)
    os.execlp("python3", "python3", "-c", program + "; print('ready', flush=True); signal.pause()")
"""


def _stops_of(ends: ExitStack, pid: int) -> "subprocess.Popen[bytes]":
    argv = ["sh", "-c", STOPS, "sh", SIGNALS, str(pid)]
    stops = ends.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    ends.callback(stops.kill)
    return stops


def _shell(ends: ExitStack, *argv: str) -> "subprocess.Popen[bytes]":
    shell = ends.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    ends.callback(shell.kill)
    return shell


def test_what_a_shell_has_just_forked_is_told_when_it_has_become_a_program() -> None:
    with ExitStack() as ends:
        shell = _shell(ends, "python3", "-c", FORKING)
        assert shell.stdin is not None
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        stops = _stops_of(ends, shell.pid)
        assert stops.stdout is not None
        assert stops.stdout.readline().split() == []
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == b"ready\n"
        assert _survey(stops).split() == [str(child)]
        assert shell.stdout.readline() == b"heard\n"


LAUNCHER = """\
import os, subprocess, sys, time
hear = "import os, signal; signal.signal(15, lambda *_: (os.write(1, b'heard' + bytes([10])), os._exit(0)))"
program = subprocess.Popen([sys.executable, "-c", hear + "; print('ready', flush=True); signal.pause()"])
while not os.path.exists(sys.argv[1]):
    pass
while program.poll() is None:
    time.sleep(1000)
"""


def test_a_launcher_that_is_awake_is_looked_at_again_before_it_is_told(tmp_path: Path) -> None:
    with ExitStack() as ends:
        launcher = _shell(ends, sys.executable, "-c", LAUNCHER, str(tmp_path / "sleep"))
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        stops = _stops_of(ends, launcher.pid)
        assert stops.stdout is not None
        assert stops.stdout.readline().split() == []
        (tmp_path / "sleep").touch()
        until(lambda: _state(launcher.pid) == "S", "the launcher sleeps")
        program = _children(launcher.pid)  # it ends soon after it is told
        assert _survey(stops).split() == program
        assert launcher.stdout.readline() == b"heard\n"


def test_a_program_that_stays_awake_beside_another_is_told_itself(tmp_path: Path) -> None:
    with ExitStack() as ends:
        deaf = LAUNCHER.replace("signal.signal(15", "signal.signal(10")
        busy = _shell(ends, sys.executable, "-c", deaf, str(tmp_path / "never"))
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"ready\n"
        ends.callback(os.kill, int(_children(busy.pid)[0]), signal.SIGKILL)
        stops = _stops_of(ends, busy.pid)
        assert stops.stdout is not None
        told = stops.stdout.readline().decode().split()
        while not told:
            told = _survey(stops).split()
        assert told == [str(busy.pid)]
        assert busy.wait() == -signal.SIGTERM


def test_a_part_of_a_script_that_stays_a_shell_is_told_at_the_second_look() -> None:
    with ExitStack() as ends:
        shell = _shell(ends, "sh", "-c", "(trap 'echo heard; exit' TERM; echo ready; read -r _); exit 0")
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"ready\n"
        stops = _stops_of(ends, shell.pid)
        assert stops.stdout is not None
        assert stops.stdout.readline().split() == []
        program = _children(shell.pid)  # it ends soon after it is told
        assert _survey(stops).split() == program
        assert shell.stdout.readline() == b"heard\n"


TELLS_AGAIN = """
import os, signal, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
count = 0
def hear(*_):
    global count
    count += 1
    if count == 1:
        os.kill(os.getppid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, hear)
print("ready", flush=True)
while not count:
    signal.pause()
time.sleep(0.3)  # the shell looks again meanwhile
print("heard", count, flush=True)
"""


@pytest.mark.parametrize("_again", range(6))
def test_a_second_request_to_stop_that_comes_during_the_first_tells_the_program_nothing(
    tmp_path: Path, _again: int
) -> None:
    """The program asks at the moment at which it is told, mostly before the shell goes on."""
    (tmp_path / "attempt").mkdir()
    (tmp_path / "program.py").write_text(TELLS_AGAIN)
    log, core = tmp_path / "attempt" / "log", min(os.sched_getaffinity(0))
    argv = ["/bin/sh", "-c", SUPERVISED_ENTRY, "runner", str(tmp_path), str(log)]
    argv += [sys.executable, "-S", str(tmp_path / "program.py")]
    with subprocess.Popen(argv) as shell:
        until(lambda: log.is_file() and "ready" in log.read_text(), "the program listens")
        os.sched_setaffinity(shell.pid, {core})
        os.setpriority(os.PRIO_PROCESS, shell.pid, 10)  # behind the program
        shell.terminate()
        assert shell.wait() == 75
    assert log.read_text() == "ready\nheard 1\n"


COUNTS = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
signal.signal(signal.SIGUSR1, lambda *_: heard.append("USR1"))
print("ready", flush=True)
while heard.count("TERM") < 1 or heard.count("USR1") < 1:
    signal.pause()
time.sleep(0.5)  # the shell looks again meanwhile
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(heard.count("TERM")))
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""
BRINGS = """
runner_main=
listen
sh -c 'trap : TERM; "$@"; exit 0' sh "$@" &
runner_main=$!
while wait "$runner_main"; kill -0 "$runner_main" 2>/dev/null; do :; done
"""
ONCE = '{ [ -n "$once" ] || { once=yes && kill -USR1 $$; }; }'


@pytest.mark.parametrize(
    ("moment", "spoiled"),
    [
        ('kill "-$number" "$pid"', f'kill "-$number" "$pid"; {ONCE}'),
        ('look "$child" "$1"', f'look "$child" "$1" && {ONCE}'),
    ],
    ids=["told", "looked-at"],
)
def test_another_signal_in_the_middle_of_a_stop_lets_a_program_be_told_once(
    tmp_path: Path, moment: str, spoiled: str
) -> None:
    """The shell signals itself at that moment of its trap, so another trap comes within it."""
    assert moment in SIGNALS
    signals, count = "once=\n" + SIGNALS.replace(moment, spoiled), tmp_path / "count"
    with ExitStack() as ends:
        argv = ["sh", "-c", signals + BRINGS, "sh", sys.executable, "-S", "-c", COUNTS, str(count)]
        shell = ends.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True))
        ends.callback(os.killpg, shell.pid, signal.SIGKILL)
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"ready\n"
        shell.terminate()
        until(count.is_file, "the program is told", 20)
    assert count.read_text() == "1"
