"""What may stand in the place of a section: a short form, or a kind that decides about all else.

Looked at before the models are, so that a complaint names the mistake and not what follows from it.
"""

from collections.abc import Iterator

from jobs import contract
from runner.base import yaml
from runner.base.textfile import Problem, quoted, shown
from runner.files.validation import error_below, format_choices, format_path, suggest_choice
from runner.files.validators import NUMBER_REFUSED, check_host_path, check_text, is_number


def find_numeric_name(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield what is wrong with a name of digits alone.

    The models accept it: jobs that were called so before this was refused are read by them too.
    """
    written = tree.entries.get("name")
    if isinstance(written, yaml.ScalarNode) and isinstance(written.value, str):
        yield from ([Problem(written.at, "name", NUMBER_REFUSED)] if is_number(written.value) else ())


def find_long_arguments(tree: yaml.MappingNode) -> Iterator[Problem]:
    """Yield what is too long to be an argument; not in the models either, for the same reason."""
    command = yaml.find_node(tree, ("workload", "command"))
    for number, word in enumerate(getattr(command, "items", ())):
        try:
            check_text(getattr(word, "text", ""))
        except ValueError as error:
            yield Problem(word.at, format_path(("workload", "command", number)), str(error))


def check_kind(value: object) -> object:
    """Look at the kind before all else: the fields of an unknown one mean nothing."""
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
    """Look at the paths of a plan: the contract does not know that they are the host's."""
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
    """Return a mapping for the text that may stand in its place."""
    if isinstance(value, str):
        return {field_name: value}
    if isinstance(value, dict | contract.Spec):
        return value
    raise ValueError(f"must be {words} or a mapping, not {shown(value)}")
