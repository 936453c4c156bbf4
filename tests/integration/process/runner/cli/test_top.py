"""``runner top`` in a pipe and on a terminal, which it leaves as it was."""

import fcntl
import os
import pty
import re
import select
import signal
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
from tests.fakes.patience import patience
from tests.unit.runner.cli.test_top_screen import a_job, an_overview

RUNNER = (sys.executable, "-m", "runner.cli.main")
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


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
        deadline, fresh = time.monotonic() + patience(), b""
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
        deadline = time.monotonic() + patience()
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


def modes(terminal: Terminal) -> list[object]:
    return termios.tcgetattr(terminal.theirs)


@pytest.mark.parametrize("key", [b"q", b"Q", b"\x03", b"\x04"])
def test_a_key_leaves_and_gives_the_terminal_back(key: bytes) -> None:
    with terminal() as screen:
        before = modes(screen)
        screen.shows("waits for 2 linked GPUs")
        assert modes(screen) != before
        os.write(screen.ours, key)
        assert screen.left() == 0
        assert modes(screen) == before
        assert screen.seen.index(ENTER) < screen.seen.index(LEAVE)
        assert screen.seen.rstrip().endswith(LEAVE)


def test_a_signal_leaves_and_gives_the_terminal_back() -> None:
    with terminal() as screen:
        before = modes(screen)
        screen.shows("UTILISATION")
        screen.command.send_signal(signal.SIGTERM)
        assert screen.left() == 128 + signal.SIGTERM
        assert modes(screen) == before
        assert LEAVE in screen.seen


def test_other_keys_do_nothing() -> None:
    with terminal() as screen:
        screen.shows("UTILISATION")
        os.write(screen.ours, b"x\x1b[A ")
        screen.shows("UTILISATION")
        assert screen.command.poll() is None


def test_a_new_size_is_drawn_at_once() -> None:
    with terminal(columns=140) as screen:
        screen.shows("waits for 2 linked GPUs")
        screen.resize(40, 10)
        drawn = screen.until(lambda fresh: b"\x1b[J" in fresh and b"linked" not in fresh, "a narrow screen")
        assert b"UTILISA" in drawn


def test_a_change_is_drawn_and_what_is_left_to_do_is_known_after_a_while(api: FakeApi) -> None:
    steps = iter(range(10, 400, 10))

    def goes_on() -> None:
        step = next(steps)
        progress = {"phase": "train", "time": 1893499190.0 + step / 10, "step": step, "total_steps": 400}
        api.answers["overview"] = an_overview(jobs=[a_job(progress=progress)])

    api.turns["overview"].extend([goes_on] * 20)
    with terminal() as screen:
        assert b"37s" not in screen.shows("10/400")
        assert b"400" in screen.shows("37s")  # for 370 steps, at ten steps a second


def test_a_daemon_that_leaves_is_said_and_looked_for_again(api: FakeApi) -> None:
    with terminal(columns=300) as screen:
        screen.shows("UTILISATION")
        shut = api.socket_path.with_suffix(".away")
        api.socket_path.rename(shut)
        screen.shows("trying again")
        shut.rename(api.socket_path)
        screen.until(lambda fresh: _whole(fresh) and b"trying again" not in _last(fresh), "it is back")
        os.write(screen.ours, b"q")
        assert screen.left() == 0


def test_stopped_for_a_while_it_gives_the_terminal_to_the_shell_and_takes_it_again() -> None:
    with terminal() as screen:
        before = modes(screen)
        screen.shows("UTILISATION")
        screen.command.send_signal(signal.SIGTSTP)
        screen.until(lambda fresh: LEAVE in fresh, "the terminal is given back")
        screen.command.send_signal(signal.SIGCONT)
        screen.until(
            lambda fresh: ENTER in screen.seen.partition(LEAVE)[2] + fresh and b"\x1b[J" in fresh,
            "it is drawn again",
        )
        os.write(screen.ours, b"q")
        assert screen.left() == 0
        assert modes(screen) == before


def test_once_prints_one_screen_of_the_terminals_width() -> None:
    with terminal("--once", columns=60) as screen:
        text = screen.shows("waits for 2")
        assert screen.left() == 0
        assert ENTER not in text + screen.seen
        assert max(map(len, _bare(screen.seen).splitlines())) <= 60


def _whole(written: bytes) -> bool:
    return written.endswith(b"\x1b[J") and b"\x1b[H" in written


def _last(written: bytes) -> bytes:
    """Return the frame that was drawn last."""
    return written.rpartition(b"\x1b[H")[2]


def _bare(written: bytes) -> str:
    return re.sub(r"\x1b\[\d*m", "", written.decode()).replace("\r", "")
