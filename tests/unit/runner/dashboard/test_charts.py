"""Charts without a script: the points lie within the axes, and words say what is seen."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runner.dashboard.charts import HEIGHT, LEFT, MOST_DRAWN, WIDTH, draw, strip


def rows(values: list[float], steps: bool = True) -> list[list[Any]]:  # noqa: FBT001, FBT002
    return [[float(n), n if steps else None, value, value, value, 1] for n, value in enumerate(values)]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=2000))
def test_every_point_lies_within_the_picture(values: list[float]) -> None:
    chart = draw("loss", {"a": rows(values)})
    assert chart is not None
    numbers = [float(each) for each in re.findall(r"-?[\d.]+", chart.lines[0].path)]
    assert len(numbers) // 2 <= MOST_DRAWN + 1
    assert all(LEFT <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])


def test_the_words_tell_what_the_picture_shows() -> None:
    chart = draw("loss", {"a": rows([3.0, 1.0, 2.0]), "b": rows([5.0])})
    assert chart is not None
    assert chart.summary == "loss: a: last 2, least 1, largest 3; b: last 5, least 5, largest 5"
    assert (chart.low, chart.high, chart.first, chart.last) == ("1", "5", "0", "2")


def test_what_has_no_steps_is_drawn_over_hours() -> None:
    assert draw("util", {"a": rows([1.0, 2.0], steps=False)}) is None
    chart = draw("util", {"a": rows([1.0, 2.0], steps=False)}, "time")
    assert chart is not None
    assert chart.last.endswith(" h")


def test_bytes_have_a_unit() -> None:
    chart = draw("memory_bytes", {"a": rows([0.0, 2.0**30])})
    assert chart is not None
    assert (chart.low, chart.high) == ("0 B", "1 GiB")


def test_a_strip_has_a_cell_for_each_quarter_of_an_hour() -> None:
    day = 86400.0
    points = [[0.0, None, 100.0, 0, 0, 1], [day / 2, None, 45.0, 0, 0, 1], [day / 2 + 1, None, 55.0, 0, 0, 1]]
    cells = strip(points, day)
    assert (len(cells), cells[0], cells[48], cells.count(None)) == (96, 4, 2, 94)
