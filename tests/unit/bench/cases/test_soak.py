"""The soak tells what grew, and is measured only where it is named."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.__main__ import ALONE, _seconds
from bench.cases.soak import BENCH, Growth
from bench.support.daemon import BenchDaemon
from bench.support.result import Result


def test_what_grows_is_told_per_hour(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    growth = Growth(BenchDaemon(tmp_path, cast("Any", SimpleNamespace(pid=os.getpid()))))
    for number in range(8):
        (tmp_path / f"left-{number}").mkdir()
        growth.sample()
    lines = [each for each in growth.lines(5, 1.0, 0.5) if isinstance(each, Result)]
    held = {each.ours.label.partition(",")[0]: each for each in lines}
    assert held["directories beside those of jobs"].ours.values == tuple(range(1, 9))
    assert " directories per hour" in held["directories beside those of jobs"].note
    assert not held["directories beside those of jobs"].note.endswith("; +0.0 directories per hour")
    assert all(value >= 1 for value in held["threads"].ours.values)
    assert held["log of the store"].ours.values == (0.0,) * 8
    assert held["descriptors"].ours.values[0] >= 3


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200)])
def test_the_time_is_a_number_with_a_unit(text: str, seconds: int) -> None:
    assert _seconds(text) == seconds
    for wrong in ("", "m", "0m", "2d", "-1m", "1.5h"):
        with pytest.raises(Exception, match="is not a time; for example 20m or 2h"):
            _seconds(wrong)


def test_it_is_not_measured_with_the_others() -> None:
    assert BENCH in ALONE
