"""Somebody at a terminal, who types commands of the runner and reads the screen."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect

from tests.fakes.daemon.service import RUNNER, Service
from tests.fakes.patience import patience

ROWS, COLUMNS = 31, 101
LEAVE = "\x10\x11"
"""Ctrl-p Ctrl-q."""


@contextmanager
def typing(daemon: Service, *arguments: str) -> Iterator[pexpect.spawn]:
    """Type a command at a terminal of 31 lines and 101 columns."""
    program, *options = RUNNER
    screen = pexpect.spawn(
        program,
        [*options, *arguments],
        env={**os.environ, **daemon.environ, "TERM": "xterm", "PS1": "$ "},
        dimensions=(ROWS, COLUMNS),
        timeout=patience(),
        encoding="utf-8",
        cwd=str(daemon.root),
        echo=False,
    )
    screen.delaybeforesend = None
    try:
        yield screen
    finally:
        screen.close(force=True)


def code_of(screen: pexpect.spawn) -> int | None:
    """Return the exit code of a command that ends now."""
    screen.expect(pexpect.EOF)
    screen.wait()
    found: int | None = screen.exitstatus
    return found


def show_two(daemon: Service, cpus: str, *options: str) -> int:
    """Use a shell: prompt, window size, Ctrl-C; leave it, kill the daemon, go back; return its exit code."""
    with typing(daemon, "shell", "-c", cpus, "--no-code", *options, "--", "/bin/sh") as screen:
        screen.expect(r"\$ ")
        screen.sendline("nproc; stty size; id -u")
        screen.expect(f"{ROWS} {COLUMNS}")
        screen.expect(r"\$ ")
        screen.setwinsize(40, 120)
        screen.sendline("while [ \"$(stty size)\" != '40 120' ]; do sleep 0.05; done; echo re''sized")
        screen.expect("resized")
        screen.expect(r"\$ ")
        screen.sendline("sh -c \"echo be''gun; exec sleep 1000\"")
        screen.expect("begun")
        screen.sendintr()
        screen.expect(r"\$ ")
        screen.sendline("echo fr''ee")
        screen.expect("free")
        screen.expect(r"\$ ")
        screen.send(LEAVE)
        screen.expect("left; runner attach ([0-9]+) main goes back")
        job_id = screen.match.group(1)
        assert code_of(screen) == 0
    daemon.kill()
    daemon.start()
    with typing(daemon, "attach", job_id) as screen:
        screen.expect("free")  # what was written before is repeated
        screen.expect(r"\$ ")
        screen.sendline("exit 7")
        assert code_of(screen) == 7
    job = daemon.ends(job_id)
    assert job["attempts"][-1]["exit_code"] == 7
    assert len(job["attempts"]) == 1
    asked = job["revision"]["job"]
    assert (asked["queue"]["priority_class"], asked["resources"]["time_limit"]) == ("interactive", "8h")
    assert "free" in daemon.log(job_id)
    return int(job["attempts"][-1]["exit_code"])
