"""A command and a key inside of a running job, compared with ``docker exec`` and ``docker run -it``.

One job runs during the whole measurement: that of ``runner shell``.  Its terminal is used for the keys,
and both commands run in its container.  Docker's terminal is a container of the same image with the same
shell.  A key is one byte, echoed by the terminal of the shell; the clock runs from the write until the
byte can be read.
"""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "sessions"
EXEC: Final = "runner exec JOB true"
DOCKER_EXEC: Final = "docker exec C true"
KEY: Final = "key to echo, runner shell"
DOCKER_KEY: Final = "key to echo, docker run -it"
PROMPT: Final = b"$ "
START_S: Final = 300.0
ECHO_S: Final = 30.0
ERASE: Final = b"\x7f"


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the command and the key, each beside Docker's."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        if not daemon.in_containers():
            yield NotMeasured(BENCH, EXEC, "there is no container engine to compare with")
            return
        shell = [*runner_command(), "shell", "--no-code", "-c", "1", "-m", "512M", "--", "/bin/sh"]
        with typing(shell, daemon.environment) as ours:
            job = daemon.client.jobs(limit=1)[0]["id"]
            image = str(daemon.client.job(job)["image"])
            theirs_argv = ["docker", "run", "-it", "--rm", "--network", "none", image, "/bin/sh"]
            with typing(theirs_argv, os.environ) as theirs:
                yield measure_commands(scratch, daemon, job)
                yield measure_keys(scratch, ours, theirs)


def measure_commands(scratch: Scratch, daemon: BenchDaemon, job: str) -> Result:
    """Return the time of a command that does nothing, with the start and the end of what is typed."""
    typed = [*runner_command(), "exec", job, "true"]
    contestants = {
        EXEC: interleave.time_command(typed, daemon.environment),
        DOCKER_EXEC: interleave.time_command(
            ["docker", "exec", daemon.container(job, 1), "true"], os.environ
        ),
    }
    seconds = interleave.interleave(scratch.effort.submits, scratch.effort.warmups, contestants)
    ours, theirs = (in_milliseconds(name, seconds[name]) for name in (EXEC, DOCKER_EXEC))
    return Result(BENCH, ours, theirs, Aim(1.3, "ratio"))


def measure_keys(scratch: Scratch, ours: int, theirs: int) -> Result:
    """Return the time from a key to its echo."""
    contestants = {KEY: time_key(ours), DOCKER_KEY: time_key(theirs)}
    seconds = interleave.interleave(scratch.effort.posts, scratch.effort.warmups, contestants)
    series = [in_milliseconds(name, seconds[name]) for name in (KEY, DOCKER_KEY)]
    return Result(BENCH, series[0], series[1], Aim(1.5, "ratio"))


def time_key(terminal: int) -> Callable[[], float]:
    """Return a contestant: one key, erased again afterwards."""

    def measure() -> float:
        began = time.perf_counter()
        os.write(terminal, b"x")
        read_until(terminal, b"x", ECHO_S)
        took = time.perf_counter() - began
        os.write(terminal, ERASE)
        read_until(terminal, b"\b", ECHO_S)
        return took

    return measure


@contextmanager
def typing(argv: Sequence[str], environment: Mapping[str, str]) -> Iterator[int]:
    """Yield a terminal at which a command was typed that has shown its prompt; end the command afterwards."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        argv,
        env={**environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        read_until(ours, PROMPT, START_S)
        yield ours
        with suppress(OSError):
            os.write(ours, b"exit\n")
        command.wait(ECHO_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        os.close(ours)


def read_until(terminal: int, wanted: bytes, limit_s: float) -> None:
    """Read from a terminal until something has come.

    Raises:
        CannotMeasure: it has not come in time, or the other end is closed.
    """
    seen, deadline = b"", time.monotonic() + limit_s
    while wanted not in seen:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([terminal], [], [], left_s)[0]:
            raise CannotMeasure(f"{wanted!r} has not come within {limit_s:.0f} s")
        try:
            seen += os.read(terminal, 4096)
        except OSError as error:
            raise CannotMeasure("the command at a terminal has ended") from error
