"""What is asked of every queue that runs jobs beside ours, whatever its commands are called."""

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
    """A queue that is up and has as many slots as ours."""

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        """Hand in a job in the quickest way there is, and return its id once it is accepted."""

    def submit_typed(self, argv: Sequence[str]) -> str:
        """Hand in a job as people do, with the command, and return its id when that has ended."""

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        """Return when all of these jobs, which are all there are, have ended.

        Raises:
            CannotMeasure: they do not.
        """


class BlockingJob:
    """What the jobs behind it wait for: a program that reads from a pipe to which nobody writes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gate"
        os.mkfifo(self._path)
        self._path.chmod(0o644)  # whoever jobs run as
        self._open: int | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        return ("cat", str(self._path))

    def await_start(self) -> None:
        """Return when the program has begun.

        Raises:
            CannotMeasure: it does not.
        """
        interleave.wait_for("the job that holds up the others", self._is_read, BEGIN_LIMIT_S, 0.02)

    def _is_read(self) -> bool:
        try:
            self._open = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody has it open for reading
            return False
        return True

    def release(self) -> None:
        """Let the program come to its end."""
        if self._open is not None:
            os.close(self._open)
            self._open = None


def run_command(argv: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> str:
    """Return what a command says.

    Raises:
        CannotMeasure: it failed.
    """
    done = subprocess.run(
        argv, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise CannotMeasure(f"{argv[0].rpartition('/')[2]} ended with exit code {done.returncode}: {said}")
    return done.stdout.strip()
