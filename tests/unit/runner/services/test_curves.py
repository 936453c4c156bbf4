"""Lines of ``metrics.jsonl`` and kept curves, as a job or a damaged disk may leave them."""

import json
from io import BytesIO

import pytest

from runner.services.curves import MOST_CURVES, CurveSet, _add_line, _pieces, parse_curves, parse_line


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


def test_no_more_names_are_kept_than_the_limit() -> None:
    curves = CurveSet()
    for number in range(MOST_CURVES + 10):
        curves.add(f"name {number}" + "x" * 1000, 1.0, 1, 1.0)
    assert len(curves.curves) == MOST_CURVES
    assert max(map(len, curves.curves)) == 100


def test_a_file_that_grows_is_read_once() -> None:
    curves, lines = CurveSet(), [b'{"time": %d, "step": %d, "loss": 1}\n' % (n, n) for n in range(4)]
    for end in (lines[0] + lines[1][:5], lines[0] + lines[1] + lines[2], b"".join(lines)):
        for piece in _pieces(BytesIO(end), curves, 9):
            for line in piece.splitlines():
                _add_line(curves, line)
    assert [point.step for point in curves.curves["loss"].points] == [0, 1, 2, 3]
    assert curves.has_file
    assert parse_curves(json.loads(json.dumps(curves.json()))) == curves


@pytest.mark.parametrize("kept", [None, 7, {}, {"curves": []}, {"curves": {"loss": {"points": [[1]]}}}])
def test_kept_curves_that_cannot_be_read_begin_anew(kept: object) -> None:
    assert parse_curves(kept) == CurveSet()
