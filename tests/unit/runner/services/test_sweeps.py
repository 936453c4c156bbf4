"""The value of a candidate at a rung."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.accounting.curve import Curve
from runner.core.sweep import SweepTerms
from runner.services.sweeps import SweepService, _value_at


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


def test_a_value_that_was_decided_by_stays_when_a_long_curve_is_thinned() -> None:
    noted: list[str] = []
    store = SimpleNamespace(noted=lambda _job, _kind: noted)
    sweeps = cast("Any", SimpleNamespace(service=SimpleNamespace(store=store)))
    made = Curve()

    def values() -> tuple[float | None, ...]:
        return SweepService._values(sweeps, SweepTerms("loss", rungs=(10, 30)), "1", {"loss": made}, 1)

    for step in range(3000):
        made.add(float(step), step, 1.0 / (step + 1))
        if step == 10:
            assert values() == (0.0909091,)
            noted.append("step 10: loss 0.0909091 is 1 of 3; goes on")
    assert _value_at({"loss": made}, "loss", 10) != pytest.approx(1.0 / 11)
    assert values() == (0.0909091,)
