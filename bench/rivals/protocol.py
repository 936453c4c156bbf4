"""The interface of every compared queue, independent of its commands."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from bench.support import interleave
from bench.support.result import CannotMeasure

REST_LIMIT_S: Final = 900.0
BEGIN_LIMIT_S: Final = 30.0


class Queue(Protocol):
    """A running queue with as many slots as the runner's."""

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        """Submit a job in the fastest way, and return its id once it is accepted."""

    def submit_typed(self, argv: Sequence[str]) -> str:
        """Submit a job with the command, as a user does, and return its id when the command has ended."""

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        """Wait until all of these jobs have ended; the queue has no others.

        Raises:
            CannotMeasure: they do not end in time.
        """


class BlockingJob:
    """A job that blocks the queue: its program reads from a pipe without input."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gate"
        os.mkfifo(self._path)
        self._path.chmod(0o644)  # readable for any user of a job
        self._open: int | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        return ("cat", str(self._path))

    def await_start(self) -> None:
        """Wait until the program has begun.

        Raises:
            CannotMeasure: it does not begin in time.
        """
        interleave.wait_for("the job that holds up the others", self._is_read, BEGIN_LIMIT_S, 0.02)

    def _is_read(self) -> bool:
        try:
            self._open = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no process has it open for reading
            return False
        return True

    def release(self) -> None:
        """Let the program end."""
        if self._open is not None:
            os.close(self._open)
            self._open = None


def run_command(argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> str:
    """Return the output of a command.

    Raises:
        CannotMeasure: the command failed.
    """
    done = subprocess.run(
        argv, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise CannotMeasure(f"{argv[0].rpartition('/')[2]} ended with exit code {done.returncode}: {said}")
    return done.stdout.strip()
