"""The fixtures of the unit tests of the same packages, and the processes that have loaded PyTorch."""

from collections.abc import Iterator

import pytest

from tests.integration.process.jobs.gangs import PARENTS
from tests.unit.jobs.conftest import _as_before, before_step, corpus, job  # noqa: F401  found by name


@pytest.fixture(scope="session", autouse=True)
def _parents() -> Iterator[None]:
    """End them with the session."""
    with PARENTS:
        yield
