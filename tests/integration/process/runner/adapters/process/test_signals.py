"""A shell is told of a stop after its foreground command, also at the moment at which that ends."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from runner.adapters.launch import SIGNALS
from tests.fakes.daemon.service import until

SURVEYS = (
    'eval "$1"; told=" " waited=" "; while read -r _; do survey 15 "$2"; echo "$listeners:$attended"; done'
)
SHELL = (
    "trap 'echo trapped' TERM; python3 -c 'import signal; signal.signal(15, print); signal.pause()'; exit $?"
)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


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
        children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
        program = int(until(lambda: children.read_text().split(), "the program starts")[0])
        until(lambda: _listens(program), "the program listens")
        assert _survey(surveys) == f"{program}: {shell.pid}"
        shell.send_signal(signal.SIGSTOP)
        until(lambda: _state(shell.pid) == "T", "the shell is stopped")
        os.kill(program, signal.SIGKILL)
        until(lambda: _state(program) == "Z", "the program has ended")
        assert _survey(surveys) == f": {shell.pid}"
        shell.send_signal(signal.SIGCONT)
        assert shell.wait() == 128 + signal.SIGKILL
