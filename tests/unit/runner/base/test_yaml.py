import pytest

from runner.base.textfile import Position
from runner.base.yaml import (
    MAX_NODES,
    MappingNode,
    ScalarNode,
    compose,
    find_key_position,
    find_position,
    resolve_scalar,
    to_plain,
)


def tree(text: str) -> MappingNode:
    node, problems = compose(text.encode())
    assert problems == ()
    assert isinstance(node, MappingNode)
    return node


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("True", True),
        ("~", None),
        ("", None),
        ('"5"', "5"),
        ("'true'", "true"),
        ("9" * 50, "9" * 50),
    ],
)
def test_scalars_follow_yaml_1_2(written: str, value: object) -> None:
    found = to_plain(tree(f"a: {written}\n"))
    assert found == {"a": value}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert to_plain(tree("on: 1\n1: 2\ntrue: 3\nnull: 4\n")) == {"on": 1, "1": 2, "true": 3, "null": 4}


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem() -> None:
    node, problems = compose(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert problems == ()
    assert node is not None
    assert to_plain(node) == {"a": 1, "b": 2}


def test_an_alias_repeats_what_its_anchor_names() -> None:
    assert to_plain(tree("a: &x [1, 2]\nb: *x\n")) == {"a": (1, 2), "b": (1, 2)}


def test_aliases_that_multiply_are_refused_by_what_they_expand_to() -> None:
    lines = ["a0: &a0 [" + "x, " * 99 + "x]"]
    lines += [f"a{i}: &a{i} [" + f"*a{i - 1}, " * 99 + f"*a{i - 1}]" for i in range(1, 9)]
    node, problems = compose("\n".join(lines).encode())
    assert node is None
    assert str(MAX_NODES) in problems[-1].fact


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_depth_is_refused_before_it_can_exhaust_the_stack(opening: str) -> None:
    node, problems = compose((opening * 100_000).encode())
    assert node is None
    assert problems[0].fact == "nested more than 32 levels deep"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), (1, 1)),
        (("a",), (1, 1)),
        (("a", "b"), (2, 3)),
        (("a", "b", 0), (3, 7)),
        (("a", "b", 1, "c"), (4, 10)),
        (("a", "b", 7), (2, 3)),
        (("a", "gone", "further"), (1, 1)),
        (("d",), (5, 4)),
    ],
)
def test_a_place_is_the_value_or_the_key_of_what_is_long(
    path: tuple[str | int, ...], expected: tuple[int, int]
) -> None:
    root = tree("a:\n  b:\n    - x\n    - c: 5\nd: 6\n")
    assert find_position(root, path) == Position(*expected)


def test_the_place_of_a_key_is_where_it_is_written() -> None:
    root = tree("a: {b: 1, ccc: 2}\n")
    assert find_key_position(root, ("a", "ccc")) == Position(1, 11)
    assert find_key_position(root, ()) == Position(1, 1)


def test_columns_count_characters_not_bytes() -> None:
    root = tree("äöü: {ñ: 1}\n")
    assert find_position(root, ("äöü", "ñ")) == Position(1, 10)


def test_a_number_remembers_how_it_was_written() -> None:
    node = tree("a: 1.10\n").entries["a"]
    assert isinstance(node, ScalarNode)
    assert (node.value, node.text) == (1.1, "1.10")


def test_every_duplicate_key_and_every_tag_of_a_document_is_reported() -> None:
    _, problems = compose(b"a: 1\na: !x 2\nb: {c: 1, c: 2}\n---\n")
    assert sorted((problem.at, problem.fact) for problem in problems if problem.at) == [
        ((2, 1), '"a" is given twice, first in line 1; remove one'),
        ((2, 4), 'tags such as "!x" are not supported; remove it'),
        ((3, 11), '"c" is given twice, first in line 3; remove one'),
        ((4, 1), "a second document begins here; a file holds one"),
    ]


def test_aliases_inside_aliases_are_refused_by_the_depth_they_expand_to() -> None:
    lines = ["a0: &a0 " + "[" * 28 + "]" * 28]
    lines += [f"a{i}: &a{i} {'[' * 28}*a{i - 1}{']' * 28}" for i in range(1, 25)]
    node, problems = compose("\n".join(lines).encode())
    assert node is None
    assert [problem.fact for problem in problems] == ["nested more than 32 levels deep"]


def test_an_anchor_is_defined_once() -> None:
    node, problems = compose(b"a: &x 1\nb: &x 2\n")
    assert node is None
    assert [(problem.at, problem.fact) for problem in problems] == [
        ((2, 4), 'anchor "&x" is defined twice; give the second one another name')
    ]


@pytest.mark.parametrize(
    "text", ["%FOO bar\n", "&a &b c\n", "a: |\n x\n\ty\n", "a: 1\n]\n", "!<", "*", "&", "%"]
)
def test_any_broken_text_has_a_place_and_a_fact(text: str) -> None:
    node, problems = compose(text.encode())
    assert node is None
    assert problems[-1].at is not None
    assert problems[-1].fact.startswith("not valid YAML: ")


@pytest.mark.parametrize(("text", "value"), [("1e9", 10**9), ("2.5e3", 2500), ("1E+2", 100)])
def test_a_large_count_may_be_written_with_an_exponent(text: str, value: int) -> None:
    found = resolve_scalar(text)
    assert (type(found), found) == (int, value)


@pytest.mark.parametrize("text", ["1e-3", "2.55e1", "1.0", "1e300"])
def test_what_is_no_whole_number_stays_a_number(text: str) -> None:
    assert isinstance(resolve_scalar(text), float)
