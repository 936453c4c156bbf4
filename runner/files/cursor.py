"""A cursor reads one node of a YAML file and collects the problems with their positions.

A policy file consists mostly of conditions over facts, which a pydantic model cannot describe, so its
parser walks the tree. Each method returns the value, or reports a problem and returns None.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from runner.base import yaml
from runner.base.textfile import MAX_PROBLEMS, FileError, Position, Problem, one_line, quoted, shown
from runner.base.units import format_duration, parse_duration
from runner.base.yaml import Node, PathPart, ScalarNode
from runner.files.validation import did_you_mean, format_choices, format_path

T = TypeVar("T")


class _TooManyProblems(Exception):
    """A file has more problems than are shown; the rest of it is not looked at."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """One node of the file, with its path and the position of its key."""

    node: Node
    path: tuple[PathPart, ...]
    key_at: Position
    problems: list[Problem] = field(default_factory=list, compare=False)

    def report(self, fact: str) -> None:
        """Report a problem of the value: at the value if it is a scalar, else at its key."""
        self._add(self.node.at if isinstance(self.node, ScalarNode) else self.key_at, fact)

    def report_at_key(self, fact: str) -> None:
        """Report a problem at the key."""
        self._add(self.key_at, fact)

    def _add(self, at: Position, fact: str) -> None:
        self.problems.append(Problem(at, format_path(self.path), one_line(fact)))
        if len(self.problems) > MAX_PROBLEMS:
            raise _TooManyProblems

    @property
    def written(self) -> str:
        """The value as messages show it."""
        if isinstance(self.node, ScalarNode) and type(self.node.value) in (int, float):
            return quoted(self.node.text)[1:-1]
        return shown(yaml.to_plain(self.node))

    # --- Single values --------------------------------------------------------------------------------

    def value(self) -> object:
        """Return the value of a scalar, None for a list or a mapping."""
        return self.node.value if isinstance(self.node, ScalarNode) else None

    def text(self, most: int = 200) -> str | None:
        value = self.value()
        if isinstance(value, str) and value and value.isprintable() and len(value) <= most:
            return value
        self._wrong(f"one line of text, at most {most} characters")
        return None

    def truth(self) -> bool | None:
        value = self.value()
        if isinstance(value, bool):
            return value
        self._wrong("true or false")
        return None

    def word(self, choices: Iterable[str], what: str = "") -> str | None:
        """Return one of several words."""
        words = list(choices)
        value = self.value()
        if isinstance(value, str) and value in words:
            return value
        hint = did_you_mean(value, words) if isinstance(value, str) else ""
        listed = "" if hint or not words else f"; write {format_choices(words)}"
        self.report(f"{what or 'cannot be'} {self.written}{hint or listed}")
        return None

    def whole(self, least: int, most: int) -> int | None:
        value = self.value()
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self._wrong(f"a whole number from {least} to {most}")
        return None

    def number(self, least: float, most: float) -> float | None:
        value = self.value()
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        self._wrong(f"a number from {least:g} to {most:g}")
        return None

    def duration(self, least: timedelta, most: timedelta) -> timedelta | None:
        try:
            duration = parse_duration(yaml.to_plain(self.node))
        except ValueError as error:
            self.report(str(error))
            return None
        if least <= duration <= most:
            return duration
        self._wrong(f"from {format_duration(least)} to {format_duration(most)}")
        return None

    def _wrong(self, wanted: str) -> None:
        self._add(self.node.at, f"must be {wanted}, not {self.written}")

    # --- Mappings and lists ---------------------------------------------------------------------------

    def fields(
        self, names: Iterable[str], meant: Mapping[str, str] | None = None, kind: str = "field"
    ) -> dict[str, "Cursor"]:
        """Return the known entries of a mapping, and report the others as unknown."""
        known = list(names)
        entries = self.entries()
        for name in entries.keys() - set(known):
            word = (meant or {}).get(name)
            hint = f"; did you mean {quoted(word)}?" if word else did_you_mean(name, known)
            listed = "" if hint else f"; write {format_choices(known)}"
            entries[name].report_at_key(f"unknown {kind}{hint or listed}")
        return {name: entries[name] for name in known if name in entries}

    def entries(self) -> dict[str, "Cursor"]:
        """Return all entries of a mapping."""
        if not isinstance(self.node, yaml.MappingNode):
            self._wrong("a mapping")
            return {}
        keys = self.node.keys
        return {
            name: Cursor(node, (*self.path, name), keys[name], self.problems)
            for name, node in self.node.entries.items()
        }

    def items(self) -> list["Cursor"]:
        """Return the items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            self._wrong("a list")
            return []
        return [
            Cursor(node, (*self.path, number), node.at, self.problems)
            for number, node in enumerate(self.node.items)
        ]


def read_field(
    fields: Mapping[str, Cursor], name: str, read: Callable[[Cursor], T | None], otherwise: T
) -> T:
    """Return a field as ``read`` returns it, or ``otherwise`` if it is missing or wrong."""
    found = read(fields[name]) if name in fields else None
    return otherwise if found is None else found


def read_whole(raw: bytes, path: Path, read: Callable[[Cursor], T]) -> T:
    """Return the content of a YAML text as ``read`` returns it for the top mapping.

    Raises:
        FileError: with every problem at once.
    """
    tree, problems = yaml.compose(raw)
    if not isinstance(tree, yaml.MappingNode) or not tree.entries:
        fact = 'must consist of "field: value" lines' if tree is not None else "the file is empty"
        raise FileError(path, problems or [Problem(yaml.START, "", fact)])
    top = Cursor(tree, (), tree.at, list(problems))
    try:
        found = read(top)
    except _TooManyProblems:
        raise FileError(path, top.problems) from None
    if top.problems:
        raise FileError(path, top.problems)
    return found
