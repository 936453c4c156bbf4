"""The logical lines of a file of requirements, with their places."""

import pytest

from runner.files.requirements import RequirementLine, parse_lines


def found(text: str) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in parse_lines(text)]


def test_comments_and_empty_lines_are_left_out_and_counted() -> None:
    assert found("# a comment\n\ntqdm  # a bar\nidna\n") == [(3, "tqdm"), (4, "idna")]


def test_a_continued_line_has_the_place_of_its_first() -> None:
    assert found("tqdm==4 \\\n  --hash=sha256:aa\nidna") == [(1, "tqdm==4   --hash=sha256:aa"), (3, "idna")]
    assert found("tqdm \\") == [(1, "tqdm")]


def test_an_address_keeps_its_fragment() -> None:
    assert found("a @ https://h/a.whl#sha256=1") == [(1, "a @ https://h/a.whl#sha256=1")]


@pytest.mark.parametrize(
    ("text", "include"),
    [
        ("-r more.txt", (False, "more.txt")),
        ("--requirement=more.txt", (False, "more.txt")),
        ("-c limits.txt", (True, "limits.txt")),
        ("--constraint limits.txt", (True, "limits.txt")),
        ("--index-url https://x", None),
        ("tqdm", None),
    ],
)
def test_includes_are_known(text: str, include: tuple[bool, str] | None) -> None:
    assert RequirementLine(text, 1).include == include


@pytest.mark.parametrize(
    ("text", "name"),
    [("Foo_Bar.baz>=1", "foo-bar-baz"), ("torch[extra]==2", "torch"), ("-e .", None), ("./here", None)],
)
def test_the_name_is_the_one_that_indexes_compare(text: str, name: str | None) -> None:
    assert RequirementLine(text, 1).name == name
