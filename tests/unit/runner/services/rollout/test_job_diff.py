"""Jobs whose code can be compared, and jobs that have none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.services.rollout.job_diff import JobDiff, Side
from tests.unit.runner.services.submission.test_revision import resolved


@pytest.mark.parametrize(
    ("workload", "unknown"),
    [
        ("{kind: causal_lm, data: stdlib}", []),
        ("{kind: program, command: [train]}", []),
        ("{kind: program, command: [train], code: {path: src, live: true}}", ["a@1", "b@1"]),
    ],
)
def test_unknown_code_is_that_of_programs_which_have_some(
    tmp_path: Path, workload: str, unknown: list[str]
) -> None:
    revision = resolved(workload, tmp_path)
    service: Any = SimpleNamespace(code=None)
    found = JobDiff(service).json(Side("a@1", revision), Side("b@1", revision))
    assert (found["changes"], found["code_unknown"]) == ([], unknown)
