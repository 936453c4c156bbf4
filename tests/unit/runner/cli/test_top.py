"""``runner top`` in a pipe and on a terminal, which it leaves as it was."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke
from tests.unit.runner.cli.test_top_screen import an_overview

RUNNER = (sys.executable, "-m", "runner.cli.main")
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _machine(api: FakeApi) -> None:
    api.answers["overview"] = an_overview()


@dataclass
class Terminal:
    """A terminal with a command on it."""

    ours: int
    theirs: int
    command: subprocess.Popen[bytes]
    seen: bytes = b""

    def until(self, look: Callable[[bytes], bool], what: str) -> bytes:
        """Read until what was written since the last time is as wanted, and return it."""
        deadline, fresh = time.monotonic() + PATIENCE_S, b""
        while not look(fresh):
            ready, _, _ = select.select([self.ours], [], [], 0.1)
            fresh += os.read(self.ours, 65536) if ready else b""
            assert time.monotonic() < deadline, (what, fresh)
        self.seen += fresh
        return fresh

    def shows(self, text: str) -> bytes:
        return self.until(lambda fresh: text.encode() in fresh, text)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def left(self) -> int:
        """Return the exit code, and take in the last that was written."""
        deadline = time.monotonic() + PATIENCE_S
        ended = False
        while not ended:  # somebody must read, or it waits for room on the terminal
            ended = self.command.poll() is not None
            while select.select([self.ours], [], [], 0 if ended else 0.05)[0]:
                self.seen += os.read(self.ours, 65536)
            assert time.monotonic() < deadline
        return self.command.returncode


@contextmanager
def terminal(*args: str, columns: int = 140, lines: int = 30) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}}
    environ = {**known, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "TTY": os.ttyname(theirs)}
    # The first terminal that the leader of a session opens is its controlling one: Ctrl-C works there.
    shell = ("/bin/sh", "-c", 'exec "$@" <"$TTY" >"$TTY" 2>&1', "sh")
    with subprocess.Popen([*shell, *RUNNER, "top", *args], env=environ, start_new_session=True) as command:
        try:
            yield Terminal(ours, theirs, command)
        finally:
            command.kill()
            os.close(ours)
            os.close(theirs)


def test_a_pipe_gets_one_screen_with_everything_and_no_colours(invoke: Invoke) -> None:
    result = invoke("top")
    assert result.exit_code == 0
    assert "used by a foreign process (pid 4121, uid 1007, python)" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_is_what_the_daemon_answered(api: FakeApi, invoke: Invoke) -> None:
    assert json.loads(invoke("top", "--json").stdout) == api.answers["overview"]
