"""The numbers of a measurement are kept, and its table is rendered from them."""

import json
from pathlib import Path

import pytest

from bench.support import result_files
from bench.support.machine import Machine
from bench.support.result import Aim, Line, NotMeasured, Result, Series
from bench.support.table import render

MACHINE = Machine("Some CPU", 2, 23.5, "6.1", "none", "3.11.7", 0.4)
LINES: tuple[Line, ...] = (
    Result("post", Series("ours", "ms", (1.0, 2.0)), Series("theirs", "ms", (2.0, 2.0)), Aim(1.0, "ratio")),
    Result("post", Series("alone", "jobs/s", (3.0,)), note="a note"),
    Result("list", Series("ours", "ms", (1.0, 9.0)), Series("theirs", "ms", (3.0, 2.0)), paired=True),
    Result("sharing", Series("ours", "x", (1.0, 2.0, 9.0)), Series("fair", "x", (2.0,) * 3), of_means=True),
    NotMeasured("burst", "gflow", "gflowd is not installed"),
)
COMMITTED = sorted(result_files.find(result_files.RESULTS, []))


def test_the_kept_numbers_give_the_table_that_was_printed(tmp_path: Path) -> None:
    path = result_files.write(tmp_path, (), MACHINE, LINES)
    assert path == tmp_path / "some-cpu-2-cores" / "all.json"
    assert [result_files.read_line(line) for line in json.loads(path.read_text())["lines"]] == list(LINES)
    assert result_files.show(path) == f"{MACHINE.text()}\n\n{render(LINES)}"


def test_results_are_found_by_the_cases_in_them(tmp_path: Path) -> None:
    paths = [result_files.write(tmp_path, names, MACHINE, LINES) for names in (("post", "burst"), ("stall",))]
    assert list(result_files.find(tmp_path, ["burst"])) == paths[:1]
    assert list(result_files.find(tmp_path, [])) == paths


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_committed_result_can_be_shown(path: Path) -> None:
    numbers = json.loads(path.read_text())
    if "lines" in numbers:  # to render them takes seconds: each interval is drawn anew
        assert all(result_files.read_line(line).bench == line["bench"] for line in numbers["lines"])
    else:
        assert "ratio" in result_files.show(path)
