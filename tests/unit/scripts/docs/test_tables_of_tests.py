"""The numbered tables of tests name only tests that exist, and leave no number out."""

import re

import pytest

from scripts.docs.page import ROOT
from scripts.docs.sources import Item, problems

PAGE = (ROOT / "provenance" / "tests.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| (.+) \|$", re.MULTILINE)
TABLES = {section.partition("\n")[0]: ROW.findall(section) for section in PAGE.split("\n## ")}


def named_in(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize(("section", "least"), [("What is checked of Slurm", 24), ("Programs of others", 27)])
def test_the_rows_are_numbered_without_a_gap(section: str, least: int) -> None:
    numbers = [int(number) for number, _, _ in TABLES[section]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= least


@pytest.mark.parametrize(("number", "what", "cells"), [row for table in TABLES.values() for row in table])
def test_every_cell_names_tests_that_exist(number: str, what: str, cells: str) -> None:
    for cell in cells.split(" | "):
        item = Item(id=number, item=what, answer="built", where=("provenance/tests.md",), test=named_in(cell))
        assert not list(problems(item))


def test_a_test_that_does_not_exist_is_found() -> None:
    cell = "`tests/integration/test_slurm.py::test_that_nobody_has_written`"
    item = Item(id="1", item="x", answer="built", where=("docs",), test=named_in(cell))
    assert list(problems(item)) == ["tests/integration/test_slurm.py has no test_that_nobody_has_written"]
