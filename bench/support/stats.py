"""Statistics of repeated measurements: medians, percentiles, and ratios with confidence intervals."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

DRAWS: Final = 1000
TAIL: Final = 0.05
"""Cut off at either end, so that an interval covers nine draws in ten."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians, with the interval that contains 90 % of the resampled ratios."""

    value: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie, interpolated between two if necessary."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def p95(values: Sequence[float]) -> float:
    return percentile(values, 0.95)


def ratio(
    ours: Sequence[float], theirs: Sequence[float], middle: Callable[[Sequence[float]], float] = median
) -> Ratio:
    """Return the ratio of the medians of two series that were measured in turns, or that of their means.

    The interval comes from a bootstrap over rounds, not over values: a disturbance in one round
    affects both series.  The random draws are the same every time.

    Raises:
        ValueError: the series are not of the same rounds, or empty.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} values: not measured in the same rounds")
    rounds, dice = range(len(ours)), random.Random(0)  # noqa: S311 - no secret
    drawn = [
        _ratio_of(ours, theirs, dice.choices(rounds, k=len(rounds)), middle)
        for _ in range(DRAWS if len(ours) > 1 else 1)
    ]
    return Ratio(
        _ratio_of(ours, theirs, rounds, middle), percentile(drawn, TAIL), percentile(drawn, 1 - TAIL)
    )


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the median of the ratios of each round, for rounds shorter than typical disturbances.

    Raises:
        ValueError: the series are not of the same rounds, or empty.
    """
    return ratio([mine / other for mine, other in zip(ours, theirs, strict=True)], [1.0] * len(theirs))


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of a series per position, with the interval that contains 90 % of the resampled slopes."""

    value: float
    low: float
    high: float


def slope(values: Sequence[float]) -> Slope:
    """Return the median of the slopes between all pairs (Theil-Sen), which is robust against outliers.

    Raises:
        ValueError: there are fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} value(s) have no slope")
    places, dice = range(len(values)), random.Random(0)  # noqa: S311 - no secret
    drawn = [_slope_of(values, dice.choices(places, k=len(places))) for _ in range(DRAWS)]
    known = [each for each in drawn if each is not None]
    return Slope(_slope_of(values, places) or 0.0, percentile(known, TAIL), percentile(known, 1 - TAIL))


def _slope_of(values: Sequence[float], places: Sequence[int]) -> float | None:
    """Return the median slope, or None if all positions are equal."""
    pairs = [(a, b) for a, b in combinations(places, 2) if a != b]
    return median([(values[b] - values[a]) / (b - a) for a, b in pairs]) if pairs else None


def _ratio_of(
    ours: Sequence[float],
    theirs: Sequence[float],
    rounds: Sequence[int],
    middle: Callable[[Sequence[float]], float],
) -> float:
    return middle([ours[i] for i in rounds]) / middle([theirs[i] for i in rounds])
