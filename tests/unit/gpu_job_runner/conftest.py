"""The fixtures of the unit tests of the command line; attempts in this process give signal handlers back."""

import signal
from collections.abc import Iterator

import pytest

from tests.unit.runner.cli.conftest import api, job_file  # noqa: F401  pytest finds fixtures by name


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Attempts install signal handlers; give back what was there."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
