"""A queue of task-spooler, on a socket of its own, behind a job that does nothing."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import rounds
from bench.packages import find, require

PACKAGES: Final = ("task-spooler",)
PROGRAM: Final = "tsp"


@contextmanager
def queue(directory: Path, *, may_install: bool) -> Iterator[Callable[[], float]]:
    """Give a contestant that submits with ``tsp``; afterwards its server is gone.

    Raises:
        CannotMeasure: it is not here and may not be installed.
    """
    require((PROGRAM,), PACKAGES, may_install=may_install)
    environment = dict(os.environ) | {"TS_SOCKET": str(directory / "socket"), "TMPDIR": str(directory)}
    rounds.command([find(PROGRAM), "sleep", "3600"], environment, directory)()
    try:
        rounds.wait_for(
            "the start of task-spooler's job", lambda: _blocker(environment) is not None, 10, 0.02
        )
        yield rounds.command([find(PROGRAM), "true"], environment, directory)
    finally:
        blocker = _blocker(environment)
        _said("-K", environment)
        if blocker is not None:
            os.kill(blocker, signal.SIGTERM)


def _blocker(environment: dict[str, str]) -> int | None:
    """Return the process of the running job; task-spooler says 0 as long as there is none."""
    return process_number(_said("-p", environment))


def process_number(said: str) -> int | None:
    """Return a number that names one process; to ``kill``, 0 and -1 would mean many."""
    text = said.strip()
    return int(text) if text.isdecimal() and int(text) > 1 else None


def _said(option: str, environment: dict[str, str]) -> str:
    argv = [find(PROGRAM), option]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False).stdout
