"""Signals that come to the first shell of a container at moments that pass."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from runner.adapters.launch import SUPERVISED_ENTRY
from tests.fakes.daemon.service import until

HEARS = """\
import os, signal
for each in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(each, lambda number, _: os.write(1, signal.Signals(number).name.encode() + bytes([10])))
print("ready", flush=True)
while True:
    signal.pause()
"""
AGAIN = "find_children() {\n"
"""Begins what a shell does in the middle of bringing a signal."""


def _start(ends: ExitStack, root: Path, script: str, *argv: str, **environ: str) -> "subprocess.Popen[bytes]":
    (root / "attempt").mkdir()
    command = ["/bin/sh", "-c", script, "runner", str(root), str(_log(root)), *argv]
    entry = ends.enter_context(subprocess.Popen(command, env={"PATH": os.environ["PATH"], **environ}))
    ends.callback(entry.kill)
    return entry


def _log(root: Path) -> Path:
    return root / "attempt" / "log"


def _lines(root: Path, count: int) -> list[str]:
    def look() -> list[str] | None:
        lines = _log(root).read_text().splitlines() if _log(root).exists() else []
        return lines if len(lines) >= count else None

    return until(look, f"{count} lines")


def test_a_signal_in_the_middle_of_a_stop_comes_after_it(tmp_path: Path) -> None:
    again = f'{AGAIN}[ "$came" ] || {{ came=yes; kill -USR1 $$; }}\n'
    with ExitStack() as ends:
        script = SUPERVISED_ENTRY.replace(AGAIN, again)
        entry = _start(ends, tmp_path, script, "python3", "-c", HEARS, came="")
        assert _lines(tmp_path, 1) == ["ready"]
        program = int(Path(f"/proc/{entry.pid}/task/{entry.pid}/children").read_text())
        ends.callback(os.kill, program, signal.SIGKILL)
        entry.send_signal(signal.SIGTERM)
        assert sorted(_lines(tmp_path, 3)) == ["SIGTERM", "SIGUSR1", "ready"]


def test_signals_before_the_start_of_the_program_come_to_it(tmp_path: Path) -> None:
    start = "env --default-signal=INT,QUIT /bin/sh"
    with ExitStack() as ends:
        script = SUPERVISED_ENTRY.replace(start, f"kill -TERM $$; kill -WINCH $$; {start}")
        entry = _start(ends, tmp_path, script, "sleep", "1000")
        assert entry.wait() == 128 + signal.SIGTERM


def test_the_shell_leaves_all_variables_to_the_program(tmp_path: Path) -> None:
    names = ["main", "n", "claim", "host", "name", "value", "queue", "busy", "stopping", "AFTERWARDS"]
    (tmp_path / "TOKEN").write_text("secret")
    secrets = {"RUNNER_SECRET_ENV": "TOKEN", "RUNNER_SECRETS_DIR": str(tmp_path)}
    with ExitStack() as ends:
        environ = dict.fromkeys(names, "its own") | secrets
        entry = _start(ends, tmp_path, SUPERVISED_ENTRY, "env", **environ)
        assert entry.wait() == 0
    assert {*_log(tmp_path).read_text().splitlines()} >= {f"{name}=its own" for name in names} | {
        "TOKEN=secret"
    }
