"""Output for people: the same commands with a terminal for standard output."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.fakes.daemon.api import FakeApi, an_attempt, ended

RUNNER = (sys.executable, "-m", "runner.cli.main")


def seen(*args: str) -> str:
    """Return the output of a command on a terminal of 140 columns, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written("xterm", *args))


def written(kind: str, *args: str) -> str:
    """Return all that a command writes to a terminal of some kind."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 140, 0, 0))
    environ = {**os.environ, "TERM": kind}
    with subprocess.Popen(
        [*RUNNER, *args], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as command:
        os.close(theirs)
        text = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert command.returncode == 0
    return text.decode().replace("\r", "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the other end is closed
        return b""


def test_a_list_is_a_table_with_a_header_and_ages(api: FakeApi) -> None:
    api.add("train")
    head, row = seen("list").splitlines()
    assert head.split()[:4] == ["JOB", "NAME", "OWNER", "STATE"]
    assert row.split()[:4] == ["000001", "train", "ada", "running"]


def test_a_job_is_shown_with_its_attempts(api: FakeApi) -> None:
    api.add("train", attempts=[an_attempt(1, cause="killed", exit_code=137)])
    text = seen("show", "train")
    assert "CAUSE" in text
    assert "killed" in text


def test_events_are_lines_with_a_time_for_people(api: FakeApi) -> None:
    api.events = [
        {
            "seq": 1,
            "job": "1",
            "name": "train",
            "at": "2026-03-01T12:00:00.000Z",
            "kind": "x",
            "text": "a\x1bb",
        }
    ]
    assert seen("events") == "2026-03-01T12:00:00  train             a\\x1bb\n"


def test_following_shows_a_line_that_moves_and_then_how_it_ended(api: FakeApi, job_file: Path) -> None:
    api.turns["wait"].extend([lambda: None, lambda: None, lambda: api.jobs["000001"].update(ended())])
    text = seen("submit", "--follow", str(job_file))
    assert "submitted train as 000001" in text
    assert "train: running (attempt 1 on cpu)" in text
    assert text.rstrip().endswith("train: succeeded: completed")


@pytest.mark.parametrize("kind", ["dumb", "", "unknown"])
def test_a_terminal_that_only_prints_lines_gets_no_escapes(api: FakeApi, job_file: Path, kind: str) -> None:
    api.turns["wait"].extend([lambda: None, lambda: api.jobs["000001"].update(ended())])
    story = written(kind, "submit", "--follow", str(job_file))
    assert story.rstrip().endswith("train: succeeded: completed")
    assert "\x1b" not in story + written(kind, "list") + written(kind, "show", "train")
    assert "\x1b" in written("xterm", "list")


# --- runner run, with a person at the terminal


class Typist:
    """A command on a terminal, and what a person types and sees there."""

    def __init__(self, *args: str) -> None:
        self._ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm"}
        self.command = subprocess.Popen(
            [*RUNNER, *args],
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  takes no lock
        )
        os.close(theirs)
        self.text = ""

    def await_text(self, wanted: str) -> None:
        """Read until a text has appeared; the test's time limit ends a wait in vain."""
        while wanted not in self.text:
            piece = _read(self._ours)
            assert piece, f"{wanted!r} did not appear in {self.text!r}"
            self.text += piece.decode()

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Return the exit code, with all output read."""
        while piece := _read(self._ours):
            self.text += piece.decode()
        os.close(self._ours)
        return self.command.wait()

    def hang_up(self) -> int:
        """Close the terminal, and return the exit code."""
        os.close(self._ours)
        return self.command.wait()


CTRL_C = "\x03"


@pytest.mark.parametrize(
    ("keys", "code", "state"),
    [("c\n", 11, "finished"), ("d\n", 130, "running"), ("\n", 130, "running"), (CTRL_C, 130, "running")],
)
def test_ctrl_c_asks_whether_to_detach_or_to_cancel(api: FakeApi, keys: str, code: int, state: str) -> None:
    api.logs["000001", 1] = b"step 1\n"
    person = Typist("run", "true")
    person.await_text("step 1")
    person.type(CTRL_C)
    person.await_text("(d)etach or (c)ancel?")
    person.type(keys)
    assert person.end() == code
    assert api.jobs["000001"]["state"] == state
    assert person.text.count("step 1") == 1
    assert ("goes on" in person.text) == (state == "running")


def test_a_terminal_that_goes_away_leaves_the_job(api: FakeApi) -> None:
    api.logs["000001", 1] = b"step 1\n"
    person = Typist("run", "true")
    person.await_text("step 1")
    assert person.hang_up() != 0
    assert api.jobs["000001"]["state"] == "running"
