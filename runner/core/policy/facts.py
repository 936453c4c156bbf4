"""What a policy may ask about: the kinds of facts, and what happens to a fact that nobody knows.

A fact that is not in a mapping is unknown.  There is no value for that and no way to ask for
it in a rule: a comparison with an unknown fact is unknown, and a rule acts only when it is true.
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
"""Characters of a free text that are kept: a container may have written them."""

MAX_ENTRIES: Final = 100
"""Entries of a list fact that are kept."""


class DecisionPoint(StrEnum):
    """When a policy is asked."""

    EXIT = "exit"  # once, when an attempt has ended
    WATCH = "watch"  # every few seconds, about an attempt that runs
    CHANGE = "change"  # a new revision or profile is offered while the job runs


class FactKind(StrEnum):
    """What the values of a fact are."""

    TRUTH = "true or false"
    WHOLE = "whole number"
    NUMBER = "number"
    WORD = "word"  # of a closed vocabulary
    TEXT = "text"  # of an open one
    WORDS = "list of words"
    WHOLES = "list of whole numbers"


NUMERIC: Final = frozenset({FactKind.WHOLE, FactKind.NUMBER})
LISTS: Final = frozenset({FactKind.WORDS, FactKind.WHOLES})


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a rule may ask about.

    ``hint``: the container says so.  A hint may decide about its own job, but it makes no attempt free of
    charge.  ``derived``: comes from the history or the policy, and is not gathered by anybody.
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
        """Return whether this can be one value of the fact: of a list, whether it can be an entry."""
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
        """Return whether a word is in the vocabulary; ``watch/...`` stands for any rule of ``on_watch``."""
        return word in self.values or ("watch/..." in self.values and word.startswith("watch/"))

    def _in_range(self, value: float) -> bool:
        if isinstance(value, bool):
            return False
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def read(self, value: object) -> FactValue | None:
        """Return a value as it is kept, None if it cannot be one of this fact."""
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
