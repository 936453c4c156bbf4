"""YAML with a place for every value, and without YAML's traps.

PyYAML finds the events; the tree is built here, because its own composer recurses as deep
as the file says, follows YAML 1.1 (``no`` is false, ``1:30`` is ninety) and drops
duplicate keys silently.  Scalars follow the core schema of YAML 1.2.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import yaml

from runner.base.textfile import Position, Problem, quoted

Plain: TypeAlias = "str | float | bool | tuple[Plain, ...] | dict[str, Plain] | None"
Part: TypeAlias = str | int

START: Final = Position(1, 1)
MAX_DEPTH: Final = 32
MAX_NODES: Final = 10_000  # after aliases are followed

_Event: TypeAlias = Any  # PyYAML's types leave out what its events carry
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
_NO_TEXT: Final = frozenset("~nNtTfF+-.0123456789")  # what any other value than a text begins with
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_NULL: Final = re.compile(r"|~|null|Null|NULL")
_TRUE: Final = re.compile(r"true|True|TRUE")
_FALSE: Final = re.compile(r"false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One value; ``text`` is how it was written, so that the text ``1.10`` can stay what it is."""

    at: Position
    value: str | float | bool | None
    text: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class SequenceNode:
    at: Position
    items: tuple["Node", ...]
    size: int


@dataclass(frozen=True, slots=True)
class MappingNode:
    at: Position
    keys: dict[str, Position]
    entries: dict[str, "Node"]
    size: int


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


class _Stop(Exception):
    """The rest of the file makes no sense after this problem."""

    def __init__(self, at: Position, fact: str) -> None:
        super().__init__(fact)
        self.problem = Problem(at, "", fact)


def compose(raw: bytes) -> tuple[Node | None, tuple[Problem, ...]]:
    """Return the tree of a YAML text, or as much as could be read, and every problem on the way."""
    try:
        text = _text(raw)
    except _Stop as stop:
        return None, (stop.problem,)
    loader = _Loader(text)
    composer = _Composer(loader.get_event)
    try:
        node = composer.document()
    except _Stop as stop:
        return None, (*composer.problems, stop.problem)
    except yaml.MarkedYAMLError as error:
        return None, (*composer.problems, _syntax(error, text))
    finally:
        loader.dispose()
    return node, tuple(composer.problems)


def plain(node: Node) -> Plain:
    """Return a tree as dicts, tuples and values."""
    match node:
        case MappingNode():
            return {key: plain(value) for key, value in node.entries.items()}
        case SequenceNode():
            return tuple(plain(item) for item in node.items)
        case ScalarNode():
            return node.value


def place(root: Node, path: tuple[Part, ...]) -> Position:
    """Return where a reader should look for the value at a path.

    A single value is at itself; a list or a mapping, which may be long, is at its key.  What
    does not exist is where the innermost part of the path is that does.
    """
    node = at_path(root, path)
    if node is None:
        return place(root, path[:-1])
    return node.at if isinstance(node, ScalarNode) else key_place(root, path)


def key_place(root: Node, path: tuple[Part, ...]) -> Position:
    """Return where the key at the end of a path stands; an item of a list has none, and is at itself."""
    parent = at_path(root, path[:-1]) if path else None
    if isinstance(parent, MappingNode):
        return parent.keys[str(path[-1])]
    node = at_path(root, path)
    return node.at if node else START


def at_path(root: Node, path: tuple[Part, ...]) -> Node | None:
    """Return the value at a path, None when there is none."""
    node: Node | None = root
    for part in path:
        match node:
            case MappingNode():
                node = node.entries.get(str(part))
            case SequenceNode() if isinstance(part, int) and part < len(node.items):
                node = node.items[part]
            case _:
                return None
    return node


# --- Text ---------------------------------------------------------------------------------------------


def _text(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _Stop(Position(1, 1), "is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode(errors="replace")
        fact = f"byte 0x{raw[error.start]:02x} is not UTF-8 text; save the file as UTF-8"
        raise _Stop(_position_of(before), fact) from error
    if found := _CONTROL.search(text):
        fact = f"control character U+{ord(found[0]):04X}: this is not a text file"
        raise _Stop(_position_of(text[: found.start()]), fact)
    return text


def _position_of(before: str) -> Position:
    return Position(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


# --- Tree ---------------------------------------------------------------------------------------------


class _Composer:
    """Builds one tree from parse events, and keeps what is wrong but does not stop the reading."""

    def __init__(self, following: Callable[[], _Event]) -> None:
        self.problems: list[Problem] = []
        self._next = following
        self._anchors: dict[str, Node | None] = {}  # None: what it stands for is being read
        self._nodes = 0

    def document(self) -> Node | None:
        self._next()  # stream start
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        node = self._node(self._next(), 0)
        self._next()  # document end
        following = self._next()
        if not isinstance(following, yaml.StreamEndEvent):
            self._complain(_at(following), "a second document begins; a job file holds one")
        return node

    def _complain(self, at: Position, fact: str) -> None:
        self.problems.append(Problem(at, "", fact))

    def _node(self, event: _Event, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _Stop(_at(event), f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event)
        self._count(event, 1)
        if event.tag not in (None, "!"):
            self._complain(
                _at(event), f"tags such as {quoted(_short(event.tag))} are not supported; remove it"
            )
        if event.anchor:
            self._anchors.setdefault(event.anchor, None)
        node = _scalar(event) if isinstance(event, yaml.ScalarEvent) else self._collection(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _collection(self, event: _Event, depth: int) -> Node:
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, depth)
        return self._mapping(event, depth)

    def _sequence(self, start: _Event, depth: int) -> SequenceNode:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return SequenceNode(_at(start), tuple(items), 1 + sum(item.size for item in items))

    def _mapping(self, start: _Event, depth: int) -> MappingNode:
        keys: dict[str, Position] = {}
        entries: dict[str, Node] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._node(self._next(), depth + 1)
            if key is None:
                continue
            if key in keys:
                first = keys[key].line
                self._complain(_at(event), f"{quoted(key)} is given twice, first in line {first}; remove one")
                continue
            keys[key], entries[key] = _at(event), value
        return MappingNode(_at(start), keys, entries, 1 + sum(value.size for value in entries.values()))

    def _key(self, event: _Event, depth: int) -> str | None:
        node = self._node(event, depth + 1)
        if not isinstance(node, ScalarNode):
            self._complain(_at(event), "a key must be a plain word")
            return None
        if node.text == "<<":
            self._complain(_at(event), 'merge keys ("<<") are not supported; write the fields out')
            return None
        return node.text

    def _aliased(self, event: _Event) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            inside = event.anchor in self._anchors
            fact = "contains itself; write the value out" if inside else "refers to nothing above it"
            raise _Stop(_at(event), f"alias {quoted('*' + event.anchor)} {fact}")
        self._count(event, node.size)
        return node

    def _count(self, event: _Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _Stop(_at(event), f"more than {MAX_NODES} values, aliases followed; this is not a job file")


def _at(event: _Event) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _scalar(event: yaml.ScalarEvent) -> ScalarNode:
    value = resolve(event.value) if event.implicit[0] else event.value
    if bad := _unusable(event.value):
        raise _Stop(_at(event), bad)
    return ScalarNode(_at(event), value, event.value)


def resolve(text: str) -> str | float | bool | None:
    """Return the value of an unquoted scalar after the core schema of YAML 1.2; .nan and .inf stay texts."""
    if text and text[0] not in _NO_TEXT:
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if _INT.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    return text


def _unusable(text: str) -> str | None:
    found = _UNUSABLE.search(text)
    if found is None:
        return None
    return "holds a NUL character" if "\0" in text else "holds half a surrogate pair, which is no character"


# --- Syntax errors ------------------------------------------------------------------------------------

_WORDING: Final = (  # what libyaml says begins with, what we say, whose place: the problem's or its context's
    (
        "mapping values are not allowed",
        'unexpected ":"; put the text in quotes or begin a new line',
        "problem",
    ),
    ("could not find expected ':'", 'expected "key: value"', "context"),
    ("did not find expected key", 'expected "key: value" at the same indentation as above', "problem"),
    ("expected <block end>", 'expected "key: value" at the same indentation as above', "problem"),
    ("did not find expected '-'", 'expected "- " at the same indentation as above', "problem"),
    ("did not find expected ',' or ']'", 'the list that begins here has no "]"', "context"),
    ("did not find expected ',' or '}'", 'the mapping that begins here has no "}"', "context"),
    ("found unknown escape", "no such escape; use single quotes, or two backslashes for one", "problem"),
    (
        "found invalid Unicode character escape",
        'no such character (half a surrogate pair is none); write it as it is, or whole as "\\U0001F600"',
        "problem",
    ),
    ("found unexpected end of stream", "the quote that begins here is not closed", "context"),
    ("did not find expected node content", "a value or a closing bracket is missing here", "problem"),
    ("block sequence entries are not allowed", 'a list item ("- ") cannot begin here', "problem"),
    ("did not find expected <document start>", 'expected "key: value"', "problem"),
)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Problem:
    """Return a parse error in words that say what to do."""
    said = str(error.problem or error.context)
    for begins, fact, whose in _WORDING:
        if said.startswith(begins):
            return Problem(_mark(error, whose), "", f"not valid YAML: {fact}")
    at = _mark(error, "problem")
    if said.startswith("found character"):
        return Problem(at, "", f"not valid YAML: {_odd_character(text, at)}")
    return Problem(at, "", f"not valid YAML: {said}")


def _mark(error: yaml.MarkedYAMLError, whose: str) -> Position:
    own, context = error.problem_mark, error.context_mark
    mark = (context or own) if whose == "context" else (own or context)
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)


def _odd_character(text: str, at: Position) -> str:
    line = text.splitlines()[at.line - 1 : at.line]
    character = "".join(line)[at.column - 1 : at.column]
    if character == "\t":
        return "a tab; YAML is indented with spaces"
    return f"a value cannot begin with {quoted(character)}; put it in quotes"
