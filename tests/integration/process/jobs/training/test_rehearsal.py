"""The dry run finds what does not work, and leaves no trace in what follows."""

import pytest

from tests.unit.jobs.conftest import JobDir


@pytest.mark.parametrize("profile", [{}, {"precision": "fp16"}, {"loader_workers": 1}], ids=str)
def test_a_rehearsal_leaves_no_trace(job: JobDir, profile: dict[str, object]) -> None:
    job.train(lineage=1, profile={"dry_run": True, **profile})
    job.train(lineage=2, profile={"dry_run": False, **profile})
    assert job.state_sha256(8, 1) == job.state_sha256(8, 2)
