"""Places in a YAML file that say what is wrong with what stands there.

A policy file is mostly conditions over facts, which a model of fields cannot describe; so its
reader walks the tree.  Each method returns the value, or None after a complaint.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from runner.base import yaml
from runner.base.textfile import Position, Problem, one_line, quoted, shown
from runner.base.units import format_duration, parse_duration
from runner.base.yaml import Node, PathPart, ScalarNode
from runner.files.validation import did_you_mean, format_choices, format_path

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cursor:
    """One value of the file: where it stands, and where its key does."""

    node: Node
    path: tuple[PathPart, ...]
    key_at: Position
    problems: list[Problem] = field(default_factory=list, compare=False)

    def complain(self, fact: str) -> None:
        """Note what is wrong with the value: a single one is at itself, a longer one at its key."""
        at = self.node.at if isinstance(self.node, ScalarNode) else self.key_at
        self.problems.append(Problem(at, format_path(self.path), one_line(fact)))

    def complain_of_key(self, fact: str) -> None:
        self.problems.append(Problem(self.key_at, format_path(self.path), one_line(fact)))

    @property
    def written(self) -> str:
        """How a message names the value."""
        if isinstance(self.node, ScalarNode) and type(self.node.value) in (int, float):
            return quoted(self.node.text)[1:-1]
        return shown(yaml.to_plain(self.node))

    # --- Single values --------------------------------------------------------------------------------

    def value(self) -> object:
        """Return a single value; a list or a mapping has none."""
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
        self.complain(f"{what or 'cannot be'} {self.written}{hint or listed}")
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
            self.complain(str(error))
            return None
        if least <= duration <= most:
            return duration
        self._wrong(f"from {format_duration(least)} to {format_duration(most)}")
        return None

    def _wrong(self, wanted: str) -> None:
        self.complain(f"must be {wanted}, not {self.written}")

    # --- Mappings and lists ---------------------------------------------------------------------------

    def fields(
        self, names: Iterable[str], meant: Mapping[str, str] | None = None, kind: str = "field"
    ) -> dict[str, "Cursor"]:
        """Return the entries of a mapping that may be there, and complain about the others."""
        known = list(names)
        entries = self.entries()
        for name in entries.keys() - set(known):
            word = (meant or {}).get(name)
            hint = f"; did you mean {quoted(word)}?" if word else did_you_mean(name, known)
            listed = "" if hint else f"; write {format_choices(known)}"
            entries[name].complain_of_key(f"unknown {kind}{hint or listed}")
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
    """Return a field, or what stands for it when it is missing or wrong."""
    found = read(fields[name]) if name in fields else None
    return otherwise if found is None else found
