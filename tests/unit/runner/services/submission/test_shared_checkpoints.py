"""Warnings about jobs that write their checkpoints to the same files."""

import os
from pathlib import Path

import pytest

from runner.core.ports.store import JobRow
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.submission.shared_checkpoints import may_meet
from tests.fakes.daemon.schedules import Clockwork

SHARED = "several jobs of the matrix write their checkpoints to "
STEP = "one may go on from what the other has saved: give each a directory of its own"


class Desk:
    """Somebody who submits programs with a mount, and reads what is said about their checkpoints."""

    def __init__(self, directory: Path) -> None:
        self.site = Clockwork(directory, Caller(os.getuid(), os.getgid()))
        for name in ("one", "two"):
            (directory / name).mkdir()

    def submission(self, files: str = "/data/o/ckpt_*.pt", more: str = "", source: str = "one") -> Submission:
        text = f"""\
name: train
workload: {{kind: program, command: [train]}}
mounts: [{{source: {source}, target: /data/o, read_only: false}}]
checkpoint: {{files: "{files}"}}
{more}
"""
        return Submission(str(self.site.directory / "job.yaml"), text.encode())

    def submit(self, submission: Submission) -> tuple[tuple[JobRow, ...], list[str]]:
        service = self.site.service.submission
        rows = service.submit_all(self.site.me, submission)
        return rows, list(service.shared_checkpoints(rows))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_living_job_with_the_same_files_is_named(desk: Desk) -> None:
    assert desk.submit(desk.submission())[1] == []
    fact = "checkpoint.files: job 1, not ended yet, writes checkpoints to the same files, "
    told = f"{fact}{desk.site.directory}/one/*.pt; {STEP}, or let this one wait (queue.after: 1)"
    dry = desk.site.service.submission.dry_run(desk.site.me, desk.submission("/data/o/*.pt"))
    assert [each for each in dry["warnings"] if "checkpoint" in each] == [told]
    assert desk.submit(desk.submission("/data/o/*.pt"))[1] == [told]
    [line] = desk.submit(desk.submission())[1]
    assert "job 1 and 1 more, not ended yet" in line


def test_other_files_ended_jobs_and_those_it_waits_for_are_none(desk: Desk) -> None:
    desk.submit(desk.submission())
    assert desk.submit(desk.submission("/data/o/last.pt"))[1] == []
    assert desk.submit(desk.submission(source="two"))[1] == []
    assert desk.submit(desk.submission("/job/home/ckpt_*.pt"))[1] == []
    assert desk.submit(desk.submission(more="queue: {after: ['1']}"))[1] == []  # job 5
    assert desk.submit(desk.submission(more="queue: {after: ['5']}"))[1] == []  # waits for 1, too
    for job_id in ("1", "5", "6"):
        desk.site.end(job_id)
    assert desk.submit(desk.submission())[1] == []


@pytest.mark.parametrize(
    ("matrix", "is_told"),
    [
        ("values: {environment.SEED: ['1', '2']}", True),
        ("values: {environment.SEED: ['1', '2']}, at_a_time: 1", False),
        ("values: {checkpoint.files: ['/data/o/1_*.pt', '/data/o/2_*.pt']}", False),
        ("values: {environment.SEED: ['1']}", False),
    ],
)
def test_the_jobs_of_a_matrix_are_told_of_each_other(desk: Desk, matrix: str, *, is_told: bool) -> None:
    written = desk.submission(more=f"matrix: {{{matrix}}}")
    told = [f"checkpoint.files: {SHARED}{desk.site.directory}/one/ckpt_*.pt; {STEP}"] if is_told else []
    dry = desk.site.service.submission.dry_run(desk.site.me, written)
    assert [each for each in dry["warnings"] if "checkpoint" in each] == told
    assert desk.submit(written)[1] == told


def test_so_many_of_the_newest_jobs_are_compared(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.services.submission.shared_checkpoints.MOST_JOBS", 1)
    desk.submit(desk.submission())
    desk.submit(desk.submission())
    [told] = desk.submit(desk.submission())[1]
    assert "job 2, not ended yet" in told


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("/d/*.pt", "/d/last.pt", True),
        ("/d/last.pt", "/d/*.pt", True),
        ("/d/{last,best}.pt", "/d/last.pt", True),
        ("/d/*/a.pt", "/d/run1/a.pt", True),
        ("/d/*.pt", "/d/run1/a.pt", False),
        ("/d/a_*.pt", "/d/b_*.pt", False),
        ("/d/a.pt", "/e/a.pt", False),
        ("", "", False),
    ],
)
def test_patterns_meet_part_by_part(one: str, other: str, *, meet: bool) -> None:
    assert may_meet(one, other) is meet
