"""Facts: the values that the conditions of a policy test.

A fact that is missing in a mapping is unknown.  There is no value for that, and a rule cannot test for it:
a comparison with an unknown fact is unknown, and a rule acts only when its condition is true.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Final, TypeAlias

Scalar: TypeAlias = bool | int | float | str
FactValue: TypeAlias = Scalar | tuple[Scalar, ...]
Facts: TypeAlias = Mapping[str, FactValue]

_VALUES: Final = (bool, int, float, str)
_NUMBERS: Final = (int, float)

MAX_TEXT: Final = 200
"""Characters of a free text that are kept; a container may have written it."""

MAX_ENTRIES: Final = 100
"""Entries of a list fact that are kept."""


class DecisionPoint(StrEnum):
    """The points in the life of a job at which a policy decides."""

    EXIT = "exit"  # once, when an attempt has ended
    WATCH = "watch"  # every few seconds, about an attempt that runs
    CHANGE = "change"  # a new revision or profile is offered while the job runs


class FactKind(StrEnum):
    """The type of the values of a fact."""

    TRUTH = "true or false"
    WHOLE = "whole number"
    NUMBER = "number"
    WORD = "word"  # of a closed set
    TEXT = "text"  # any text
    WORDS = "list of words"
    WHOLES = "list of whole numbers"


NUMERIC: Final = frozenset({FactKind.WHOLE, FactKind.NUMBER})
LISTS: Final = frozenset({FactKind.WORDS, FactKind.WHOLES})


@dataclass(frozen=True, slots=True)
class Fact:
    """The definition of one fact.

    ``hint``: the value comes from the container.  It may decide about its own job, but it makes no attempt
    free of charge.  ``derived``: it is computed from the history or the policy, and not read anywhere.
    """

    name: str
    kind: FactKind
    decision_points: tuple[DecisionPoint, ...]
    meaning: str
    source: str
    values: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    unit: str = ""
    hint: bool = False
    derived: bool = False

    def allows(self, value: object) -> bool:
        """Return True if a value is possible for this fact, or for an entry of a list fact."""
        match self.kind:
            case FactKind.TRUTH:
                return isinstance(value, bool)
            case FactKind.WORD:
                return isinstance(value, str) and self.has_word(value)
            case FactKind.WORDS | FactKind.TEXT:
                return isinstance(value, str)
            case FactKind.WHOLE | FactKind.WHOLES:
                return isinstance(value, int) and self._in_range(value)
            case FactKind.NUMBER:  # exhaustive
                return isinstance(value, _NUMBERS) and self._in_range(value)

    def has_word(self, word: str) -> bool:
        """Return True if a word is a possible value; ``watch/...`` stands for any rule of ``on_watch``."""
        return word in self.values or ("watch/..." in self.values and word.startswith("watch/"))

    def _in_range(self, value: float) -> bool:
        if isinstance(value, bool):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def read(self, value: object) -> FactValue | None:
        """Return a value as it is stored; None if it is not possible for this fact."""
        if self.kind not in LISTS:
            return self._single(value)
        entries = value if isinstance(value, tuple | list) else (None,)
        kept = tuple(entry for entry in map(self._single, entries[:MAX_ENTRIES]) if entry is not None)
        return kept if len(kept) == len(entries[:MAX_ENTRIES]) else None

    def _single(self, value: object) -> Scalar | None:
        if not isinstance(value, _VALUES) or not self.allows(value):
            return None
        if self.hint and isinstance(value, float) and not isfinite(value):
            return None
        return value[:MAX_TEXT] if isinstance(value, str) else value
