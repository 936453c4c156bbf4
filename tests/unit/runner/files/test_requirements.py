"""The logical lines of a file of requirements, with their places."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner.files.own_project import read_project
from runner.files.requirements import (
    RequirementLine,
    find_mistake,
    parse_lines,
    parse_locked,
)


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


@contextmanager
def few_seconds() -> Iterator[None]:
    """Raise if the processor works for longer than anything linear could, however slow the machine is."""

    def give_up(_signal: int, _frame: object) -> None:
        raise AssertionError("takes more than linear time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


MANY = 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        " " * MANY + "x",
        "tqdm" + " " * MANY + "x",
        "tqdm" + "\t " * MANY + "--hash=sha256:0",
        "tqdm\\\n" * (MANY // 10) + " " * MANY + "x",
        "tqdm" + " #" * MANY,
        "tqdm" + "#" * MANY,
        "-r" + " " * MANY,
        "-r " + " \x1d" * MANY + "x",
        "a" * MANY + ".whl x",
        "a." * MANY,
        "-" * MANY,
        "tqdm; (" + "(" * MANY,
        "tqdm" + ">=1," * MANY,
        "tqdm[" + "a," * MANY,
        "a @ " + "/" * MANY,
    ],
    ids=lambda text: text[:12],
)
def test_a_file_of_any_text_is_read_in_linear_time(text: str) -> None:
    with few_seconds():
        for line in parse_lines(text):
            find_mistake(line)
            assert line.hashes == frozenset()
            assert line.include is None or line.include[1]
            assert line.name != ""


@pytest.mark.parametrize("text", ["-r  " + " " * MANY + "\nx\ny", "tqdm" + " " * MANY + "\n", "\n" * MANY])
def test_an_entry_of_a_list_is_read_in_linear_time(text: str) -> None:
    line = RequirementLine(text, 0)
    with few_seconds():
        assert line.hashes == frozenset()
        assert line.include is None or line.include[0] is False
        assert line.requirement == text.strip()


def test_the_places_of_many_packages_are_found_in_one_pass() -> None:
    packages = "".join(f'[[packages]]\nname = "p{n}"\nversion = "1"\n' for n in range(20_000))
    with few_seconds():
        lines = parse_locked(packages + "#\n" * 20_000).lines
    assert [each.number for each in (lines[0], lines[-1])] == [2, 59_999]
    wanted = "".join(f'  "q{n}==1",\n' for n in range(20_000))
    with few_seconds():
        found = read_project({"pyproject.toml": f"[project]\ndependencies = [\n{wanted}]\n"}.get).dependencies
    assert [each.number for each, _ in (found[0], found[-1])] == [3, 20_002]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("packages = " + "[" * 100_000, "too many brackets within brackets"),
        ("packages = 5", "is not a lock: it has no packages"),
        ("packages = [5]", "is not a lock: a package has no name"),
        ('[[packages]]\nname = "a"\nversion = "1"\nwheels = 5', "the wheels of a are not a list of tables"),
        ('[[packages]]\nname = "a"\nversion = "1"\nwheels = [5]', "the wheels of a are not a list of tables"),
    ],
)
def test_what_is_no_lock_is_told(text: str, fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        parse_locked(text)


def test_hashes_of_a_lock_that_are_none_are_left_out() -> None:
    wheels = '[{hash = 5}, {hashes = {sha256 = ["x"]}}, {hash = "sha256:x y"}]'
    [line] = parse_locked(f'[[packages]]\nname = "a"\nversion = "1"\nwheels = {wheels}').lines
    assert line.text == "a==1"


def test_a_pyproject_of_brackets_is_told() -> None:
    with pytest.raises(ValueError, match="too many brackets within brackets"):
        read_project({"pyproject.toml": "x = " + "[" * 100_000}.get)
