"""The table of what is checked of Slurm names only tests that exist, and leaves no check out."""

import re

import pytest

from scripts.docs.page import ROOT
from scripts.docs.sources import Item, problems

PAGE = (ROOT / "provenance" / "tests.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.partition("## What is checked of Slurm\n")[2])


def named_in(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def test_the_checks_are_numbered_without_a_gap() -> None:
    numbers = [int(number) for number, _, _ in ROWS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 24


@pytest.mark.parametrize(("number", "what", "cell"), ROWS)
def test_every_check_names_tests_that_exist(number: str, what: str, cell: str) -> None:
    item = Item(id=number, item=what, answer="built", where=("provenance/tests.md",), test=named_in(cell))
    assert not list(problems(item))


def test_a_test_that_does_not_exist_is_found() -> None:
    cell = "`tests/integration/test_slurm.py::test_that_nobody_has_written`"
    item = Item(id="1", item="x", answer="built", where=("docs",), test=named_in(cell))
    assert list(problems(item)) == ["tests/integration/test_slurm.py has no test_that_nobody_has_written"]
