"""A queue of task-spooler, on a socket of its own: behind a job that does nothing, or at work."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals.protocol import REST_LIMIT_S, Queue, answer
from bench.support import interleave as rounds
from bench.support.jobfile import CPUS
from bench.support.packages import find, require

PACKAGES: Final = ("task-spooler",)
PROGRAM: Final = "tsp"


@contextmanager
def working(directory: Path, *, may_install: bool) -> Iterator[Queue]:
    """Give a queue of task-spooler that works, with as many slots as ours; afterwards its server is gone.

    Raises:
        CannotMeasure: it is not here and may not be installed.
    """
    require((PROGRAM,), PACKAGES, may_install=may_install)
    environment = _environment(directory)
    try:
        answer([find(PROGRAM), "-S", str(CPUS)], environment, directory)
        yield Spooler(directory, environment)
    finally:
        _said("-K", environment)


@dataclass(frozen=True, slots=True)
class Spooler:
    """Satisfies ``bench.rivals.protocol.Queue``."""

    directory: Path
    environment: dict[str, str]

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        return self._answer("-N", str(slots), *argv)

    def typed(self, argv: Sequence[str]) -> str:
        return self.submit(argv)

    def come_to_rest(self, jobs: Sequence[str]) -> None:
        self._answer("-w", jobs[-1])
        rounds.wait_for("the end of task-spooler's jobs", self._rests, REST_LIMIT_S, 0.02)
        self._answer("-C")

    def _rests(self) -> bool:
        states = [line.split()[1] for line in self._answer().splitlines()[1:]]
        return not {"queued", "running", "allocating"} & set(states)

    def _answer(self, *arguments: str) -> str:
        return answer([find(PROGRAM), *arguments], self.environment, self.directory)


def _environment(directory: Path) -> dict[str, str]:
    return dict(os.environ) | {"TS_SOCKET": str(directory / "socket"), "TMPDIR": str(directory)}


@contextmanager
def queue(directory: Path, *, may_install: bool) -> Iterator[Callable[[], float]]:
    """Give a contestant that submits with ``tsp``; afterwards its server is gone.

    Raises:
        CannotMeasure: it is not here and may not be installed.
    """
    require((PROGRAM,), PACKAGES, may_install=may_install)
    environment = _environment(directory)
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
