"""YAML with a position for every value, within limits, and with the scalars of YAML 1.2.

PyYAML parses and composes. This module adds what PyYAML leaves out: limits on depth and size, which are
checked on the events before a tree is built; problems for duplicate keys, tags and merge keys; and the core
schema of YAML 1.2 (in YAML 1.1, ``no`` is false and ``1:30`` is ninety).
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import yaml

from runner.base.textfile import Position, Problem, quoted

Plain: TypeAlias = "str | float | bool | tuple[Plain, ...] | dict[str, Plain] | None"
PathPart: TypeAlias = str | int

START: Final = Position(1, 1)
MAX_SCALAR: Final = 256 * 1024
"""Characters of one value or key; every field takes less, and says so itself."""

MAX_DEPTH: Final = 32
MAX_NODES: Final = 10_000
"""Both limits count what an alias stands for each time that the alias is used."""

TOO_DEEP: Final = f"nested more than {MAX_DEPTH} levels deep"

_Event: TypeAlias = Any  # the type stubs of PyYAML leave out the attributes of events
_Loader: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
_NOT_TEXT: Final = frozenset("~nNtTfF+-.0123456789")  # the first characters of scalars that may not be text
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_LINE_ENDS: Final = re.compile("[\x85\u2028\u2029]")  # for YAML 1.1, and for no editor
_NULL: Final = re.compile(r"|~|null|Null|NULL")
_TRUE: Final = re.compile(r"true|True|TRUE")
_FALSE: Final = re.compile(r"false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}")
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,4}(\.[0-9]{1,15})?[eE]\+?[0-9]{1,2}")
"""A large count as people write it, such as ``1e9``."""

_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A single value; ``text`` is its spelling, so that the text ``1.10`` can stay ``1.10``."""

    at: Position
    value: str | float | bool | None
    text: str


@dataclass(frozen=True, slots=True)
class SequenceNode:
    at: Position
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MappingNode:
    at: Position
    keys: dict[str, Position]
    entries: dict[str, "Node"]


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


class _FatalProblem(Exception):
    """A problem after which the rest of the file cannot be read."""

    def __init__(self, at: Position, fact: str) -> None:
        super().__init__(fact)
        self.problem = Problem(at, "", fact)


def compose(raw: bytes) -> tuple[Node | None, tuple[Problem, ...]]:
    """Return the tree of a YAML text and every problem found; the tree is None if it cannot be read."""
    problems: list[Problem] = []
    try:
        text = _decode(raw)
    except _FatalProblem as error:
        return None, (error.problem,)
    try:
        _check_events(text, problems)
        root = next(yaml.compose_all(text, _Loader), None)
    except _FatalProblem as error:
        return None, (*problems, error.problem)
    except yaml.MarkedYAMLError as error:
        return None, (*problems, _syntax_problem(error, text))
    return (_Converter(problems).node(root) if root else None), tuple(problems)


def to_plain(node: Node) -> Plain:
    """Return a tree as dicts, tuples and values."""
    match node:
        case MappingNode():
            return {key: to_plain(value) for key, value in node.entries.items()}
        case SequenceNode():
            return tuple(to_plain(item) for item in node.items)
        case ScalarNode():
            return node.value


def find_position(root: Node, path: tuple[PathPart, ...]) -> Position:
    """Return the position that a message about a path should show.

    A scalar is shown at itself; a list or a mapping, which may be long, at its key. For a path that does not
    exist, the position of the innermost existing part is returned.
    """
    node = find_node(root, path)
    if node is None:
        return find_position(root, path[:-1])
    return node.at if isinstance(node, ScalarNode) else find_key_position(root, path)


def find_key_position(root: Node, path: tuple[PathPart, ...]) -> Position:
    """Return the position of the key at the end of a path, or of the list item, which has no key."""
    parent = find_node(root, path[:-1]) if path else None
    if isinstance(parent, MappingNode):
        return parent.keys[str(path[-1])]
    node = find_node(root, path)
    return node.at if node else START


def find_node(root: Node, path: tuple[PathPart, ...]) -> Node | None:
    """Return the node at a path, or None if there is none."""
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


def resolve_scalar(text: str) -> str | float | bool | None:
    """Return the value of an unquoted scalar by the core schema of YAML 1.2, which has no ``.nan`` here."""
    if text and text[0] not in _NOT_TEXT:
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
        return int(value) if _WHOLE.fullmatch(text) and value.is_integer() else value
    return text


# --- Text ---------------------------------------------------------------------------------------------


def _decode(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _FatalProblem(START, "is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode(errors="replace")
        fact = f"byte 0x{raw[error.start]:02x} is not UTF-8 text; save the file as UTF-8"
        raise _FatalProblem(_end_of(before), fact) from error
    if found := _CONTROL.search(text):
        fact = f"contains the control character U+{ord(found[0]):04X}, so it is not a text file"
        raise _FatalProblem(_end_of(text[: found.start()]), fact)
    if found := _LINE_ENDS.search(text):
        code = ord(found[0])
        fact = f"contains U+{code:04X}, which ends a line for some programs only"
        raise _FatalProblem(_end_of(text[: found.start()]), f'{fact}; write "\\u{code:04x}" in quotes')
    return text


def _end_of(text: str) -> Position:
    """Return the position just after a text."""
    return Position(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


# --- Events: what must be checked before a tree is built ---------------------------------------------


@dataclass(slots=True)
class _Extent:
    """The size of one value with its aliases followed."""

    is_open: bool  # its end has not been read
    nodes: int = 1
    height: int = 0  # levels below the value itself


class _Limits:
    """Measures the values of a document while its events are read, and refuses too deep or too large ones."""

    def __init__(self) -> None:
        self._open: list[_Extent] = []
        self._anchors: dict[str, _Extent] = {}
        self._nodes = 0

    def add_scalar(self, event: _Event) -> None:
        self._include(self._new(event, is_open=False))

    def begin(self, event: _Event) -> None:
        """Begin a collection."""
        self._open.append(self._new(event, is_open=True))

    def end(self) -> None:
        """End the collection that began last."""
        extent = self._open.pop()
        extent.is_open = False
        self._include(extent)

    def add_alias(self, event: _Event) -> None:
        """Count the value that an alias stands for once more."""
        extent = self._anchors.get(event.anchor)
        if extent is None or extent.is_open:
            fact = (
                "contains itself; write the value out"
                if extent
                else "has no anchor above it; write the value out"
            )
            raise _FatalProblem(_position(event), f"alias {quoted('*' + event.anchor)} {fact}")
        self._count(event, extent)
        self._include(extent)

    def _new(self, event: _Event, *, is_open: bool) -> _Extent:
        extent = _Extent(is_open)
        if event.anchor and self._anchors.setdefault(event.anchor, extent) is not extent:
            fact = f"anchor {quoted('&' + event.anchor)} is defined twice; give the second one another name"
            raise _FatalProblem(_position(event), fact)
        self._count(event, extent)
        return extent

    def _count(self, event: _Event, extent: _Extent) -> None:
        if len(self._open) + extent.height > MAX_DEPTH:
            raise _FatalProblem(_position(event), TOO_DEEP)
        self._nodes += extent.nodes
        if self._nodes > MAX_NODES:
            fact = f"holds more than {MAX_NODES} values, with aliases expanded; this is not a job file"
            raise _FatalProblem(_position(event), fact)

    def _include(self, extent: _Extent) -> None:
        """Add a value to the collection that holds it."""
        if self._open:
            holder = self._open[-1]
            holder.nodes += extent.nodes
            holder.height = max(holder.height, extent.height + 1)


def _check_events(text: str, problems: list[Problem]) -> None:
    """Add to ``problems`` what only events show: tags, and a second document.

    Raises:
        _FatalProblem: the tree would be too large, or could not be built.
    """
    limits = _Limits()
    documents = 0
    for event in yaml.parse(text, _Loader):
        match event:
            case yaml.ScalarEvent():
                _check_tag(event, problems)
                _check_characters(event)
                limits.add_scalar(event)
            case yaml.CollectionStartEvent():
                _check_tag(event, problems)
                limits.begin(event)
            case yaml.CollectionEndEvent():
                limits.end()
            case yaml.AliasEvent():
                limits.add_alias(event)
            case yaml.DocumentStartEvent():
                documents += 1
                if documents > 1:
                    problems.append(_problem(event, "a second document begins here; a file holds one"))
                    return
            case _:  # the begin and the end of the stream, the end of a document
                pass


def _check_tag(event: _Event, problems: list[Problem]) -> None:
    if event.tag not in (None, "!"):
        tag = quoted(event.tag.replace("tag:yaml.org,2002:", "!!"))
        problems.append(_problem(event, f"tags such as {tag} are not supported; remove it"))


def _check_characters(event: _Event) -> None:
    if found := _UNUSABLE.search(event.value):
        fact = "a NUL character" if found[0] == "\0" else "half a surrogate pair, which is not a character"
        raise _FatalProblem(_position(event), f"holds {fact}")
    if len(event.value) > MAX_SCALAR:
        fact = f"is longer than {MAX_SCALAR // 1024} Ki characters; put it in a file and mount that"
        raise _FatalProblem(_position(event), fact)


# --- Nodes: from those of PyYAML to ours --------------------------------------------------------------


class _Converter:
    """Converts the nodes of PyYAML, and adds to ``problems`` what is wrong with keys."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._converted: dict[int, Node] = {}  # by identity: an alias is the node that it stands for

    def node(self, node: yaml.Node) -> Node:
        found = self._converted.get(id(node))
        if found is None:
            found = self._converted[id(node)] = self._convert(node)
        return found

    def _convert(self, node: yaml.Node) -> Node:
        at = _position(node)
        match node:
            case yaml.MappingNode():
                return self._mapping(at, node.value)
            case yaml.SequenceNode():
                return SequenceNode(at, tuple(self.node(item) for item in node.value))
            case _:
                is_plain = not getattr(node, "style", None)  # neither quoted nor a block
                return ScalarNode(at, resolve_scalar(node.value) if is_plain else node.value, node.value)

    def _mapping(self, at: Position, pairs: list[tuple[yaml.Node, yaml.Node]]) -> MappingNode:
        keys: dict[str, Position] = {}
        entries: dict[str, Node] = {}
        for key_node, value_node in pairs:
            key, value = self._key(key_node), self.node(value_node)
            if key is None:
                continue
            if key in keys:
                fact = f"{quoted(key)} is given twice, first in line {keys[key].line}; remove one"
                self._problems.append(_problem(key_node, fact))
                continue
            keys[key], entries[key] = _position(key_node), value
        return MappingNode(at, keys, entries)

    def _key(self, node: yaml.Node) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problems.append(_problem(node, "a key must be a single word"))
            return None
        if node.value == "<<":
            fact = 'merge keys ("<<") are not supported; write the fields out'
            self._problems.append(_problem(node, fact))
            return None
        return str(node.value)


def _position(marked: _Event) -> Position:
    """Return the position at which an event or a node begins."""
    return Position(marked.start_mark.line + 1, marked.start_mark.column + 1)


def _problem(marked: _Event, fact: str) -> Problem:
    return Problem(_position(marked), "", fact)


# --- Syntax errors ------------------------------------------------------------------------------------

# The beginning of libyaml's message, our message, and whose mark is shown: the problem's or its context's.
_MESSAGES: Final = (
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
    (
        "found unknown escape",
        "unknown escape sequence; use single quotes, or double the backslash",
        "problem",
    ),
    (
        "found invalid Unicode character escape",
        'half a surrogate pair is not a character; write the character itself, or "\\U0001F600"',
        "problem",
    ),
    ("found unexpected end of stream", "the quote that begins here is not closed", "context"),
    ("did not find expected node content", "a value or a closing bracket is missing here", "problem"),
    ("block sequence entries are not allowed", 'a list item ("- ") cannot begin here', "problem"),
    ("did not find expected <document start>", 'expected "key: value"', "problem"),
)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    """Return a parse error as a problem that says what to do."""
    said = str(error.problem or error.context)
    for beginning, fact, whose in _MESSAGES:
        if said.startswith(beginning):
            return Problem(_mark(error, whose), "", f"not valid YAML: {fact}")
    at = _mark(error, "problem")
    if said == "exceeded maximum nesting depth":  # of libyaml's own, with PyYAML 6.0.4
        return Problem(at, "", TOO_DEEP)
    if said.startswith("found character"):
        return Problem(at, "", f"not valid YAML: {_unexpected_character(text, at)}")
    return Problem(at, "", f"not valid YAML: {said}")


def _mark(error: yaml.MarkedYAMLError, whose: str) -> Position:
    own, context = error.problem_mark, error.context_mark
    mark = (context or own) if whose == "context" else (own or context)
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)


def _unexpected_character(text: str, at: Position) -> str:
    line = text.splitlines()[at.line - 1 : at.line]
    character = "".join(line)[at.column - 1 : at.column]
    if character == "\t":
        return "a tab; indent YAML with spaces"
    return f"a value cannot begin with {quoted(character)}; put it in quotes"
