"""Sweeps as pictures: every job is in them, within the axes, whatever its parameters are."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.dashboard.parallel import (
    BOTTOM,
    HEIGHT,
    MOST_TICKS,
    TOP,
    SweepChart,
    SweepJob,
    draw_sweep,
    make_axis,
)

VALUES = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=30))


def drawn(*jobs: SweepJob, best: int | None = None, metric: str = "loss") -> SweepChart:
    chart = draw_sweep(jobs, metric, None if best is None else jobs[best])
    assert chart is not None
    return chart


def job(name: str, result: float | None = 1.0, **values: Any) -> SweepJob:
    return SweepJob(name, values, result)


def numbers(path: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?[\d.]+", path)]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abcdef"), VALUES),
            st.none() | st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_every_job_lies_within_the_picture(given: list[tuple[dict[str, Any], float | None]]) -> None:
    jobs = [SweepJob(f"job-{n}", values, result) for n, (values, result) in enumerate(given)]
    chart = draw_sweep(jobs, "loss", None)
    if not any(values for values, _ in given) or all(result is None for _, result in given):
        assert chart is None
        return
    assert chart is not None
    assert len(chart.jobs) == len(jobs)
    for each in chart.jobs:
        if chart.kind == "lines":
            places = numbers(each.path)
            assert all(0 <= x <= chart.width for x in places[::2])
            assert all(TOP <= y <= HEIGHT - BOTTOM for y in places[1::2])
        if each.point is not None:
            assert 0 <= each.point[0] <= chart.width
            assert TOP <= each.point[1] <= HEIGHT - BOTTOM


def test_several_parameters_are_lines_from_axis_to_axis_and_the_best_comes_last() -> None:
    chart = drawn(
        job("low", 0.5, rate=0.1, optimizer="adam"), job("high", 2.0, rate=0.2, optimizer="sgd"), best=0
    )
    assert chart.kind == "lines"
    assert [each.axis.name for each in chart.axes] == ["rate", "optimizer", "loss"]
    high, low = chart.jobs
    assert low.is_best
    assert (low.grade, high.grade) == (0, 2)
    assert low.tip == "low: loss 0.5; rate=0.1, optimizer=adam"
    bottom, top = HEIGHT - BOTTOM, TOP
    assert numbers(low.path)[1::2] == [bottom, pytest.approx(bottom - (bottom - top) / 4), bottom]
    assert numbers(high.path)[1::2] == [top, pytest.approx(bottom - (bottom - top) * 3 / 4), top]


def test_the_largest_result_is_the_strongest_line_where_it_is_the_best() -> None:
    chart = drawn(job("low", 0.5, a=1, b=1), job("high", 0.9, a=2, b=2), best=1, metric="accuracy")
    assert [(each.tip.split(":")[0], each.grade) for each in chart.jobs] == [("low", 2), ("high", 0)]


def test_one_parameter_is_points_and_a_missing_result_is_a_stroke_on_its_axis() -> None:
    chart = drawn(job("a", 1.0, width=16), job("b", 2.0, width=32), job("c", None, width=64), best=0)
    assert chart.kind == "points"
    points = {each.tip.split(":")[0]: each for each in chart.jobs}
    assert points["a"].point is not None
    assert points["b"].point is not None
    assert points["a"].point[0] < points["b"].point[0]
    assert points["a"].point[1] > points["b"].point[1]  # from the top: the least is at the bottom
    assert points["c"].point is None
    assert points["c"].path.startswith("M")
    assert points["c"].tip == "c: no result; width=64"


def test_a_line_without_a_result_ends_before_the_axis_of_results() -> None:
    chart = drawn(job("done", 1.0, a=1, b=2), job("runs", None, a=2, b=1))
    runs = next(each for each in chart.jobs if each.grade is None)
    assert len(numbers(runs.path)) == 4
    assert "1 of 2 jobs have no result" in chart.summary


def test_a_line_is_interrupted_where_a_job_lacks_a_parameter() -> None:
    chart = drawn(job("whole", 1.0, a=1, b=2, c=3), job("part", 2.0, a=2, c=1))
    part = next(each for each in chart.jobs if each.tip.startswith("part"))
    assert part.path.count("M") == 2
    whole = next(each for each in chart.jobs if each.tip.startswith("whole"))
    assert whole.path.count("M") == 1


def test_a_parameter_that_is_the_same_in_all_jobs_is_left_out_and_named() -> None:
    chart = drawn(job("a", 1.0, rate=0.1, depth=2, seed=0), job("b", 2.0, rate=0.2, depth=4, seed=0))
    assert chart.left_out == ("seed",)
    assert [each.axis.name for each in chart.axes] == ["rate", "depth", "loss"]
    assert "the same in all jobs: seed" in chart.summary
    alone = drawn(job("a", 1.0, seed=0))
    assert (alone.left_out, alone.kind) == ((), "points")


def test_many_parameters_make_a_wide_picture() -> None:
    names = [f"p{n}" for n in range(40)]
    chart = drawn(*(SweepJob(f"j{k}", dict.fromkeys(names, k), float(k)) for k in range(3)))
    assert len(chart.axes) == 41
    gaps = [b.at - a.at for a, b in zip(chart.axes, chart.axes[1:], strict=False)]
    assert min(gaps) >= 100


def test_without_results_or_parameters_there_is_no_picture() -> None:
    assert draw_sweep([job("a", None, rate=1)], "loss", None) is None
    assert draw_sweep([job("a", 1.0)], "loss", None) is None
    assert draw_sweep([], "", None) is None


def test_sizes_over_orders_of_magnitude_are_placed_by_their_logarithm() -> None:
    axis = make_axis("rate", [1e-4, 1e-3, 1e-2])
    assert axis.is_log
    assert axis.place(1e-3) == pytest.approx(0.5)
    assert [tick.text for tick in axis.ticks] == ["0.0001", "0.001", "0.01"]
    assert not make_axis("width", [16, 32, 64]).is_log
    assert not make_axis("shift", [-1, 0, 1000]).is_log
    assert make_axis("width", [16, 16]).place(16) == 0.5


def test_categories_stand_side_by_side_and_numbers_come_before_words() -> None:
    axis = make_axis("batch", ["auto", 8, 4, True])
    assert [tick.text for tick in axis.ticks] == ["4", "8", "True", "auto"]
    assert [tick.place for tick in axis.ticks] == [0.125, 0.375, 0.625, 0.875]


def test_an_axis_of_many_values_names_some_of_them() -> None:
    words = make_axis("seed", [f"word-{n:03}" for n in range(500)])
    assert MOST_TICKS <= len(words.ticks) <= 3 * MOST_TICKS
    sizes = make_axis("dropout", [n / 100 for n in range(100)])
    assert [tick.text for tick in sizes.ticks] == ["0", "0.2475", "0.495", "0.7425", "0.99"]
    close = make_axis("x", [100.0, 100.5, 101.0, 150.0])
    assert [tick.text for tick in close.ticks] == ["100", "150"]


def test_long_and_hostile_values_are_cut_and_made_visible() -> None:
    axis = make_axis("name", ["x" * 100, "\x1b[31m\u202e"])
    assert all(len(tick.short) <= 14 for tick in axis.ticks)
    assert "\\x1b[31m\\u202e" in {tick.text for tick in axis.ticks}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("workload.lr", "workload.lr"),
        ("environment.SLOPE", "SLOPE"),
        ("environment.A_NAME_WITHOUT_ROOM", "A_NAME_WITHOU…"),
        ("learning-rate-of-all", "learning-rate…"),
    ],
)
def test_a_name_of_an_axis_keeps_the_part_that_tells_most(name: str, short: str) -> None:
    assert make_axis(name, [1, 2]).short == short
