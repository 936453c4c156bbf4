"""Checks and conversions that run before the models: shorthands, the kind of a workload, names and arguments.

They run first so that a message names the mistake and not its consequences.
"""

from collections.abc import Iterator

from jobs import contract
from runner.base import yaml
from runner.base.textfile import Problem, quoted, shown
from runner.files.validation import error_below, format_choices, format_path, suggest_choice
from runner.files.validators import NUMBER_REFUSED, check_host_path, check_text, is_number


def find_numeric_name(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield the problem of a name of digits alone.

    The models accept such names, because stored jobs of older versions may have them.
    """
    written = tree.entries.get("name")
    if isinstance(written, yaml.ScalarNode) and isinstance(written.value, str):
        yield from ([Problem(written.at, "name", NUMBER_REFUSED)] if is_number(written.value) else ())


def find_long_arguments(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield the problems of too long arguments, which the models accept for the same reason."""
    command = yaml.find_node(tree, ("workload", "command"))
    for number, word in enumerate(getattr(command, "items", ())):
        try:
            check_text(getattr(word, "text", ""))
        except ValueError as error:
            yield Problem(word.at, format_path(("workload", "command", number)), str(error))


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
        hint = suggest_choice(kind, contract.KINDS)
        raise error_below(("kind",), f"there is no workload {quoted(kind)}{hint}")
    return value


def check_plan_paths(workload: contract.Plan) -> contract.Plan:
    """Check the paths of a plan, which the contract does not know as paths of the host."""
    if getattr(workload, "data", None) == contract.STDLIB and workload.kind != "causal_lm":
        fact = f'"stdlib" is text, which {workload.kind} cannot read; for a directory write "./stdlib"'
        raise error_below(("data",), fact)
    for name in ("data", "code"):
        path = getattr(workload, name, None)
        try:
            check_host_path("." if path is None else path)
        except ValueError as error:
            raise error_below((name,), str(error)) from error
    return workload


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
