"""Attempts in this process: their signal handlers are taken back, and they can be asked to stop at a step."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_job_runner.attach import Attempt, Told

Make = Callable[[str], Attempt]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def attempt(tmp_path: Path) -> Make:
    """Return an attempt at the job of that name."""

    def make(name: str) -> Attempt:
        reports = tmp_path / name / "attempt"
        reports.mkdir(parents=True, exist_ok=True)
        return Attempt(Told(tmp_path / name / "checkpoints", reports, seed=3))

    return make
