"""Curves as pictures that need no script: lines of an SVG, with their axes.

Where scripts run, uPlot draws the same numbers, so that one can zoom and read values off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runner.dashboard.text import size

Row = Sequence[Any]
"""A point of an answer: time, step, mean, least, largest, number of values."""

WIDTH: Final = 640
HEIGHT: Final = 200
LEFT: Final = 64
BOTTOM: Final = 22
MARGIN: Final = 8

MOST_DRAWN: Final = 400
"""Points of one line: more than a picture of this width can show make the page long."""

FIRST: Final = (
    "loss",
    "train_loss",
    "eval_loss",
    "items_per_s",
    "gradient_norm",
    "learning_rate",
    "memory_bytes",
)
"""The curves that come first, in this order."""

DAY_S: Final = 86400.0
STRIP_SLOTS: Final = 96
"""Cells of a day's strip: a quarter of an hour each."""


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """One line of a chart."""

    label: str
    path: str
    number: int
    """Chooses its colour."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one name."""

    name: str
    lines: tuple[DrawnLine, ...]
    low: str
    high: str
    first: str
    last: str
    summary: str
    """Description of the picture, for those who do not see it."""


def draw(name: str, curves: Mapping[str, Sequence[Row]], axis: str = "step") -> Chart | None:
    """Return a chart of a name with a line for each label; None if there is nothing to draw."""
    lines = {label: points for label, rows in curves.items() if (points := _points(rows, axis))}
    if not lines:
        return None
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    (left, right), (low, high) = _range(xs), _range(ys)
    drawn = tuple(
        DrawnLine(label, _path(points, (left, right), (low, high)), number % 8)
        for number, (label, points) in enumerate(lines.items())
    )
    said = "; ".join(
        f"{label}: last {points[-1][1]:.5g}, least {min(y for _, y in points):.5g},"
        f" largest {max(y for _, y in points):.5g}"
        for label, points in lines.items()
    )
    unit = "" if axis == "step" else " h"
    least, largest = (size(low), size(high)) if name.endswith("bytes") else (f"{low:.4g}", f"{high:.4g}")
    return Chart(name, drawn, least, largest, f"{left:.4g}{unit}", f"{right:.4g}{unit}", f"{name}: {said}")


def strip(rows: Sequence[Row], now: float) -> list[int | None]:
    """Return the use of a device in each quarter of an hour of the last day, 0 to 4; None: not known."""
    slots: list[list[float]] = [[] for _ in range(STRIP_SLOTS)]
    for at, _, mean, *_ in rows:
        slot = int((at - (now - DAY_S)) / DAY_S * STRIP_SLOTS)
        if 0 <= slot < STRIP_SLOTS:
            slots[slot].append(mean)
    return [None if not values else min(int(sum(values) / len(values) / 20), 4) for values in slots]


def _points(rows: Sequence[Row], axis: str) -> list[tuple[float, float]]:
    if axis == "step":
        points = [(float(row[1]), float(row[2])) for row in rows if row[1] is not None]
    else:
        points = [((row[0] - rows[0][0]) / 3600, float(row[2])) for row in rows]
    every = -(-len(points) // MOST_DRAWN) if points else 1
    return points[::every] + (points[-1:] if every > 1 else [])


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _path(points: Sequence[tuple[float, float]], xs: tuple[float, float], ys: tuple[float, float]) -> str:
    wide, tall = WIDTH - LEFT - MARGIN, HEIGHT - BOTTOM - MARGIN
    placed = [
        (
            LEFT + (x - xs[0]) / (xs[1] - xs[0]) * wide,
            MARGIN + (ys[1] - y) / (ys[1] - ys[0]) * tall,
        )
        for x, y in points
    ]
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
