"""One line of the results: the measured and the compared series, and whether the aim was met."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias

from bench.support.stats import Ratio, median, p95, paired_ratio, ratio

Unit: TypeAlias = Literal[
    "ms",
    "s",
    "MiB",
    "%",
    "jobs/s",
    "windows/s",
    "requests",
    "jobs",
    "steps",
    "x",
    "descriptors",
    "threads",
    "directories",
]


class CannotMeasure(Exception):
    """A requirement is missing; the message names it in one line."""


@dataclass(frozen=True, slots=True)
class Series:
    """The repeated measurements of one thing, in the order of the rounds."""

    label: str
    unit: Unit
    values: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.values)

    @property
    def p95(self) -> float:
        return p95(self.values)


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim: at most ``limit``, for the ratio of the medians or for the runner's median."""

    limit: float
    of: Literal["ratio", "p50"]
    at_least: bool = False  # at least ``limit`` instead, where more is better


@dataclass(frozen=True, slots=True)
class Result:
    """The runner's series, the compared series, and the aim."""

    bench: str
    ours: Series
    theirs: Series | None = None
    aim: Aim | None = None
    note: str = ""
    paired: bool = False  # the median of ratios instead of the ratio of medians
    of_means: bool = False  # the ratio of means

    @property
    def ratio(self) -> Ratio | None:
        if self.theirs is None:
            return None
        if self.of_means:
            return ratio(self.ours.values, self.theirs.values, fmean)
        return (paired_ratio if self.paired else ratio)(self.ours.values, self.theirs.values)

    @property
    def met(self) -> bool | None:
        """Return True if the aim was met; None when there is none."""
        if self.aim is None:
            return None
        spread = self.ratio
        reached = self.ours.p50 if self.aim.of == "p50" or spread is None else spread.value
        return reached >= self.aim.limit if self.aim.at_least else reached <= self.aim.limit


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A line without a measurement, and the reason."""

    bench: str
    label: str
    why: str


Line: TypeAlias = Result | NotMeasured


def in_milliseconds(label: str, seconds: tuple[float, ...]) -> Series:
    return Series(label, "ms", tuple(value * 1000 for value in seconds))


def as_json(line: Line) -> Mapping[str, Any]:
    """Return all data of a line, including the single measurements."""
    if isinstance(line, NotMeasured):
        return asdict(line)
    spread = line.ratio
    return {
        **asdict(line),
        "p50": line.ours.p50,
        "p95": line.ours.p95,
        "ratio": None if spread is None else asdict(spread),
        "met": line.met,
    }
