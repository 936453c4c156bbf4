"""A curve: the values of one quantity over time, in a bounded number of points.

A point stands for one or more values that came one after another.  It keeps their mean, their least and their
largest, so that a peak stays visible however long the job runs.  When there are too many points, each two
neighbours become one, and a new point then stands for twice as many values: all points of a curve stand for
the same number of values, but for the last one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

MOST_POINTS: Final = 1024
"""Points of a curve at most; a curve that is full has half of them afterwards."""

MOST_VALUES: Final = 2**40
"""Values of a point at most."""

Row: TypeAlias = tuple[float, int | None, float, float, float, int]
"""A point as it is kept in a file: time, step, mean, least, largest, number of values."""


class Point(NamedTuple):
    """Several successive values of a curve, merged into one point."""

    at: float
    """Unix time of the last of them, in seconds."""
    step: int | None
    """Step of the last of them; None for what has no steps, such as the use of a device."""
    mean: float
    low: float
    high: float
    values: int

    def merged(self, later: "Point") -> "Point":
        """Return one point for the values of this one and of a later one."""
        values = self.values + later.values
        mean = self.mean + (later.mean - self.mean) * (later.values / values)
        return Point(later.at, later.step, mean, min(self.low, later.low), max(self.high, later.high), values)


@dataclass(slots=True)
class Curve:
    """The values of one quantity."""

    values_per_point: int = 1
    points: list[Point] = field(default_factory=list)

    def add(self, at: float, step: int | None, value: float) -> None:
        """Add a value; one that is no finite number is left out.

        A step that the curve has passed already is repeated by a later attempt, which resumed from a
        checkpoint: it takes the place of what was there.
        """
        if not math.isfinite(value) or not math.isfinite(at):
            return
        if step is not None:
            self._forget_from(step)
        new = Point(at, step, value, value, value, 1)
        if self.points and self.points[-1].values < self.values_per_point:
            self.points[-1] = self.points[-1].merged(new)
            return
        self.points.append(new)
        if len(self.points) > MOST_POINTS:
            self._halve()

    def add_points(self, rows: Sequence[Row]) -> None:
        """Add points that stand for values which came later; one with no finite number is left out."""
        for at, step, mean, low, high, values in rows[:MOST_POINTS]:
            if values <= 1:
                self.add(at, step, mean)
                continue
            if not all(map(math.isfinite, (at, mean, low, high))):
                continue
            if step is not None:
                self._forget_from(step)
            while self.values_per_point < min(values, MOST_VALUES):
                self._halve()
            self.points.append(Point(at, step, mean, low, high, values))
            if len(self.points) > MOST_POINTS:
                self._halve()

    def forget_before(self, at: float) -> None:
        """Remove the points that are older than a time."""
        self.points = [point for point in self.points if point.at >= at]

    def rows(self) -> list[Row]:
        """Return the points as plain values."""
        return [(p.at, p.step, p.mean, p.low, p.high, p.values) for p in self.points]

    def _forget_from(self, step: int) -> None:
        while self.points and (last := self.points[-1].step) is not None and last >= step:
            self.points.pop()

    def _halve(self) -> None:
        self.values_per_point *= 2
        pairs = [self.points[i : i + 2] for i in range(0, len(self.points), 2)]
        self.points = [pair[0].merged(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]


def curve_of(values_per_point: int, rows: Sequence[Sequence[float | int | None]]) -> Curve:
    """Return the curve of kept points.

    Raises:
        ValueError: they are no points.
    """
    curve = Curve(values_per_point)
    for at, step, mean, low, high, values in rows:
        if not isinstance(values, int) or values < 1 or not (step is None or isinstance(step, int)):
            raise ValueError("not a point of a curve")
        if at is None or mean is None or low is None or high is None:
            raise ValueError("not a point of a curve")
        curve.points.append(Point(float(at), step, float(mean), float(low), float(high), values))
    return curve
