"""What a person sees: the same commands with a terminal for standard output."""

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
    """Return what a command writes to a terminal of 140 columns, without colours."""
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
