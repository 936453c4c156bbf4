"""A task-spooler queue on its own socket: blocked by a job that does nothing, or running."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals.protocol import REST_LIMIT_S, Queue, run_command
from bench.support import interleave
from bench.support.jobfile import CPUS
from bench.support.packages import find, require

PACKAGES: Final = ("task-spooler",)
PROGRAM: Final = "tsp"


@contextmanager
def running_queue(directory: Path, *, may_install: bool) -> Iterator[Queue]:
    """Yield a running task-spooler queue with as many slots as the runner's; stop its server at the end.

    Raises:
        CannotMeasure: it is not here and may not be installed.
    """
    require((PROGRAM,), PACKAGES, may_install=may_install)
    environment = _environment(directory)
    try:
        run_command([find(PROGRAM), "-S", str(CPUS)], environment, directory)
        yield SpoolerQueue(directory, environment)
    finally:
        _run_option("-K", environment)


@dataclass(frozen=True, slots=True)
class SpoolerQueue:
    """Satisfies ``bench.rivals.protocol.Queue``."""

    directory: Path
    environment: dict[str, str]

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        return self._answer("-N", str(slots), *argv)

    def submit_typed(self, argv: Sequence[str]) -> str:
        return self.submit(argv)

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        self._answer("-w", jobs[-1])
        interleave.wait_for("the end of task-spooler's jobs", self._rests, REST_LIMIT_S, 0.02)
        self._answer("-C")

    def _rests(self) -> bool:
        states = [line.split()[1] for line in self._answer().splitlines()[1:]]
        return not {"queued", "running", "allocating"} & set(states)

    def _answer(self, *arguments: str) -> str:
        return run_command([find(PROGRAM), *arguments], self.environment, self.directory)


def _environment(directory: Path) -> dict[str, str]:
    return dict(os.environ) | {"TS_SOCKET": str(directory / "socket"), "TMPDIR": str(directory)}


@contextmanager
def blocked_queue(directory: Path, *, may_install: bool) -> Iterator[Callable[[], float]]:
    """Yield a contestant that submits with ``tsp``; stop its server at the end.

    Raises:
        CannotMeasure: it is not here and may not be installed.
    """
    require((PROGRAM,), PACKAGES, may_install=may_install)
    environment = _environment(directory)
    interleave.time_command([find(PROGRAM), "sleep", "3600"], environment, directory)()
    try:
        interleave.wait_for(
            "the start of task-spooler's job", lambda: _blocking_process(environment) is not None, 10, 0.02
        )
        yield interleave.time_command([find(PROGRAM), "true"], environment, directory)
    finally:
        blocker = _blocking_process(environment)
        _run_option("-K", environment)
        if blocker is not None:
            os.kill(blocker, signal.SIGTERM)


def _blocking_process(environment: dict[str, str]) -> int | None:
    """Return the process id of the running job, or None while task-spooler reports 0."""
    return process_number(_run_option("-p", environment))


def process_number(said: str) -> int | None:
    """Return a valid process id or None; for ``kill``, 0 and -1 would mean several processes."""
    text = said.strip()
    return int(text) if text.isdecimal() and int(text) > 1 else None


def _run_option(option: str, environment: dict[str, str]) -> str:
    argv = [find(PROGRAM), option]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False).stdout
