from pathlib import Path

import pytest

from bench.cases import loader_memory
from bench.cases.loader_memory import make_lines, make_spec, memory_by_epoch, write_recordings
from bench.support import chart
from bench.support.process import HeldMemory
from bench.support.result import CannotMeasure, NotMeasured, Result
from jobs.contract.plans.imu_stream import ImuStream
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.workload import StreamedPoses
from jobs.workloads.protocol import BuildContext


def test_the_recordings_are_as_many_as_an_epoch_takes(tmp_path: Path) -> None:
    write_recordings(tmp_path, steps=30)
    spec = make_spec(tmp_path, loaders=0, steps=30, epochs=2)
    assert isinstance(spec.workload, ImuStream)
    assert StreamedPoses(spec.workload, BuildContext(0, Switches(spec.profile))).steps_per_epoch == 30


def test_an_epoch_is_the_median_of_its_looks_and_what_comes_after_the_last_step_is_none() -> None:
    looks = [(1, 10.0), (2, 12.0), (3, 40.0), (4, 20.0), (9, 22.0), (10, 0.0)]
    held = [(step, HeldMemory(2 * distinct, distinct)) for step, distinct in looks]
    assert [each.distinct for each in memory_by_epoch(held, steps=5, epochs=2)] == [16.0, 22.0]


def test_an_epoch_that_nobody_saw_is_taken_for_the_look_next_to_it() -> None:
    held = [(1, HeldMemory(1.0, 1.0)), (11, HeldMemory(3.0, 3.0))]
    assert [each.distinct for each in memory_by_epoch(held, steps=5, epochs=3)] == [1.0, 1.0, 3.0]


def test_a_training_that_nobody_saw_is_not_measured() -> None:
    with pytest.raises(CannotMeasure, match="before anybody had looked"):
        memory_by_epoch([], steps=5, epochs=2)


@pytest.mark.parametrize(("each_epoch", "met"), [(0.0, True), (1.0, False)])
def test_a_leak_of_one_percent_in_each_epoch_is_seen(each_epoch: float, *, met: bool) -> None:
    memory = [HeldMemory(100.0 + each_epoch * epoch, 50.0) for epoch in range(20)]
    resident, growth, distinct = make_lines(2, memory)
    assert isinstance(resident, Result)
    assert isinstance(growth, Result)
    assert isinstance(distinct, Result)
    assert len(resident.ours.values) == len(distinct.ours.values) == 20
    assert growth.met is met
    kib = f"{1024 * each_epoch:+.0f}"
    assert growth.note == f"{kib} KiB per epoch ({kib} to {kib}), from epoch 5 on"


class Paper:
    """Stands where matplotlib draws: remembers the lines."""

    def __init__(self) -> None:
        self.lines: dict[str, list[float]] = {}

    def add_subplot(self) -> "Paper":
        return self

    def plot(self, places: range, values: list[float], *, marker: str, label: str) -> None:
        assert marker
        assert list(places) == list(range(1, len(values) + 1))
        self.lines[label] = values

    def set(self, *, title: str, xlabel: str, ylabel: str, ylim: tuple[int, None]) -> None:
        assert title
        assert (xlabel, ylabel, ylim) == ("epoch", "MiB", (0, None))

    def legend(self, *, loc: str) -> None:
        assert loc


def test_the_chart_has_a_line_for_each_series() -> None:
    paper = Paper()
    chart.epochs({"a": [1.0, 2.0], "b": [3.0]}, "title")(paper)
    assert paper.lines == {"a": [1.0, 2.0], "b": [3.0]}


def test_without_matplotlib_there_is_no_chart_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    lines = [*make_lines(2, [HeldMemory(2.0, 1.0)] * 5), NotMeasured("loader-memory", "a", "b")]
    assert loader_memory.draw(lines, "title", tmp_path / "a.png") == chart.MISSING
    assert not (tmp_path / "a.png").exists()
