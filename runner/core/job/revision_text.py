"""The resolved file of a job as JSON text, of which the jobs of a matrix share all that is equal.

The first job of a matrix has a text, and every job the edits that lead from it to its own.  So a large file
takes its size once in the store and in memory, however many jobs come from it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys of objects and indexes of arrays, from the outside to the inside."""

Edit: TypeAlias = tuple[Path, Any] | tuple[Path]
"""A place in a JSON value and its new value; without one, the key is removed."""

NO_EDITS: Final = "[]"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SharedText:
    """A text that is kept once, however many revisions refer to it."""

    text: str


@dataclass(frozen=True, slots=True)
class RevisionText:
    """The text of one revision: a shared text, and as JSON what is different in this revision."""

    shared: SharedText
    edits: str = NO_EDITS

    @classmethod
    def of(cls, text: str) -> "RevisionText":
        """Return a revision that shares its text with no other one."""
        return cls(SharedText(text))

    @property
    def whole(self) -> str:
        """The whole text, which is put together at each access."""
        if self.edits == NO_EDITS:
            return self.shared.text
        value = json.loads(self.shared.text)
        _apply(value, json.loads(self.edits))
        return _dumps(value)

    @property
    def own_size(self) -> int:
        """The letters that only this revision has."""
        return 0 if self.edits == NO_EDITS else len(self.edits)

    def edited(self, *edits: Edit) -> "RevisionText":
        """Return the revision with further edits."""
        return replace(self, edits=_dumps([*json.loads(self.edits), *edits]))


def total_size(texts: Iterable[RevisionText]) -> int:
    """Return the letters of revisions, of texts that several share once."""
    shared, own = {}, 0
    for text in texts:
        shared[id(text.shared)] = len(text.shared.text)
        own += text.own_size
    return own + sum(shared.values())


def share_text(texts: Iterable[str]) -> Iterator[RevisionText]:
    """Yield revisions with these JSON texts, all of which share the first text."""
    shared, first = None, None
    for text in texts:
        if shared is None:
            shared, first = SharedText(text), json.loads(text)
            yield RevisionText(shared)
        else:
            yield RevisionText(shared, _dumps(list(_differences(first, json.loads(text)))))


def _differences(before: Any, after: Any, at: Path = ()) -> Iterator[Edit]:  # noqa: ANN401  (JSON)
    """Yield the edits that lead from one JSON value to another one."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (((*at, key),) for key in before if key not in after)
        for key, value in after.items():
            if key in before:
                yield from _differences(before[key], value, (*at, key))
            else:
                yield (*at, key), value
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, (*at, index))
    elif type(before) is not type(after) or before != after:
        yield at, after


def _apply(value: Any, edits: Iterable[Any]) -> None:  # noqa: ANN401  (JSON)
    """Make edits to a JSON value, none of which replaces it altogether."""
    for (*outer, last), *new in edits:
        inner = value
        for key in outer:
            inner = inner[key]
        if new:
            (inner[last],) = new
        else:
            del inner[last]


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
