"""A command that follows a job and ignores SIGHUP ends when its terminal has closed; the job goes on."""

import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from runner.cli.console import TERMINAL_GONE
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.patience import patience


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def read(terminal: int) -> bytes:
    with suppress(OSError):
        return os.read(terminal, 65536)
    return b""


@pytest.mark.parametrize("command", ["run", "submit"])
def test_who_follows_a_silent_job_ends_when_the_terminal_has_gone(daemon: Service, command: str) -> None:
    sleeps = {"kind": "program", "command": ["/bin/sleep", "1000"]}
    file = daemon.file(f"silent-{command}", workload=sleeps, resources={"cpus": 0.1, "memory": "64MiB"})
    typed = {
        "run": ("run", "--name", "silent-run", "--no-code", "--", "/bin/sleep", "1000"),
        "submit": ("submit", "--follow", str(file)),
    }[command]
    ours, theirs = pty.openpty()
    deaf = ("/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    with subprocess.Popen(
        [*deaf, *RUNNER, *typed],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=daemon.root,
        env={**daemon.environ, "TERM": "xterm"},
        start_new_session=True,
    ) as follower:
        try:
            os.close(theirs)
            until(lambda: b"submitted" in read(ours), "the job is submitted")
            [job_id] = [job["id"] for job in daemon.client.jobs() if job["name"] == f"silent-{command}"]
            daemon.reaches(job_id, "running")
            assert follower.poll() is None
            os.close(ours)
            assert follower.wait(patience()) == TERMINAL_GONE
        finally:
            follower.kill()
    assert daemon.state_of(job_id) == "running"
    daemon.runner("cancel", job_id)


def test_what_is_written_to_a_terminal_that_has_gone_ends_the_command_alike() -> None:
    """Which of the two comes first, the look at the terminal or a line for it, is chance."""
    ours, theirs = pty.openpty()
    deaf = ("/bin/sh", "-c", "trap '' HUP; read line; exec \"$@\"", "sh")
    with subprocess.Popen(
        [*deaf, *RUNNER, "--help"],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as command:
        os.close(theirs)
        os.close(ours)
        command.communicate(b"go\n")
    assert command.returncode == TERMINAL_GONE
