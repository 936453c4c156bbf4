"""Validation of YAML files by pydantic models, with messages for users.

Each message names the field, what it must be and what it is, and suggests a correction where it can.
Validation is strict: the text "200" is not a number.
"""

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from runner.base import yaml
from runner.base.textfile import MAX_PROBLEMS, FileError, Problem, one_line, quoted, shown
from runner.base.units import format_size, written_size
from runner.base.yaml import Node, PathPart, ScalarNode
from runner.files import shell
from runner.files.aliases import ENGINE_OPTIONS, MEANT

M = TypeVar("M", bound=BaseModel)


def error_below(path: tuple[PathPart, ...], fact: str) -> PydanticCustomError:
    """Return an error that a validator raises about a part of the value that it checks."""
    return PydanticCustomError("below", "{fact}", {"fact": fact, "path": path})


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean "x"?`` or nothing."""
    if len(word) > 64:
        return ""
    lowered = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), lowered, n=1, cutoff=0.6)
    return f"; did you mean {quoted(lowered[close[0]])}?" if close else ""


def suggest_choice(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean "x"?``, or all choices if none resembles the word."""
    known = tuple(choices)
    return did_you_mean(word, known) or f"; choose one of {', '.join(known)}"


def suggest_profile(word: str, names: Iterable[str]) -> str:
    """Return the same for a profile; those of single source projects are not listed, only recognised."""
    known = tuple(names)
    usual = [name for name in known if not name.endswith(("-before", "-after"))]
    return did_you_mean(word, known) or f"; choose one of {', '.join(usual)}"


def format_choices(choices: Sequence[str]) -> str:
    """Return choices as a list in words: ``"a", "b" or "c"``."""
    words = [quoted(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def parse_mapping(raw: bytes, path: Path) -> tuple[yaml.MappingNode, list[Problem]]:
    """Return the tree of a YAML file, whose top must be a mapping, and the problems found so far.

    Raises:
        FileError: the text is not YAML, is empty, or has another top.
    """
    tree, problems = yaml.compose(raw)
    if isinstance(tree, yaml.MappingNode) and tree.entries:
        return tree, list(problems)
    raise FileError(
        path, problems or [Problem(tree.at if tree else yaml.START, "", describe_non_mapping(tree))]
    )


def describe_non_mapping(tree: Node | None) -> str:
    """Return the problem of a file whose top is not a mapping."""
    if isinstance(tree, yaml.SequenceNode):
        return 'must consist of "field: value" lines, not a list'
    if isinstance(tree, ScalarNode) and tree.value is not None:
        return f'must consist of "field: value" lines, not {quoted(tree.text)}'
    return 'the file is empty; "runner init" writes one to start from'


def validate_model(
    model: type[M], written: Mapping[str, object], tree: Node, *, of_a_job: bool = True
) -> tuple[M | None, list[Problem]]:
    """Return the model, or None, and its problems; ``of_a_job`` adds hints for the names of other tools."""
    try:
        return model.model_validate(written, strict=True), []
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A list whose entries have problems is too short only because of them.
        lists = {detail["loc"][:-1] for detail in found}
        relevant = [detail for detail in found if detail["type"] != "too_short" or detail["loc"] not in lists]
        # One more than is shown, so that the message says that there are more.
        errors = [_Error(model, tree, detail, of_a_job) for detail in relevant[: 2 * MAX_PROBLEMS]]
        return None, list(dict.fromkeys(map(_problem, _fitting(errors)[: MAX_PROBLEMS + 1])))


# --- One error of pydantic ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Error:
    """One error of pydantic, with what is needed to describe it."""

    model: type[BaseModel]
    tree: Node
    detail: ErrorDetails
    of_a_job: bool

    @property
    def path(self) -> tuple[PathPart, ...]:
        """The path of the field in the file, without the marks that pydantic adds."""
        inside = self.detail.get("ctx", {}).get("path", ())
        parts = [*_as_spelt(self.model, self.detail["loc"]), *inside]
        if isinstance(yaml.find_node(self.tree, tuple(parts[:-1])), ScalarNode):
            parts.pop()  # shorthand: the text stands for a mapping with this field
        return tuple(parts)

    @property
    def node(self) -> Node | None:
        return yaml.find_node(self.tree, self.path)


def _fitting(errors: list[_Error]) -> list[_Error]:
    """Return errors without those of the members of a union that have another shape than the value has."""
    paths = [error.path for error in errors]

    def is_other_shape(error: _Error, path: tuple[PathPart, ...]) -> bool:
        is_shape = error.detail["type"] in _OF_SHAPE and not isinstance(error.node, ScalarNode)
        return is_shape and any(
            found[: len(path)] == path and other.detail["type"] not in _OF_SHAPE
            for found, other in zip(paths, errors, strict=True)
        )

    return [each for each, path in zip(errors, paths, strict=True) if not is_other_shape(each, path)]


_OF_SHAPE: Final = frozenset({"tuple_type", "model_type", "model_attributes_type", "dict_type"})
"""Errors about values that are no list, or no mapping."""


def _problem(error: _Error) -> Problem:
    path = error.path
    kind = error.detail["type"]
    of_key = kind == "extra_forbidden" or "[key]" in error.detail["loc"]
    at = (yaml.find_key_position if of_key else yaml.find_position)(error.tree, path)
    if not of_key and error.node is not None and _is_of_the_value(error, kind):
        at = error.node.at  # a list or a mapping of the wrong type is shown where it begins, as a scalar is
    return Problem(at, format_path(path), one_line(_fact(error, kind)))


_OF_CONTENT: Final = frozenset({"below", "missing", "too_long", "too_short"})
"""Errors about what a list or a mapping contains; they are shown at its key."""


def _is_of_the_value(error: _Error, kind: str) -> bool:
    """Return True if an error is about a value itself and not about what a list or a mapping contains."""
    if kind == "value_error":  # of a field with one value, or of a whole section
        field = _type_of(error)
        return not _is_model(field) and get_origin(field) not in (tuple, dict)
    return kind not in _OF_CONTENT


def format_path(path: tuple[PathPart, ...]) -> str:
    """Return a path as messages show it: ``mounts[0].source``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_segment(part)}"
    return text.removeprefix(".")


def _segment(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", part) else quoted(part)


def _fact(error: _Error, kind: str) -> str:
    context = error.detail.get("ctx", {})
    match kind:
        case "below":
            return str(context["fact"])
        case "value_error":
            return str(context["error"])
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown(error)
        case "too_long":
            return f"has more than {context['max_length']} entries; remove some"
        case "too_short":
            return f"must have at least {context['min_length']} entry"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "string_too_short":
            return "must not be empty"
        case _:
            return _mismatch(error)


FEW: Final = 4
"""Fields of a section that are all named for an unknown one."""


def _unknown(error: _Error) -> str:
    word = str(error.path[-1])
    parent = _type_at(error.model, error.path[:-1], error.tree)
    names = tuple(parent.model_fields) if _is_model(parent) else ()
    meant = MEANT.get(word, "") if error.of_a_job else ""
    if meant and (meant.startswith(format_path(error.path[:-1])) or "." in meant):
        return f"unknown field; did you mean {quoted(meant)}?"
    if error.of_a_job and word in ENGINE_OPTIONS:
        return "unknown field; a job file cannot set options of the container engine"
    if hint := did_you_mean(word, names):
        return f"unknown field{hint}"
    if error.path[:-1] and 0 < len(names) <= FEW:
        return f"unknown field; there {'are' if len(names) > 1 else 'is'} {', '.join(names)}"
    elsewhere = [
        format_path((*path, word)) for path, fields in _sections(error.model, error.tree) if word in fields
    ]
    if elsewhere and error.path[:-1] == ("matrix",):
        return f"unknown field; did you mean {quoted(elsewhere[0])} in matrix.values?"
    if elsewhere == [word]:
        return f"unknown field; {word} stands at the top of the file, not in a section"
    return f"unknown field{f'; did you mean {quoted(elsewhere[0])}?' if elsewhere else ''}"


def _sections(
    model: type[BaseModel], node: Node | None, path: tuple[str, ...] = ()
) -> Iterable[tuple[tuple[str, ...], frozenset[str]]]:
    yield path, frozenset(model.model_fields)
    for name, info in model.model_fields.items():
        below_it = yaml.find_node(node, (name,)) if node else None
        if _is_model(inner := _chosen(_bare(info.annotation), below_it)):
            yield from _sections(inner, below_it, (*path, name))


def _mismatch(error: _Error) -> str:
    info = _field_at(error)
    wanted = _wanted(info.annotation, info) if info else _wanted(_entry_type(error))
    return f"must be {wanted}, not {_found(error.node)}{_hint(error, info)}"


def _hint(error: _Error, info: FieldInfo | None) -> str:
    node = error.node
    kind = _type_of(error)
    if not isinstance(node, ScalarNode):
        return ""
    if node.value is None and info is not None and not info.is_required():
        return "; remove the line to get the default"
    if get_origin(kind) is tuple and isinstance(node.value, str):
        is_command = error.path[-1:] == ("command",)
        return f"; did you mean {shell.suggest_list(node.value, command=is_command)}?"
    if kind is str:
        return '; write "" for an empty text' if node.value is None else "; put it in quotes"
    if words := _words(kind):
        return did_you_mean("off" if node.value is False else node.text, words)
    if kind is bool and node.text.lower() in {"yes", "no", "on", "off"}:
        return f"; did you mean {'true' if node.text.lower() in {'yes', 'on'} else 'false'}?"
    if isinstance(node.value, str) and isinstance(yaml.resolve_scalar(node.text), int | float):
        return "; remove the quotes"
    return ""


def _found(node: Node | None) -> str:
    """Return a value as messages show it: numbers as they were typed."""
    if isinstance(node, ScalarNode) and type(node.value) in (int, float):
        return quoted(node.text)[1:-1]
    return shown(yaml.to_plain(node)) if node else "null"


# --- Types of fields ----------------------------------------------------------------------------------


def _field_at(error: _Error) -> FieldInfo | None:
    if not error.path:
        return None
    parent = _type_at(error.model, error.path[:-1], error.tree)
    return parent.model_fields.get(str(error.path[-1])) if _is_model(parent) else None


def _type_of(error: _Error) -> Any:
    return _type_at(error.model, error.path, error.tree)


def _entry_type(error: _Error) -> Any:
    """Return the type of the entries of the holding list or mapping, or else the type at the path."""
    holder = _type_at(error.model, error.path[:-1], error.tree) if error.path else None
    if get_origin(holder) in (tuple, dict):
        return get_args(holder)[0 if get_origin(holder) is tuple else 1]
    return _type_of(error)


def _as_spelt(model: type[BaseModel], loc: tuple[PathPart, ...]) -> Iterator[PathPart]:
    """Yield the parts of a pydantic location that exist in the file; tags of unions do not."""
    kind: Any = model
    for part in loc:
        if part == "[key]":
            continue
        members = _members(kind)
        if len(members) == 1:
            yield part
            kind = _inside(members[0], part)
        else:
            kind = next((member for member in members if _is_label(part, _bare(member))), None)


def _type_at(model: type[BaseModel], path: tuple[PathPart, ...], tree: Node) -> Any:
    """Return the type at a path, None if the model has no such path."""
    kind: Any = model
    for depth, part in enumerate(path, start=1):
        kind = _chosen(_inside(kind, part), yaml.find_node(tree, path[:depth]))
    return kind


def _inside(kind: Any, part: PathPart) -> Any:
    """Return the type of a field of a model, or of the entries of a list or a mapping."""
    if _is_model(kind):
        info = kind.model_fields.get(str(part))
        return _bare(info.annotation) if info else None
    if get_origin(kind) in (tuple, dict):
        return _bare(get_args(kind)[0 if get_origin(kind) is tuple else 1])
    return None


def _chosen(kind: Any, node: Node | None) -> Any:
    """Return the member of a union that ``kind`` in the file selects, or the only one of the node's shape."""
    members = tuple(map(_bare, _members(kind)))
    lists = [member for member in members if get_origin(member) is tuple]
    models = [member for member in members if _is_model(member)]
    if len(lists) == len(models) == 1 and isinstance(node, yaml.SequenceNode | yaml.MappingNode):
        return (lists if isinstance(node, yaml.SequenceNode) else models)[0]
    said = node.entries.get("kind") if isinstance(node, yaml.MappingNode) else None
    tag = said.value if isinstance(said, ScalarNode) else None
    return next((member for member in _members(kind) if tag is not None and _tag(member) == tag), kind)


def _is_label(part: PathPart, member: Any) -> bool:
    """Return True if a part of a pydantic location stands for a member of a union."""
    if _tag(member) is not None or not isinstance(part, str):
        return _tag(member) == part
    name = member.__name__ if _is_model(member) else "tuple" if get_origin(member) is tuple else None
    return name is not None and name in re.findall(r"\w+", part)


def _tag(kind: object) -> object:
    """Return the ``kind`` of a model that is a member of a union."""
    found = kind.model_fields.get("kind") if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return found.default if found else None


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _bare(annotation: Any) -> Any:
    """Return a type without its annotations and without ``| None``."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    members = _members(annotation)
    return _bare(members[0]) if _is_union(annotation) and len(members) == 1 else annotation


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, except null."""
    if not _is_union(annotation):
        return (annotation,)
    return tuple(kind for kind in get_args(annotation) if kind is not types.NoneType)


def _words(kind: Any) -> list[str]:
    """Return the literal values that a field may have."""
    literals = [member for member in map(_bare, _members(kind)) if get_origin(member) is Literal]
    return [str(choice) for literal in literals for choice in get_args(literal)]


def describe_field(info: FieldInfo) -> str:
    """Return the requirement of a field, as messages describe it."""
    return _wanted(info.annotation, info)


def _wanted(annotation: Any, info: FieldInfo | None = None) -> str:
    members = _members(annotation)
    bounds = info.metadata if info else []
    words = dict.fromkeys(_described(member, bounds, alone=len(members) == 1) for member in members)
    return f"{' or '.join(words)}{', or null' if types.NoneType in get_args(annotation) else ''}"


def _described(annotation: Any, bounds: Sequence[object], *, alone: bool) -> str:
    kind = _bare(annotation)
    if get_origin(kind) is Literal:
        return f"{'one of ' if alone else ''}{format_choices([str(choice) for choice in get_args(kind)])}"
    own = [
        item for field in getattr(annotation, "__metadata__", ()) for item in getattr(field, "metadata", ())
    ]
    is_size = any(
        getattr(each, "func", None) is written_size
        for each in (*bounds, *getattr(annotation, "__metadata__", ()))
    )
    word = "a size" if is_size else _WORDS.get(get_origin(kind) or kind, "a mapping")
    return f"{word}{_range([*bounds, *own], format_size if is_size else str)}"


_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "text",
    tuple: "a list",
}


def _range(metadata: Sequence[object], write: Callable[[Any], str]) -> str:
    bound = {
        name: write(value)
        for item in metadata
        for name in ("ge", "gt", "le", "lt")
        if (value := getattr(item, name, None)) is not None
    }
    if "ge" in bound and "le" in bound:
        return f" from {bound['ge']} to {bound['le']}"
    words = [f"{_BOUNDS[name]} {value}" for name, value in bound.items()]
    return f" {' and '.join(words)}" if words else ""


_BOUNDS: Final = {"ge": "of at least", "gt": "greater than", "le": "of at most", "lt": "less than"}
