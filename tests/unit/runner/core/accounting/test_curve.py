"""Curves: bounded, and true to what was added."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.accounting.curve import MOST_POINTS, Curve, curve_of

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5000)


def filled(numbers: list[float]) -> Curve:
    curve = Curve()
    for number, value in enumerate(numbers):
        curve.add(float(number), number, value)
    return curve


@given(values)
def test_however_many_values_there_are_the_points_are_few_and_tell_all_of_them(numbers: list[float]) -> None:
    curve = filled(numbers)
    assert len(curve.points) <= MOST_POINTS
    assert sum(point.values for point in curve.points) == len(numbers)
    assert min(point.low for point in curve.points) == min(numbers)
    assert max(point.high for point in curve.points) == max(numbers)
    total = math.fsum(point.mean * point.values for point in curve.points)
    assert total == pytest.approx(math.fsum(numbers), abs=1e-3)


def test_a_long_curve_has_points_of_equally_many_values() -> None:
    curve = filled([1.0] * (4 * MOST_POINTS + 5))
    assert {point.values for point in curve.points[:-1]} == {curve.values_per_point}
    assert curve.points[-1].step == 4 * MOST_POINTS + 4


def test_a_repeated_step_takes_the_place_of_what_was_there() -> None:
    curve = filled([5.0, 4.0, 3.0, 2.0])
    curve.add(10.0, 2, 7.0)
    assert [(point.step, point.mean) for point in curve.points] == [(0, 5.0), (1, 4.0), (2, 7.0)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out(value: float) -> None:
    curve = filled([1.0])
    curve.add(2.0, 2, value)
    curve.add(value, 2, 1.0)
    assert len(curve.points) == 1


def test_values_without_steps_follow_each_other() -> None:
    curve = Curve()
    curve.add(1.0, None, 10.0)
    curve.add(0.5, None, 20.0)
    assert [point.mean for point in curve.points] == [10.0, 20.0]
    curve.forget_before(0.75)
    assert [point.mean for point in curve.points] == [10.0]


@given(values)
def test_a_kept_curve_is_the_same_one(numbers: list[float]) -> None:
    curve = filled(numbers)
    assert curve_of(curve.values_per_point, curve.rows()) == curve


@pytest.mark.parametrize(
    "row", [(1.0, 1, 1.0, 1.0, 1.0, 0), (None, 1, 1.0, 1.0, 1.0, 1), (1.0, 0.5, 1.0, 1.0, 1.0, 1)]
)
def test_what_is_no_point_is_refused(row: tuple[float | int | None, ...]) -> None:
    with pytest.raises(ValueError, match="not a point"):
        curve_of(1, [row])
