"""Attempts in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_job_runner.attach import Attempt, Told

Make = Callable[[str], Attempt]


@pytest.fixture
def attempt(tmp_path: Path) -> Make:
    """Return an attempt at the job of that name."""

    def make(name: str) -> Attempt:
        reports = tmp_path / name / "attempt"
        reports.mkdir(parents=True, exist_ok=True)
        return Attempt(Told(tmp_path / name / "checkpoints", reports, seed=3))

    return make
