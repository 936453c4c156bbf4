"""Values of ``workload.init_from``."""

from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.job.initial_weights import JobWeights, init_from, parse_init_from
from runner.files.job.load import parse_job
from runner.files.job.paths import named_paths


def job(written: str) -> bytes:
    return f"workload: {{kind: causal_lm, data: stdlib, init_from: {written}}}".encode()


@pytest.mark.parametrize(
    ("written", "weights"),
    [
        ("job/17/best", JobWeights("17", "best")),
        ("job/pose-joints.2/final", JobWeights("pose-joints.2", "final")),
        ("models/poser", None),
        ("./job/a/best", None),
        ("/srv/job/a/best", None),
    ],
)
def test_a_job_or_a_directory_is_named(written: str, weights: JobWeights | None) -> None:
    assert parse_init_from(written) == weights
    read = parse_job(job(written), Path("/x/job.yaml"))
    assert init_from(read.workload) == written
    paths = [path for field, path, _ in named_paths(read) if field == ("workload", "init_from")]
    assert paths == ([] if weights else [written])


@pytest.mark.parametrize("written", ["job/a", "job/a/newest", "job//best", "job/a/b/best"])
def test_a_reference_that_is_none_is_refused_at_its_place(written: str) -> None:
    with pytest.raises(FileError) as refused:
        parse_job(job(written), Path("/x/job.yaml"))
    said = f'workload.init_from: must be job/NAME/best or job/NAME/final, not "{written}"; for a directory'
    assert said in str(refused.value)
    assert "1:" in str(refused.value)


def test_a_program_begins_with_no_weights() -> None:
    read = parse_job(b"workload: {kind: program, command: [ls]}", Path("/x/job.yaml"))
    assert init_from(read.workload) is None
