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
    blocker = int(_said("-p", environment))
    try:
        yield rounds.command([find(PROGRAM), "true"], environment, directory)
    finally:
        _said("-K", environment)
        os.kill(blocker, signal.SIGTERM)


def _said(option: str, environment: dict[str, str]) -> str:
    return subprocess.run(
        [find(PROGRAM), option], env=environment, capture_output=True, text=True, check=True
    ).stdout
