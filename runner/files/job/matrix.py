"""Expands a matrix into one tree for each combination of values.

Each tree is then parsed like any other job file. The values keep their positions, so problems of a value
are reported in the matrix.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from jobs import contract
from runner.base import yaml
from runner.base.textfile import MAX_PROBLEMS, Position, Problem, quoted, shown
from runner.base.yaml import MappingNode, Node, ScalarNode
from runner.files.field_checks import check_label_key, check_label_value
from runner.files.job.queue import Matrix, MatrixValue, find_matrix_contradictions, matrix_combinations
from runner.files.validation import format_path, validate_model

SHORT_FORMS: Final = {"profile": "extends", "image": "name"}
"""Sections with a shorthand, and the field that the text stands for."""

FREE_NAMES: Final = ("environment", "labels", "secrets")
"""Sections whose keys are chosen by the user and may contain dots."""

TEXTS: Final = ("environment.", "labels.")
"""Prefixes of fields in which a number is text."""

ONCE: Final = {
    "name": "cannot be varied; each job gets the file's name and a number",
    "matrix": "cannot be varied; a matrix cannot contain another matrix",
    "sweep": "cannot be varied; each candidate has the same sweep",
    "schedule": "cannot be varied; a schedule cannot be combined with a matrix",
}
"""Fields that a matrix cannot vary, with the messages."""


MAX_SHOWN_VALUES: Final = 4
"""Values of a combination that a message names."""

REPEATED: Final = 10
"""Validation stops when a matrix has so many times more problems, with repetitions, than are shown."""

T = TypeVar("T")

Combination: TypeAlias = dict[str, MatrixValue]
ListedValue: TypeAlias = tuple[str, type, object]
"""Field, type and value."""


class SingleValue(contract.Spec):
    """A model of the matrix alone."""

    matrix: Matrix | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """The tree of one job of a matrix, and its combination of values."""

    tree: MappingNode
    values: Combination


class _NoMapping(Exception):
    """A path leads below a value that has no fields."""


def parse_matrix(tree: MappingNode) -> Matrix | None:
    """Return the matrix of a file, None without a valid one; its problems are reported elsewhere."""
    if "matrix" not in tree.entries:
        return None
    written = {"matrix": yaml.to_plain(tree.entries["matrix"])}
    alone, _ = validate_model(SingleValue, written, tree)
    found = alone.matrix if alone else None
    return None if found is None or any(find_matrix_contradictions(found)) else found


def find_matrix_problems(tree: MappingNode, matrix: Matrix) -> Iterator[Problem]:
    """Yield the problems of fields that cannot be varied, at their positions in the matrix."""
    timed = tree.entries.get("schedule")
    if timed is not None and not (isinstance(timed, ScalarNode) and timed.value is None):
        beside = "cannot be combined with a matrix; remove one of them"
        yield Problem(yaml.find_position(tree, ("schedule",)), "schedule", beside)
    for name in matrix.values:
        path = ("matrix", "values", name)
        fact = ONCE.get(name.partition(".")[0]) or describe_variation(tree, name, matrix.values)
        if fact:
            yield Problem(yaml.find_key_position(tree, path), _shown(name), fact)


def describe_variation(tree: MappingNode, name: str, varied: Collection[str]) -> str | None:
    """Return the reason why a field cannot be varied beside others, None if it can."""
    others = (other for other in varied if name.startswith(f"{other}.") and other not in SHORT_FORMS)
    if (other := next(others, None)) is not None:
        return f"is part of {quoted(other)}, which is varied too"
    try:
        _put(tree, _parts(name), ScalarNode(tree.at, None, ""), tree.at)
    except _NoMapping as error:
        return f"cannot be varied: {error}"
    return None


def expand_matrix(
    tree: MappingNode, matrix: Matrix, name: str, wrong: Collection[str] = ()
) -> tuple[Variant, ...]:
    """Return the variants of a matrix; each is named ``name`` and a number.

    The fields in ``wrong`` are not varied, so that the problems of other fields can be reported together
    with theirs.
    """
    values = yaml.find_node(tree, ("matrix", "values"))
    assert isinstance(values, MappingNode)  # noqa: S101  (the matrix was made from it)
    nodes = listed_nodes(values)
    varied = _without(matrix, {each for each in matrix.values if _shown(each) in wrong})
    found = tuple(
        Variant(
            put_values(
                tree,
                {
                    field: (nodes[field, type(value), value], values.keys[field])
                    for field, value in chosen.items()
                },
                f"{name}-{number}",
            ),
            _arriving(chosen, nodes),
        )
        for number, chosen in enumerate(map(dict, matrix_combinations(varied)), start=1)
    )
    return found if any(each.values for each in found) else (Variant(tree, {}),)


class VariantProblems:
    """The problems of the variants of a matrix; one that only some of them have is told with the first."""

    def __init__(self, tree: MappingNode) -> None:
        self._tree = tree
        self._first: dict[Problem, Combination] = {}
        self._counts: Counter[Problem] = Counter()
        self._variants = 0

    def add(self, variant: Variant, problems: Iterable[Problem]) -> None:
        self._variants += 1
        for problem in set(problems):
            self._first.setdefault(problem, variant.values)
            self._counts[problem] += 1

    @property
    def are_enough(self) -> bool:
        """Return True if there are more problems than are shown, or too many repeated ones to go on."""
        return len(self._first) > MAX_PROBLEMS or self._counts.total() > REPEATED * MAX_PROBLEMS

    def problems(self) -> Iterator[Problem]:
        """Yield each problem once."""
        section = ("matrix", "values") if "matrix" in self._tree.entries else ("sweep", "parameters")
        values = yaml.find_node(self._tree, section)
        items = values.entries.values() if isinstance(values, MappingNode) else ()
        told = {node.at for each in items for node in (each, *getattr(each, "items", ()))}
        drawn = set[object]()
        for problem, combination in self._first.items():
            if self._counts[problem] == self._variants:
                yield problem
            elif problem.at in told:
                if (problem.at, problem.field) not in drawn:  # of a range, the first value that is refused
                    yield problem
                drawn.add((problem.at, problem.field))
            else:
                at = problem.at
                if at in {None, self._tree.at}:
                    at = yaml.find_key_position(self._tree, section)
                yield replace(
                    problem, at=at, fact=f"{problem.fact}; in the job with {_in_words(combination)}"
                )


def _in_words(combination: Combination) -> str:
    """Return a combination as messages show it."""
    said = [f"{name}: {shown(value)}" for name, value in islice(combination.items(), MAX_SHOWN_VALUES)]
    more = len(combination) - len(said)
    return ", ".join(said) + (f" and {more} more" if more > 0 else "")


def _without(matrix: Matrix, names: Collection[str]) -> Matrix:
    """Return a matrix without some fields, in its exclusions too."""
    if not names:
        return matrix

    def kept(fields: Iterable[tuple[str, T]]) -> dict[str, T]:
        return {name: value for name, value in fields if name not in names}

    left_out = [kept(each.items()) for each in matrix.exclude]
    return matrix.model_copy(update={"values": kept(matrix.values.items()), "exclude": left_out})


def _shown(name: str) -> str:
    return format_path(("matrix", "values", name))


def listed_nodes(values: MappingNode) -> dict[ListedValue, ScalarNode]:
    """Return the values that are listed for fields, each as it is typed."""
    return {
        (field, type(node.value), node.value): node
        for field, items in values.entries.items()
        for node in getattr(items, "items", ())
    }


def _arriving(chosen: Combination, nodes: Mapping[ListedValue, ScalarNode]) -> Combination:
    """Return a combination as its job gets it: in text fields, numbers are as typed."""
    return {
        field: nodes[field, type(value), value].text
        if field.startswith(TEXTS) and type(value) in (int, float)
        else value
        for field, value in chosen.items()
    }


def put_values(
    tree: MappingNode, chosen: Mapping[str, tuple[ScalarNode, Position]], name: str
) -> MappingNode:
    """Return the tree of one job: each value at its field, and as a label, and the name of the job.

    Each field has its value and the position of its key.
    """
    labels = {}
    for field in sorted(chosen, key=lambda each: each.count(".")):  # a profile before its switches
        node, at = chosen[field]
        tree = _put(tree, _parts(field), node, at)
        if _is_label(field, node.text):
            labels[field] = ScalarNode(node.at, node.text, node.text)
    for field, node in labels.items():
        with suppress(_NoMapping):  # labels that are not valid are reported as such
            tree = _put(tree, ("labels", field), node, chosen[field][1])
    named = tree.entries.get("name")
    if named is not None and not (isinstance(named, ScalarNode) and isinstance(named.value, str)):
        return tree  # not valid, and reported as such
    at = named.at if named else tree.at
    return _with(tree, "name", ScalarNode(at, name, name), tree.keys.get("name", at))


def _is_label(field: str, text: str) -> bool:
    """Return True if a value becomes a label with the name of its field."""
    try:
        check_label_key(field)
        check_label_value(text)
    except ValueError:
        return False
    return not field.startswith("labels.")


def _parts(name: str) -> tuple[str, ...]:
    section, dot, rest = name.partition(".")
    if section in FREE_NAMES and dot:
        return section, rest
    return tuple(name.split("."))


def _put(tree: MappingNode, path: Sequence[str], value: Node, at: Position) -> MappingNode:
    """Return a tree with a value put at a path; ``at`` is the position of its key; may raise _NoMapping."""
    head, *rest = path
    if not rest:
        return _with(tree, head, value, at)
    inside = _opened(head, tree.entries.get(head), at)
    return _with(tree, head, _put(inside, rest, value, at), tree.keys.get(head, at))


def _opened(name: str, node: Node | None, at: Position) -> MappingNode:
    """Return a section as a mapping, with a shorthand expanded."""
    if isinstance(node, MappingNode):
        return node
    if node is None:
        return MappingNode(at, {}, {})
    if isinstance(node, ScalarNode) and name in SHORT_FORMS:
        field = SHORT_FORMS[name]
        return MappingNode(node.at, {field: node.at}, {field: node})
    raise _NoMapping(f"{quoted(name)} has no fields")


def _with(tree: MappingNode, name: str, value: Node, at: Position) -> MappingNode:
    return MappingNode(tree.at, {**tree.keys, name: at}, {**tree.entries, name: value})
