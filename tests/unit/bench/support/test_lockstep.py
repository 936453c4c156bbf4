"""Turns are whole steps, and only one training works at a time."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from bench.cases.overhead import CASES, make_spec
from bench.support.lockstep import (
    LOG,
    MissingPackage,
    Setup,
    StepGate,
    TrainingProcess,
    TrainingResult,
    Turn,
    run_training,
)
from bench.support.result import CannotMeasure

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def setup(directory: Path, loop: str = "tests.unit.bench.support.test_lockstep:trained") -> Setup:
    return Setup(loop, directory, make_spec(CASES[0], 1, 5), first=2, every=5)


def trained(setup: Setup, gate: StepGate) -> TrainingResult:
    for batch in range(setup.first + 2 * setup.every + 1):
        gate.wait_at(batch)
    return TrainingResult(1.5, "abc")


def test_a_training_waits_once_before_its_first_turn_and_after_each(ends: Ends, tmp_path: Path) -> None:
    ours, theirs = ends
    for _ in range(3):
        ours.send(None)
    run_training(theirs, setup(tmp_path))
    ready, first, second, ended = (ours.recv() for _ in range(4))
    assert ready is None
    assert isinstance(first, Turn)
    assert isinstance(second, Turn)
    assert first.seconds > 0
    assert ended == TrainingResult(1.5, "abc")


def test_a_turn_knows_how_long_saves_took_in_it(ends: Ends) -> None:
    ours, theirs = ends
    gate = StepGate(theirs, first=0, every=1)
    for batch, stalled_s in enumerate((3.0, 3.5, 3.75)):
        gate.stalled_s = stalled_s
        ours.send(None)
        gate.wait_at(batch)
    assert [turn.stalled_s for turn in (ours.recv(), ours.recv(), ours.recv()) if turn] == [0.5, 0.25]


def test_a_framework_that_is_not_installed_is_named(ends: Ends, tmp_path: Path) -> None:
    ours, theirs = ends
    run_training(theirs, setup(tmp_path, "not_installed_here:trained"))
    assert ours.recv() == MissingPackage("not_installed_here")


def lane(connection: Connection, directory: Path) -> TrainingProcess:
    return TrainingProcess(setup(directory), multiprocessing.current_process(), connection)


def test_a_turn_is_told_as_the_seconds_of_one_step(ends: Ends, tmp_path: Path) -> None:
    ours, theirs = ends
    theirs.send(Turn(seconds=10.0, cpu_s=9.0, stalled_s=0.0))
    one = lane(ours, tmp_path)
    assert one.turn() == 2.0
    assert [turn.cpu_s for turn in one.turns] == [9.0]


def test_a_training_that_ends_too_early_is_no_measurement(ends: Ends, tmp_path: Path) -> None:
    ours, theirs = ends
    theirs.send(TrainingResult(1.0, "abc"))
    with pytest.raises(CannotMeasure, match="ended before its turns did"):
        lane(ours, tmp_path).turn()


def test_a_training_that_fails_is_quoted(ends: Ends, tmp_path: Path) -> None:
    ours, theirs = ends
    (tmp_path / LOG).write_text("step 1\nValueError: what went wrong\n")
    theirs.close()
    with pytest.raises(CannotMeasure, match="ValueError: what went wrong"):
        lane(ours, tmp_path).answer()
