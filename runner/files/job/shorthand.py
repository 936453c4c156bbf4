"""Checks and conversions that run before the models: shorthands, the kind of a workload, names and arguments.

They run first so that a message names the mistake and not its consequences.
"""

from collections.abc import Iterator
from typing import Final

from jobs import contract
from runner.base import yaml
from runner.base.textfile import MAX_PROBLEMS, Position, Problem, quoted, shown
from runner.files.field_checks import (
    NUMBER_REFUSED,
    check_host_path,
    check_text,
    has_secret,
    is_number,
    is_secret,
)
from runner.files.job.initial_weights import init_from, parse_init_from
from runner.files.validation import error_below, format_choices, format_path, suggest_choice

MAX_KEY: Final = 4096
"""Characters of a key; the keys of some sections are the user's own."""


def find_numeric_name(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield the problem of a name of digits alone.

    The models accept such names, because stored jobs of older versions may have them.
    """
    written = tree.entries.get("name")
    if isinstance(written, yaml.ScalarNode) and isinstance(written.value, str):
        yield from ([Problem(written.at, "name", NUMBER_REFUSED)] if is_number(written.value) else ())


def find_long_texts(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield the problems of texts that are too long for any field.

    The models accept some of them for the same reason.
    """
    if len(tree.entries) <= MAX_PROBLEMS:  # else there are enough problems without these
        yield from _long_texts(tree, ())


def _long_texts(node: yaml.Node, path: tuple[yaml.PathPart, ...]) -> Iterator[Problem]:
    match node:
        case yaml.ScalarNode():
            try:
                check_text(node.text)
            except ValueError as error:
                yield Problem(node.at, format_path(path), str(error))
        case yaml.SequenceNode():
            for number, item in enumerate(node.items):
                yield from _long_texts(item, (*path, number))
        case yaml.MappingNode():
            for key, value in node.entries.items():
                if len(key) > MAX_KEY:
                    fact = f"a name here has {MAX_KEY} characters at most, not {len(key)}"
                    yield Problem(node.keys[key], format_path((*path, key)), fact)
                yield from _long_texts(value, (*path, key))


def find_secrets(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield the variables of a job whose values are secret, and other texts with something secret in them."""
    step = "write it to a file, and name that as secrets"
    for path, key, node in _texts(tree, ()):
        match path:
            case ("environment", str(name)):
                if is_secret(name, node.text):
                    fact = f"is a secret, and what a job file says is not; {step}.{name}"
                    way = f", and the variable in secret_env (--secret-env {name}=FILE)"
                    yield Problem(key, format_path(path), fact + way)
            case (str(field), *_) if field != "track" and has_secret(node.text):
                fact = f"has a secret in it, which everybody who may see the job can read; {step}.NAME"
                way = " (--secret NAME=FILE), which the program finds at /run/secrets/NAME"
                yield Problem(node.at, format_path(path), fact + way)


def _texts(
    node: yaml.Node, path: tuple[yaml.PathPart, ...], key: Position | None = None
) -> Iterator[tuple[tuple[yaml.PathPart, ...], Position | None, yaml.ScalarNode]]:
    """Yield all scalars with their paths, and the positions of their keys."""
    match node:
        case yaml.ScalarNode():
            yield path, key, node
        case yaml.SequenceNode():
            for number, item in enumerate(node.items):
                yield from _texts(item, (*path, number))
        case yaml.MappingNode():
            for name, value in node.entries.items():
                yield from _texts(value, (*path, name), node.keys[name])


def check_kind(value: object) -> object:
    """Check the kind first, because the other fields depend on it."""
    if not isinstance(value, dict):
        return value
    kind = value.get("kind")
    if kind is None:
        raise error_below(("kind",), f"is required; write {format_choices(contract.KINDS)}")
    if not isinstance(kind, str):
        raise error_below(("kind",), f"must be {format_choices(contract.KINDS)}, not {shown(kind)}")
    if kind not in contract.KINDS:
        hint = contract.WORKLOAD_REGISTRY.why_not(kind) or suggest_choice(kind, contract.KINDS)
        raise error_below(("kind",), f"there is no workload {quoted(kind)}{hint}")
    return value


def check_plan_paths(workload: contract.Plan) -> contract.Plan:
    """Check the paths of a plan, which the contract does not know as paths of the host."""
    if getattr(workload, "data", None) == contract.STDLIB and workload.kind != "causal_lm":
        fact = f'"stdlib" is text, which {workload.kind} cannot read; for a directory write "./stdlib"'
        raise error_below(("data",), fact)
    others = () if isinstance(workload, contract.Program) else tuple(workload.named_paths.items())
    for name, path in (("data", getattr(workload, "data", None)), ("code", _code_path(workload)), *others):
        try:
            check_host_path("." if path is None else path)
        except ValueError as error:
            raise error_below((name,), str(error)) from error
    if (weights := init_from(workload)) is not None:
        try:
            parse_init_from(check_host_path(weights))
        except ValueError as error:
            raise error_below(("init_from",), str(error)) from error
    return workload


def _code_path(workload: contract.Plan) -> str | None:
    code = workload.code if isinstance(workload, contract.Program) else None
    return None if code is None else code.path


def expand_profile(value: object) -> object:
    return expand_short_form(value, "extends", "the name of a profile")


def expand_image(value: object) -> object:
    return expand_short_form(value, "name", "the name of an image")


def expand_short_form(value: object, field_name: str, words: str) -> object:
    """Return a mapping; a text becomes the value of ``field_name``."""
    if isinstance(value, str):
        return {field_name: value}
    if isinstance(value, dict | contract.Spec):
        return value
    raise ValueError(f"must be {words} or a mapping, not {shown(value)}")
