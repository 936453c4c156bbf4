"""The shell beside a plain process, at moments that pass."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from runner.adapters.launch import SIGNALS
from runner.adapters.process.executor import REAPER, SHIM, ProcessExecutor, ProcessSettings
from runner.adapters.process.records import ProcessRecord
from runner.base.errors import Unavailable
from runner.core.ports.executor import Alive, Key
from tests.fakes.daemon.service import until

LOOK = "look() {\n"
ENDS = """\
look() {
    if [ -n "${looks-}" ] && [ ! -e "$directory/ended" ]; then
        kill -s KILL "$1"
        while read -r _ _ state _ <"/proc/$1/stat" && [ "$state" != Z ]; do :; done
        read -r _ <"/proc/gone"
        : >"$directory/ended"
    fi
"""
"""A process that is left ends after the shim has listed what it is to end, and before it looks at it."""


def _run(ends: ExitStack, root: Path, shim: str, signals: str, *argv: str) -> "subprocess.Popen[bytes]":
    (root / "process").mkdir()
    (root / "signals.sh").write_text(signals)
    (root / "process" / "shim.sh").write_text(shim)
    record = root / "record"
    record.mkdir()
    (record / "environment").touch()
    command = [
        sys.executable,
        "-c",
        REAPER,
        "/bin/sh",
        str(root / "process" / "shim.sh"),
        str(record),
        "",
        str(root / "left"),
        *argv,
    ]
    process = ends.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE))
    ends.callback(process.kill)
    return process


def _is_there(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def test_what_becomes_an_orphan_between_two_looks_ends_too(tmp_path: Path) -> None:
    left = f"sleep 1000 & echo $! >{tmp_path}/pid; wait"
    script = f"(sh -c '{left}' &) ; until [ -s {tmp_path}/pid ]; do sleep 0.01; done; exit 3"
    with ExitStack() as ends:
        shim = _run(ends, tmp_path, SHIM.read_text(), SIGNALS.replace(LOOK, ENDS), "sh", "-c", script)
        assert (shim.wait(), shim.stderr and shim.stderr.read()) == (0, b"")
        orphan = int((tmp_path / "pid").read_text())
        is_left = _is_there(orphan)
        if is_left:
            os.kill(orphan, signal.SIGKILL)
        assert not is_left
    assert int((tmp_path / "record" / "exit").read_text()) == 3
    assert (tmp_path / "left").read_text() == "sh\nsleep\n"


def test_of_two_signals_before_the_start_none_is_lost(tmp_path: Path) -> None:
    shim = SHIM.read_text().replace("main=$!\n", "kill -TERM $$; kill -WINCH $$\nmain=$!\n")
    with ExitStack() as ends:
        assert _run(ends, tmp_path, shim, SIGNALS, "sleep", "1000").wait() == 0
    assert int((tmp_path / "record" / "exit").read_text()) == 128 + signal.SIGTERM


def test_a_signal_to_an_attempt_that_is_claimed_and_not_begun_is_not_lost(tmp_path: Path) -> None:
    executor, key = ProcessExecutor(ProcessSettings("i1", tmp_path / "records")), Key("i1", "j1", 1)
    record = ProcessRecord(tmp_path / "records" / "runner-i1-j1-1")
    record.create(key)
    heard = "import os, signal; signal.signal(15, lambda *_: (os.write(1, b'heard' + bytes([10])), exit()))"
    with ExitStack() as ends:
        argv = [
            "python3",
            "-c",
            f"{heard}; print(open('/proc/self/stat').read(), flush=True); signal.pause()",
        ]
        shim = ends.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        ends.callback(shim.kill)
        assert shim.stdout is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (record.path / "shim").write_text(boot + shim.stdout.readline())
        assert executor.observe() == (Alive(key, None),)
        with pytest.raises(Unavailable, match="has not begun"):
            executor.signal(key, signal.SIGKILL)
        executor.signal(key, signal.SIGTERM)
        until(lambda: shim.poll() is not None, "the shim hears it")
        assert "heard" in shim.stdout.read()
        executor.signal(key, signal.SIGKILL)
