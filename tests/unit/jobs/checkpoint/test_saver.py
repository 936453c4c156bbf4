"""The save side by itself: isolation of snapshots, errors of the writer, the alarm."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.checkpoint import directory as lineage
from jobs.checkpoint import saver as checkpoint
from jobs.checkpoint.directory import Provenance, Snapshot, load
from jobs.checkpoint.saver import Checkpoints
from jobs.contract import CheckpointPlan, RunPaths, verify
from jobs.training.report import Reporter
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.patience import patience

PROVENANCE = Provenance("j1", 1, 1, 1, {"model": "m"}, {"torch": "t"})


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((4,), value)}, "optimizer": {"step": torch.tensor(value)}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    return paths.lineage_dir


@pytest.fixture
def make(directory: Path) -> Callable[..., Checkpoints]:
    def checkpoints(*, in_background: bool = True, **plan: float) -> Checkpoints:
        reporter = Reporter(RunPaths(directory.parents[1], 1, 1))
        when = CheckpointPlan.model_validate(plan)
        return Checkpoints(directory, when, PROVENANCE, reporter, in_background=in_background)

    return checkpoints


def test_what_happens_after_a_save_does_not_reach_the_checkpoint(
    directory: Path, make: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, publish = threading.Event(), lineage.publish

    def slow(where: Path, snapshot: Snapshot, provenance: Provenance) -> None:
        go.wait(patience())
        publish(where, snapshot, provenance)

    monkeypatch.setattr(lineage, "publish", slow)
    live = state(1.0)
    with make() as checkpoints:
        checkpoints.save(5, live)
        live["model"]["w"].mul_(9)
        live["optimizer"]["step"].add_(1)
        go.set()
    saved = load(directory / "step-00000005")
    assert saved["model"]["w"].tolist() == [1.0] * 4
    assert saved["optimizer"]["step"].item() == 1.0


def test_a_manifest_tells_where_a_checkpoint_comes_from(
    directory: Path, make: Callable[..., Checkpoints]
) -> None:
    with make() as checkpoints:
        checkpoints.save(5, state(1.0))
        checkpoints.save(7, state(2.0))
    manifest = verify(directory / "step-00000007")
    assert (manifest.parent_step, manifest.attempt, manifest.job_id) == (5, 1, "j1")
    assert (manifest.signatures, manifest.environment) == ({"model": "m"}, {"torch": "t"})


def test_an_error_of_the_writer_is_raised_at_the_next_boundary(
    make: Callable[..., Checkpoints], directory: Path
) -> None:
    checkpoints = make()
    checkpoints.save(5, state(1.0))
    checkpoints.settle()
    directory.rename(directory.with_name("gone"))
    checkpoints.save(6, state(2.0))
    with pytest.raises(FileNotFoundError), checkpoints:
        checkpoints.settle()


def test_an_error_of_the_writer_does_not_hide_what_ended_the_training(
    make: Callable[..., Checkpoints], directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory.rename(directory.with_name("gone"))

    def meet_a_defect() -> None:
        with make() as checkpoints:
            checkpoints.save(6, state(2.0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        meet_a_defect()
    assert "the last checkpoint was not written" in capfd.readouterr().err


def test_a_state_that_could_not_be_loaded_again_is_refused_at_the_save(
    make: Callable[..., Checkpoints],
) -> None:
    with make() as checkpoints, pytest.raises(TypeError, match="cannot hold"):
        checkpoints.save(5, {"model": Path()})


def test_reaching_a_step_again_with_the_same_bits_keeps_what_is_there(
    directory: Path, make: Callable[..., Checkpoints], capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with make() as checkpoints:
            checkpoints.save_now(5, state(1.0))
    assert capfd.readouterr().err == ""
    assert [path.name for path in directory.glob("[!.]*")] == ["step-00000005"]


def test_reaching_a_step_again_with_other_bits_raises_the_alarm_and_keeps_what_is_there(
    directory: Path, make: Callable[..., Checkpoints], capfd: pytest.CaptureFixture[str]
) -> None:
    for value in (1.0, 2.0):
        with make() as checkpoints:
            checkpoints.save_now(5, state(value))
    assert "DETERMINISM ALARM: step-00000005" in capfd.readouterr().err
    assert load(directory / "step-00000005")["model"]["w"][0] == 1.0


def test_reaching_a_step_again_replaces_a_damaged_checkpoint(
    directory: Path, make: Callable[..., Checkpoints]
) -> None:
    with make() as checkpoints:
        checkpoints.save_now(5, state(1.0))
    (directory / "step-00000005" / lineage.STATE).write_bytes(b"")
    with make() as checkpoints:
        checkpoints.save_now(5, state(1.0))
    verify(directory / "step-00000005")
    assert len(list(directory.glob("bad-*"))) == 1


def test_a_file_that_reads_back_differently_is_not_published(
    directory: Path, make: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "load", lambda *_: state(3.0))
    with make(in_background=False) as checkpoints, pytest.raises(OSError, match="other content"):
        checkpoints.save(5, state(1.0))
    assert not list(directory.iterdir())


def test_a_file_that_cannot_be_read_back_is_not_published(
    directory: Path, make: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "save", lambda _state, file: file.write(b"no archive"))
    with make(in_background=False) as checkpoints, pytest.raises(OSError, match="cannot be read back"):
        checkpoints.save(5, state(1.0))
    assert not list(directory.iterdir())


@pytest.mark.parametrize(
    ("plan", "due"),
    [
        ({}, []),
        ({"every_steps": 4}, [4, 8]),
        ({"every_s": 1e-9}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"every_s": 3600}, []),
        ({"every_s": 3600, "every_steps": 5}, [5]),
    ],
)
def test_a_save_is_due_by_whichever_clock_comes_first(
    make: Callable[..., Checkpoints], plan: dict[str, float], due: list[int]
) -> None:
    with make(**plan) as checkpoints:
        assert [step for step in range(1, 9) if checkpoints.due(step)] == due


def test_what_saves_cost_settles_when_the_next_one_is_due(
    make: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    publish, clock = lineage.publish, FakeClock()

    def slow(where: Path, snapshot: Snapshot, provenance: Provenance) -> None:
        clock.forward(0.25)
        publish(where, snapshot, provenance)

    monkeypatch.setattr(lineage, "publish", slow)
    monkeypatch.setattr(checkpoint, "time", clock)
    with make(in_background=False, every_s=1e-9, mean_between_s=1e4) as checkpoints:
        clock.forward(1.0)
        assert checkpoints.due(5)
        checkpoints.save(5, state(1.0))
        assert not checkpoints.due(6)
        progress = checkpoints._reporter.progress
    assert progress.save_stall_s == 0.25
    assert progress.save_every_s == pytest.approx((2 * 0.25 * 1e4) ** 0.5, rel=0.05)
    assert "from now on a checkpoint every" in capfd.readouterr().out


def test_writing_in_the_background_holds_nobody_up(
    make: Callable[..., Checkpoints], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, clock, go = lineage.publish, FakeClock(), threading.Event()

    def slow(where: Path, snapshot: Snapshot, provenance: Provenance) -> None:
        go.wait(patience())
        clock.forward(60)
        publish(where, snapshot, provenance)

    monkeypatch.setattr(lineage, "publish", slow)
    monkeypatch.setattr(checkpoint, "time", clock)
    with make(every_s=120, mean_between_s=1e6) as checkpoints:
        checkpoints.save(5, state(1.0))
        go.set()
        checkpoints.settle()
        progress = checkpoints._reporter.progress
    assert progress.save_stall_s == 0


def test_a_step_that_is_saved_already_is_no_measure_of_what_saving_costs(
    make: Callable[..., Checkpoints],
) -> None:
    with make(every_s=120, mean_between_s=1e4) as checkpoints:
        checkpoints.save(5, state(1.0))
        checkpoints.settle()
        before = checkpoints._reporter.progress.save_stall_s
        checkpoints.save(5, state(1.0))
        assert checkpoints._reporter.progress.save_stall_s == before
