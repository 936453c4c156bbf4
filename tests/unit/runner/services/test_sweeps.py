"""The value of a candidate at a rung."""

from collections.abc import Mapping

import pytest

from runner.core.accounting.curve import Curve
from runner.services.sweeps import _value_at


def curve(points: Mapping[int, float]) -> Curve:
    """Return a curve with one value at some steps, each at its time."""
    made = Curve()
    for step, at in points.items():
        made.add(at, step, 0.5)
    return made


@pytest.mark.parametrize(
    ("values", "lost", "value"),
    [
        ({10: 10.0}, {}, 0.5),
        ({}, {10: 10.0}, None),
        ({5: 5.0}, {10: 10.0}, None),
        ({10: 10.0}, {5: 5.0}, 0.5),
        ({10: 10.0}, {15: 15.0}, 0.5),
        ({10: 30.0}, {10: 10.0}, 0.5),
    ],
    ids=["reported", "never-finite", "lost", "back", "lost-after-the-rung", "repeated-by-a-later-attempt"],
)
def test_the_last_report_up_to_a_rung_counts(
    values: dict[int, float], lost: dict[int, float], value: float | None
) -> None:
    curves = {"loss": curve(values), "loss not finite": curve(lost)}
    assert _value_at(curves, "loss", 10) == value
