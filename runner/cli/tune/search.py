"""The search of ``runner tune``: which settings are tried, and which of them are kept.

The module does no I/O.  Each setting is looked at once between two attempts without it.  Those that seemed
faster are compared in pairs of attempts, in turns (A B, B A), so that a machine that becomes slower or faster
favours neither.  A setting is kept if the lower bound of its ratio is above 1; while the bounds are on both
sides of 1, the time that the others have left goes into further pairs.  In the end all that was kept
is compared with the job as it was; if that is not faster for certain, nothing is kept.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from runner.base.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAIRS: Final = 4
"""Pairs of attempts that a setting is decided by."""

MORE: Final = 2
"""Further pairs at a time of what these leave open; in turns, so an even number."""

STUDENT: Final = {1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015}
"""The 95 % quantile of Student's t by degrees of freedom; with more, less than 1.645 + 1.75 / freedom."""

NEAR: Final = 0.9
"""Speed at first sight beside this arm's from which another is looked at again, if there is time."""

WORTHWHILE: Final = 1.01
"""A setting that is surely less than this is decided: it is not worth having."""

TOO_LATE: Final = "the time was over"

TOLERANCE: Final = 0.01
"""By how much the mean of the first losses may differ if the work is the same; rounding differs less."""

COMPARED: Final = 20
"""First steps whose losses are compared."""


class Variation(NamedTuple):
    """One value of one setting; ``place`` is where it is said: profile, environment or command."""

    place: str
    name: str
    value: Any
    before: Any

    @property
    def title(self) -> str:
        """The setting and its two values as text."""
        return f"{self.name}: {_word(self.before)} -> {_word(self.value)}"


Pair: TypeAlias = tuple[float, float]
"""The speed without a change and with it, of two attempts after each other."""

Variations: TypeAlias = tuple[Variation, ...]
"""Differences of an attempt from the job file."""


class ShortAttempt(NamedTuple):
    """One short attempt: steps or items per second, or the reason why there is no rate."""

    rate: float | None
    took_s: float
    why: str = ""
    losses: Mapping[int, float] = {}  # by step, the first ones


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed as a ratio: the mean of some pairs, and its 90 % interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f}, {self.pairs} pairs)"


@dataclass(slots=True)
class TriedSetting:
    """A candidate and its result; ``undecided``: the time was over before it was known whether it helps."""

    candidate: Variation
    why: str
    kept: bool = False
    undecided: bool = False
    ratio: Ratio | None = None


@dataclass(slots=True)
class _Open:
    """A setting that did the same work: its ratio at first sight, and the pairs beside what was kept."""

    row: TriedSetting
    first: float
    took_s: float
    beside: Variations = ()
    pairs: list[Pair] = field(default_factory=list)


@dataclass(slots=True)
class Search:
    """A search within a time; ``left_s`` says how much of it there is still."""

    measure: Callable[[Variations], ShortAttempt]
    left_s: Callable[[], float]
    rows: list[TriedSetting] = field(default_factory=list)
    kept: Variations = ()
    final: Ratio | None = None
    longest_s: float = 0.0
    """Longest time of an attempt: what was found already keeps its time when another one is looked at."""
    _attempt_s: float = 0.0

    def run(self, candidates: Iterable[Variation], attempt_s: float) -> None:
        """Try all candidates; an attempt of the job as it is takes about so many seconds.

        Raises:
            Unavailable: the job fails as it is, which ran before.
        """
        self._attempt_s = attempt_s
        queue = sorted(self._screen(candidates), key=lambda each: -each.first)
        while queue:
            each = queue.pop(0)
            if self._has_time_for(each):
                self._judge(each)
                queue += [each] if each.row.undecided else []
            elif each.first > 1 and not each.pairs:
                each.row.why += f"; not decided: {TOO_LATE}"
                each.row.undecided = True
        if self.kept:
            self._confirm()

    @staticmethod
    def least_s(attempt_s: float) -> float:
        """Return the time in which one candidate can be tried, decided and confirmed."""
        return attempt_s * (3 + 4 * PAIRS)

    def _screen(self, candidates: Iterable[Variation]) -> list[_Open]:
        """Look at each candidate once; return those that may be faster."""
        found: list[_Open] = []
        plain: ShortAttempt | None = None
        for candidate in candidates:
            if self.left_s() < self.least_s(self._attempt_s) + (self.longest_s if found else 0.0):
                self.rows.append(TriedSetting(candidate, f"not tried: {TOO_LATE}", undecided=True))
                continue
            before = plain if plain and plain.rate else self.measure(())
            if before.rate is None and self.left_s() > 0:
                raise Unavailable(
                    f"as it is, the job ran before, and not again: {before.why}; nothing is kept"
                )
            tried = self.measure((candidate,))
            plain = self.measure(())
            self._attempt_s = plain.took_s
            row = TriedSetting(candidate, tried.why or before.why or plain.why or unequal(tried, before))
            self.rows.append(row)
            if not row.why and tried.rate and before.rate and plain.rate:
                first = tried.rate / math.sqrt(before.rate * plain.rate)
                row.why = f"{first:.2f} x at first sight"
                found += [_Open(row, first, tried.took_s)] if first > NEAR else []
        return found

    def _has_time_for(self, each: _Open) -> bool:
        """Return True if there is time for some pairs of a setting, and for the last comparison after them.

        What is kept already may need further pairs there, too: it comes before what stayed undecided.
        """
        last = 4 * PAIRS if self.kept and each.pairs else 2 * PAIRS
        count = MORE if each.pairs and each.beside == self.kept else PAIRS
        return self.left_s() >= count * (self._attempt_s + each.took_s) + last * self._attempt_s

    def _judge(self, each: _Open) -> None:
        """Compare a setting in some more pairs, and keep it if it is faster for certain."""
        row, new = each.row, replaced(self.kept, each.row.candidate)
        if each.beside != self.kept:
            each.beside, each.pairs = self.kept, []
        row.undecided = False
        row.why = self._compare(self.kept, new, each.pairs)
        if row.why:
            return
        row.ratio = ratio_of(each.pairs)
        row.kept, row.undecided = row.ratio.low > 1, is_unsure(row.ratio)
        row.why = "faster" if row.kept else "not faster for certain"
        if row.kept:
            for other in self.rows:
                if other.kept and other is not row and other.candidate.name == row.candidate.name:
                    other.kept, other.why = False, f"{row.candidate.title} is faster still"
            self.kept = new

    def _confirm(self) -> None:
        """Compare what was kept with the job as it was, and keep nothing that does not hold."""
        pairs: list[Pair] = []
        why = self._compare((), self.kept, pairs)
        while not why and is_unsure(ratio_of(pairs)) and self.left_s() >= 2 * MORE * self._attempt_s:
            why = self._compare((), self.kept, pairs)
        self.final = None if why else ratio_of(pairs)
        if self.final is not None and self.final.low > 1:
            return
        self.kept = ()
        for row in self.rows:
            if row.kept:
                row.kept, row.why = False, why or "did not hold when it was measured again"
                row.undecided = self.final is not None and is_unsure(self.final)

    def _compare(self, old: Variations, new: Variations, pairs: list[Pair]) -> str:
        """Add pairs of both speeds, or return the reason why one is unknown."""
        for number in range(MORE if pairs else PAIRS):
            turns = (old, new) if number % 2 == 0 else (new, old)
            found = {settings: self.measure(settings) for settings in turns}
            for attempt in found.values():
                if attempt.rate is None:
                    return attempt.why
            pairs.append((found[old].rate or 0.0, found[new].rate or 0.0))
        return ""


def ratio_of(pairs: Sequence[Pair]) -> Ratio:
    """Return the geometric mean of the ratios of the second speed to the first, with its bounds."""
    logs = [math.log(new / old) for old, new in pairs]
    mean = statistics.fmean(logs)
    freedom = len(logs) - 1
    margin = STUDENT.get(freedom, 1.645 + 1.75 / freedom) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin), len(logs))


def is_unsure(ratio: Ratio) -> bool:
    """Return True if a setting may help, and may not."""
    return ratio.low <= 1 and ratio.high > WORTHWHILE


def replaced(settings: Variations, candidate: Variation) -> Variations:
    """Return settings with one more, in place of another value of the same."""
    return (*(each for each in settings if each[:2] != candidate[:2]), candidate)


def unequal(ours: ShortAttempt, theirs: ShortAttempt) -> str:
    """Return the evidence that two attempts did not do the same work; empty if there is none."""
    steps = sorted(ours.losses.keys() & theirs.losses.keys())[:COMPARED]
    if not steps:
        return ""
    mine, other = (statistics.fmean(each.losses[step] for step in steps) for each in (ours, theirs))
    if math.isclose(mine, other, rel_tol=TOLERANCE):
        return ""
    return f"other work: the first losses are {mine:.4g}, not {other:.4g}"


def _word(value: object) -> str:
    """Return a value in the notation of YAML."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
