"""Lines of ``metrics.jsonl`` and kept curves, as a job or a damaged disk may leave them."""

import json

import pytest

from runner.core.accounting.curve import MOST_POINTS, Curve
from runner.core.accounting.curve_set import MOST_CURVES, CurveSet, NewNumbers, parse_curves, parse_line


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"7",
        b'{"step": 1}',
        b'{"time": 1, "step": -1}',
        b'{"time": "NaN", "step": 1}',
        b'{"time": 1, "step": 1' + b"[" * 100_000,
        b"\xff",
        b'{"time": 1e999, "step": 1}',
        b'{"time": 1e300, "step": 1}',
        b'{"time": -1, "step": 1}',
        b'{"time": 1, "step": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_line_that_is_not_valid_is_left_out(line: bytes) -> None:
    assert parse_line(line) is None


def test_a_line_gives_its_numbers_alone() -> None:
    line = json.dumps(
        {"time": 5, "step": 3, "loss": 0.5, "name": "x", "done": True, "items": 4, "huge": 10**400}
    )
    assert parse_line(line.encode()) == (5.0, 3, {"loss": 0.5, "items": 4.0})


def test_a_value_that_was_lost_is_a_curve_of_its_own_for_a_name_that_has_values() -> None:
    read, kept = CurveSet(), CurveSet()
    for step, value in enumerate(("0.5", "NaN", "null", "-Infinity")):
        read.add_line(b'{"time": 1, "step": %d, "loss": %s, "norm": null}' % (step, value.encode()))
    kept.take(read.numbers())
    assert {name: [point.step for point in curve.points] for name, curve in kept.curves.items()} == {
        "loss": [0],
        "loss not finite": [1, 2, 3],
    }


def test_a_name_that_never_had_a_finite_value_is_known_all_the_same() -> None:
    read, kept, logged = CurveSet(), CurveSet(), CurveSet()
    read.add_line(b'{"time": 1, "step": 1, "loss": 1, "val_loss": NaN}')
    read.add_line(b'{"time": 2, "step": 2, "loss": NaN}')
    kept.take(read.numbers())
    logged.add("loss", 1.0, 1, 0.5)
    logged.add("val_loss", 1.0, 1, float("nan"))
    for each in (kept, logged):
        again = parse_curves(json.loads(json.dumps(each.json())))
        assert again.metrics() == {"loss", "val_loss"}
        assert "val_loss" not in again.curves


def test_a_value_that_was_lost_before_there_was_any_in_the_same_piece_is_kept() -> None:
    read, kept = CurveSet(), CurveSet()
    for step, value in enumerate((b"NaN", b"0.5", b"NaN")):
        read.add_line(b'{"time": 1, "step": %d, "loss": %s}' % (step, value))
    kept.take(read.numbers())
    assert [point.step for point in kept.curves["loss not finite"].points] == [0, 2]


def test_names_without_a_value_take_the_place_of_none_with_values() -> None:
    read, kept = CurveSet(), CurveSet()
    read.add_line(
        json.dumps({"time": 1, "step": 1} | {f"x{n}": None for n in range(2 * MOST_CURVES)}).encode()
    )
    read.add_line(json.dumps({"time": 2, "step": 2} | {f"n{n}": 1.0 for n in range(MOST_CURVES)}).encode())
    kept.take(read.numbers())
    assert list(kept.curves) == [f"n{n}" for n in range(MOST_CURVES)]
    assert len(kept.lost) == MOST_CURVES
    assert len(read.curves) == 2 * MOST_CURVES


def test_no_more_names_are_kept_than_the_limit() -> None:
    curves = CurveSet()
    for number in range(MOST_CURVES + 10):
        curves.add(f"name {number}" + "x" * 1000, 1.0, 1, 1.0)
    assert len(curves.curves) == MOST_CURVES
    assert max(map(len, curves.curves)) == 100


def test_lines_are_added_and_kept() -> None:
    curves = CurveSet()
    for step in range(3):
        curves.add_line(b'{"time": %d, "step": %d, "loss": 1}' % (step, step))
    curves.add_line(b"[]")
    assert [point.step for point in curves.curves["loss"].points] == [0, 1, 2]
    assert curves.has_file
    assert parse_curves(json.loads(json.dumps(curves.json()))) == curves


def test_what_a_file_has_gained_is_taken_as_if_it_had_been_read_here() -> None:
    whole, taken = CurveSet(), CurveSet()
    for first in range(0, 100, 10):
        part = CurveSet(offset=first)
        for step in range(first, first + 10):
            for each in (whole, part):
                each.add_line(b'{"time": %d, "step": %d, "loss": %d}' % (step, step, step % 7))
        taken.take(part.numbers())
    assert taken.curves == whole.curves
    assert taken.has_file


def test_more_than_fits_is_taken_in_points_that_stand_for_several_values() -> None:
    taken, most = CurveSet(), 0
    for first in range(0, 20_000, 5000):
        part = CurveSet()
        for step in range(first, first + 5000):
            part.add("loss", float(step), step, float(step))
            part.add("use", float(step), None, 1.0)
        taken.take(part.numbers())
    for curve in taken.curves.values():
        assert sum(point.values for point in curve.points) == 20_000
        most = max(most, len(curve.points))
    assert most <= MOST_POINTS
    assert (taken.curves["loss"].points[0].low, taken.curves["loss"].points[-1].high) == (0.0, 19_999.0)


def test_what_is_taken_is_bounded_and_finite() -> None:
    curves = CurveSet()
    many = {f"n{n}": ((1.0, 1, 1.0, 1.0, 1.0, 1),) for n in range(MOST_CURVES + 9)}
    curves.take(NewNumbers(1, has_any=False, curves=many))
    assert len(curves.curves) == MOST_CURVES
    curve = Curve()
    curve.add_points(((1.0, None, float("nan"), 1.0, 1.0, 2), (1.0, 1, float("inf"), 1.0, 1.0, 1)))
    assert curve.points == []
    curve.add_points(((1.0, None, 1.0, 1.0, 1.0, 1),) * (MOST_POINTS + 9))
    assert sum(point.values for point in curve.points) == MOST_POINTS


def test_energy_is_what_the_counters_of_an_attempt_grow_by() -> None:
    curves = CurveSet()
    assert CurveSet().energy_j is None
    curves.count_energy({"1 GPU-a": 500.0, "1 GPU-b": 10.0})
    curves.count_energy({"1 GPU-a": 560.0, "1 GPU-b": 12.0})
    assert curves.energy_j == 62.0
    kept = parse_curves(json.loads(json.dumps(curves.json())))  # a daemon that was killed meanwhile
    kept.count_energy({"1 GPU-a": 600.0})
    kept.count_energy({"1 GPU-a": 3.0})  # the driver was loaded anew
    kept.count_energy({"2 GPU-a": 900.0})  # another attempt; other jobs had it meanwhile
    kept.count_energy({"2 GPU-a": 901.0})
    assert kept.energy_j == 103.0


@pytest.mark.parametrize("kept", [None, 7, {}, {"curves": []}, {"curves": {"loss": {"points": [[1]]}}}])
def test_kept_curves_that_cannot_be_read_begin_anew(kept: object) -> None:
    assert parse_curves(kept) == CurveSet()
