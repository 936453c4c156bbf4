"""What is said about repeated measurements: medians, tails, and ratios with how sure they are."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DRAWS: Final = 1000
TAIL: Final = 0.05
"""Cut off at either end, so that an interval covers nine draws in ten."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of medians, and the interval in which nine in ten resampled ones lie."""

    value: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the others lie, between two of them if need be."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def p95(values: Sequence[float]) -> float:
    return percentile(values, 0.95)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of the medians of two series that were measured in turns.

    The interval comes from a bootstrap over rounds, not over values: what disturbed the
    machine in one round disturbed both series.  The draws are the same every time.

    Raises:
        ValueError: the series are not of the same rounds, or empty.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} values: not measured in the same rounds")
    rounds, dice = range(len(ours)), random.Random(0)  # noqa: S311 - no secret
    drawn = [
        _ratio_of(ours, theirs, dice.choices(rounds, k=len(rounds)))
        for _ in range(DRAWS if len(ours) > 1 else 1)
    ]
    return Ratio(_ratio_of(ours, theirs, rounds), percentile(drawn, TAIL), percentile(drawn, 1 - TAIL))


def _ratio_of(ours: Sequence[float], theirs: Sequence[float], rounds: Sequence[int]) -> float:
    return median([ours[i] for i in rounds]) / median([theirs[i] for i in rounds])
