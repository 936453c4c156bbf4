"""The curves of one job or of all devices, and the lines of numbers that they are made of."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from runner.core.accounting.curve import Curve, Row, curve_of

MOST_CURVES: Final = 64
"""Names of one job of which curves are kept: the first ones."""

MOST_NAME: Final = 100
"""Characters of a name."""

NOT_FINITE: Final = " not finite"
"""Behind the name of a curve: the steps at which its value was NaN, infinite or null."""

LATEST_S: Final = 253402300800.0
"""Unix time of the end of the year 9999: later times are no dates."""

MOST_STEPS: Final = 2**63


class LogNumbers(NamedTuple):
    """Numbers that one line of a log tells."""

    at: float
    step: int | None
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NewNumbers:
    """Numbers that a file has gained since the last look, in a bounded number of points."""

    offset: int
    """Bytes of the file that have been read by now."""
    has_any: bool
    curves: Mapping[str, tuple[Row, ...]]


@dataclass(slots=True)
class CurveSet:
    """The curves of one job, or of all devices."""

    curves: dict[str, Curve] = field(default_factory=dict)
    lineage: int = 0
    attempt: int = 0
    """The attempt whose file was read last."""
    offset: int = 0
    """Bytes of its file that have been read."""
    has_file: bool = False
    """True if the attempt has written numbers itself."""
    ended: int = 0
    """The newest attempt that had ended when it was looked at."""
    energy_j: float | None = None
    """Energy of the devices while the job had them; None: none of them has a counter."""
    counters: dict[str, float] = field(default_factory=dict)
    """The energy counters of the devices of its attempt at the last look."""
    is_followed: bool = False
    """True if its log was read since this set was read from the disk; if not, it is read once more."""
    lost: set[str] = field(default_factory=set)
    """Names of which the first values were not finite: they have no curve until one is."""

    def add(self, name: str, at: float, step: int | None, value: float) -> None:
        """Add a value of a name; one that is not finite is lost if the name has had a value."""
        if not math.isfinite(value):
            name, value = _lost(name), 1.0
            if self._is_unknown(name.removesuffix(NOT_FINITE)):
                return
        curve = self._of(name[:MOST_NAME])
        if curve is not None:
            curve.add(at, step, value)

    def count_energy(self, counters: Mapping[str, float]) -> None:
        """Add what counters have grown by since the last look; one that is new or was reset adds nothing."""
        for name, value in counters.items():
            before = self.counters.get(name)
            if before is not None:
                self.energy_j = (self.energy_j or 0.0) + max(value - before, 0.0)
        self.counters = dict(counters)

    def add_line(self, raw: bytes) -> None:
        """Add the numbers of a line of ``metrics.jsonl``; one that is not valid is left out."""
        said = parse_line(raw)
        if said is None:
            return
        at, step, numbers = said
        self.has_file = True
        for name, value in numbers.items():
            self.add(name, at, step, value)

    def take(self, new: NewNumbers) -> None:
        """Add what a file has gained; a name that has had no value is not lost by having none."""
        self.offset, self.has_file = new.offset, self.has_file or new.has_any
        for name, rows in sorted(new.curves.items(), key=lambda each: _is_lost(each[0])):  # values first
            if _is_lost(name) and self._is_unknown(name.removesuffix(NOT_FINITE)):
                continue
            curve = self._of(name[:MOST_NAME])
            if curve is not None:
                curve.add_points(rows)

    def numbers(self) -> NewNumbers:
        """Return all of it as what another set takes."""
        return NewNumbers(
            self.offset, self.has_file, {name: tuple(each.rows()) for name, each in self.curves.items()}
        )

    def metrics(self) -> frozenset[str]:
        """Return the names that were reported, whether a value was finite or not."""
        return frozenset(self.lost) | {name.removesuffix(NOT_FINITE) for name in self.curves}

    def _is_unknown(self, name: str) -> bool:
        """Return True for a name that has had no value, which is noted."""
        unknown = name not in self.curves
        if unknown and len(self.lost) < MOST_CURVES:
            self.lost.add(name)
        return unknown

    def _of(self, name: str) -> Curve | None:
        if name not in self.curves:
            if sum(_is_lost(each) == _is_lost(name) for each in self.curves) >= MOST_CURVES:
                return None  # what was lost takes the place of no values
            self.curves[name] = Curve()
        return self.curves[name]

    def json(self) -> dict[str, Any]:
        """Return its value for the store."""
        return {
            "lineage": self.lineage,
            "attempt": self.attempt,
            "offset": self.offset,
            "has_file": self.has_file,
            "ended": self.ended,
            "energy_j": self.energy_j,
            "counters": self.counters,
            "lost": sorted(self.lost),
            "curves": {
                name: {"values_per_point": curve.values_per_point, "points": curve.rows()}
                for name, curve in self.curves.items()
            },
        }


def parse_curves(kept: Any) -> CurveSet:  # noqa: ANN401  JSON
    """Return kept curves; those that cannot be read begin anew."""
    try:
        curves = {
            str(name): curve_of(int(each["values_per_point"]), each["points"])
            for name, each in kept["curves"].items()
        }
        return CurveSet(
            curves,
            int(kept["lineage"]),
            int(kept["attempt"]),
            int(kept["offset"]),
            bool(kept["has_file"]),
            int(kept.get("ended", 0)),
            None if kept.get("energy_j") is None else float(kept["energy_j"]),
            {str(name): float(value) for name, value in kept.get("counters", {}).items()},
            lost={str(name) for name in kept.get("lost", ())},
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return CurveSet()


def parse_line(raw: bytes) -> tuple[float, int, Mapping[str, float]] | None:
    """Return the time, the step and the numbers of a line of ``metrics.jsonl``; None if it is not valid."""
    try:
        said = json.loads(raw.decode())
        at, step = float(said.pop("time")), int(said.pop("step"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if not (0 <= at < LATEST_S and 0 <= step < MOST_STEPS):
        return None
    numbers = {str(name): float(value) for name, value in said.items() if _is_number(value)}
    lost = (name for name, value in said.items() if value is None or isinstance(value, float))
    numbers |= {_lost(str(name)): 1.0 for name in lost if name not in numbers}
    return at, step, numbers


def _lost(name: str) -> str:
    return f"{name[: MOST_NAME - len(NOT_FINITE)]}{NOT_FINITE}"


def _is_lost(name: str) -> bool:
    return name.endswith(NOT_FINITE)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
