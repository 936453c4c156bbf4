"""Damaged checkpoints, full disks, two writers: nothing is lost and nothing is silent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.checkpoint import directory as lineage
from jobs.contract import Cause, ExitCode
from tests.unit.jobs.conftest import JobDir

Arrange = Callable[[dict[int, Callable[[], None]]], None]


# --- A full disk (a small file system of its own; as root)


@pytest.fixture
def small(tmpfs: Path, corpus: Path) -> JobDir:
    return JobDir(tmpfs / "job", corpus)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_a_full_disk_during_a_periodic_save_costs_nothing_but_that_save(
    small: JobDir, tmpfs: Path, before_step: Arrange, capfd: pytest.CaptureFixture[str]
) -> None:
    before_step({3: lambda: fill(tmpfs), 6: (tmpfs / "filler").unlink})
    assert small.train(profile={"async_save": False}) == ExitCode.FINISHED
    said = capfd.readouterr().err
    assert said.count("checkpoint skipped") == 2  # of steps 4 and 6
    assert "Training goes on; the newest is step 2" in said
    assert "step-00000002" in small.names()
    assert not list(small.lineage().glob(".tmp-*"))


def test_a_disk_that_stays_full_ends_with_its_cause_and_what_was_saved_is_resumed(
    small: JobDir, tmpfs: Path, before_step: Arrange
) -> None:
    small.train(lineage=2)
    before_step({5: lambda: fill(tmpfs)})
    assert small.train(lineage=1, profile={"async_save": False}) == 1
    result = small.result()
    assert (result.cause, result.step) == (Cause.DISK_FULL, 8)
    assert small.names() == {"step-00000002", "step-00000004"}
    (tmpfs / "filler").unlink()
    before_step({})
    assert small.train(lineage=1) == ExitCode.FINISHED
    assert small.result().resumed_from == 4
    assert small.state_sha256(8, 1) == small.state_sha256(8, 2)


def test_a_disk_that_fills_up_while_a_checkpoint_is_written_leaves_no_part_of_it(
    small: JobDir, tmpfs: Path, before_step: Arrange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "_require_space", lambda *_: None)  # it was free when we looked
    before_step({5: lambda: fill(tmpfs)})
    assert small.train(profile={"async_save": False}) == 1
    assert small.result().cause is Cause.DISK_FULL
    assert small.names() == {"step-00000002", "step-00000004"}
    assert not list(small.lineage().glob(".tmp-*"))


def test_reports_that_a_full_disk_prevents_are_said_once_and_do_not_end_training(
    small: JobDir, tmpfs: Path, before_step: Arrange, capfd: pytest.CaptureFixture[str]
) -> None:
    before_step({1: lambda: fill(tmpfs), 7: (tmpfs / "filler").unlink})
    assert small.train(workload={"eval_every": 1}) == ExitCode.FINISHED
    assert capfd.readouterr().err.count("status.json cannot be written") == 1
    assert small.status().step == 8
