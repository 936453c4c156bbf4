"""Trackers, read back as TensorBoard reads them; the process that sends to MLflow has tests of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpu_job_runner.tracking import History, Place, Trackers

BOARD = {"tensorboard": True}


def place(root: Path, attempt: int = 1) -> Place:
    found = Place("7", attempt, root / "lineages/1", root / f"attempts/{attempt}", root / "home")
    for each in (found.lineage_dir, found.attempt_dir, found.home):
        each.mkdir(parents=True, exist_ok=True)
    return found


def report(trackers: Trackers, where: Place, step: int, **values: float | None) -> None:
    """Report as a training does: the line first, then the trackers."""
    row = {"time": 1000.0 + step, "step": step, **values}
    with (where.attempt_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    trackers.add(row)


_killed: list[Trackers] = []


@pytest.fixture(autouse=True)
def close_what_kills_have_left() -> Iterator[None]:
    """A killed process closes its files without writing anything more, and so does this."""
    yield
    for trackers in _killed:
        if trackers._board is not None:
            trackers._board._records._writer.close()
    _killed.clear()


def train(where: Place, begin: int, end: int, scale: float = 1.0) -> Trackers:
    trackers = Trackers(BOARD, where, {})
    _killed.append(trackers)
    trackers.begin(begin)
    for step in range(begin + 1, end + 1):
        report(trackers, where, step, loss=scale * step)
    return trackers


def shown(where: Place, name: str = "loss") -> list[tuple[int, float]]:
    board = EventAccumulator(str(where.home / "tensorboard"))
    board.Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def test_tensorboard_shows_each_step_once_after_kills(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 12)  # killed: nothing is closed or flushed
    train(place(tmp_path, 2), 8, 10, scale=2)
    train(place(tmp_path, 3), 8, 20, scale=3).end("FINISHED", 20)
    kept = [(step, float(step)) for step in range(1, 9)]
    assert shown(place(tmp_path, 3)) == [*kept, *((step, 3.0 * step) for step in range(9, 21))]


def test_a_training_that_begins_again_at_step_0_shows_none_of_the_old_steps(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 12)
    train(place(tmp_path, 2), 0, 5, scale=2)
    assert shown(place(tmp_path, 2)) == [(step, 2.0 * step) for step in range(1, 6)]


def test_a_torn_event_costs_nothing_but_itself(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 12)
    [file] = (tmp_path / "home/tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    train(place(tmp_path, 2), 8, 9)
    assert [step for step, _ in shown(place(tmp_path, 2))] == list(range(1, 10))


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    trackers = Trackers(BOARD, place(tmp_path), {})
    _killed.append(trackers)
    report(trackers, place(tmp_path), 1, loss=None, rate=2.0)  # before the training knows where it begins
    trackers.begin(0)
    report(trackers, place(tmp_path), 2, loss=float("nan"), rate=3.0)
    report(trackers, place(tmp_path), 3, loss=4.0)
    assert shown(place(tmp_path)) == [(3, 4.0)]
    assert shown(place(tmp_path), "rate") == [(1, 2.0), (2, 3.0)]


def test_a_missing_package_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("gpu_job_runner.tracking.importlib.import_module", missing)
    trackers = train(place(tmp_path), 0, 2)
    trackers.end("FINISHED", 2)
    said = capsys.readouterr().err
    assert said.startswith("track: warning: tensorboard: ImportError: No module named")
    assert said.count("\n") == 1


def test_a_full_disk_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackers = train(place(tmp_path), 0, 2)

    def full(_event: object) -> None:
        raise OSError(28, "No space left on device")

    assert trackers._board is not None
    monkeypatch.setattr(trackers._board, "_write", full)
    report(trackers, place(tmp_path), 3, loss=1.0)
    report(trackers, place(tmp_path), 4, loss=1.0)
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_the_history_is_what_counts(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 12)
    with (tmp_path / "attempts/1/metrics.jsonl").open("a") as file:
        file.write('not JSON\n[]\n{"step": 3}\n{"time": 4, "st')
    train(place(tmp_path, 2), 8, 10, scale=2)
    found = History(place(tmp_path, 2))
    assert {step for _, step in found.counted} == set(range(1, 9))
    found.read()
    assert found.counted["loss", 10] == (1010.0, 20.0)
    assert found.counted["loss", 8] == (1008.0, 8.0)
    found.counted.clear()
    found.read()
    assert not found.counted


def test_an_attempt_that_is_launched_again_is_noted_once(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 3)
    train(place(tmp_path, 2), 2, 3)
    train(place(tmp_path, 2), 1, 3)
    assert json.loads((tmp_path / "lineages/1/tracking.json").read_text()) == {"starts": [[1, 0], [2, 1]]}


def test_a_finished_training_is_tracked_to_its_end_even_if_nothing_is_left_to_train(tmp_path: Path) -> None:
    train(place(tmp_path), 0, 3)
    trackers = Trackers(BOARD, place(tmp_path, 2), {})
    trackers.end("FINISHED", 3)
    assert [step for step, _ in shown(place(tmp_path, 2))] == [1, 2, 3]
