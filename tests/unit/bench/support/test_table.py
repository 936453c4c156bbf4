import pytest

from bench.support.result import Aim, NotMeasured, Result, Series
from bench.support.table import amount, render, row

FEW = Series("ours", "ms", (20.0,) * 3)
MANY = Series("ours", "s", tuple(float(n) for n in range(1, 22)))


@pytest.mark.parametrize(
    ("value", "text"), [(0.4567, "0.46 s"), (9.994, "9.99 s"), (12.34, "12.3 s"), (1234.5, "1234 s")]
)
def test_amounts_have_about_three_digits(value: float, text: str) -> None:
    assert amount(value, "s") == text


def test_a_missed_aim_is_said_aloud() -> None:
    assert row(Result("x", FEW, None, Aim(5.0, "p50")))[-2:] == ("<= 5 ms", "MISSED")
    assert row(Result("x", FEW, FEW, Aim(1.0, "ratio")))[-2:] == ("<= 1 x", "met")


def test_of_some_things_more_is_better() -> None:
    rate = Series("ours", "jobs/s", (310.0, 320.0, 330.0))
    assert row(Result("x", rate, None, Aim(300.0, "p50", at_least=True)))[-2:] == (">= 300 jobs/s", "met")
    assert row(Result("x", rate, None, Aim(400.0, "p50", at_least=True)))[-1] == "MISSED"


def test_a_few_values_have_no_95th_percentile() -> None:
    assert row(Result("x", FEW))[1:3] == ("20.0 ms", "-")
    assert row(Result("x", MANY))[1:3] == ("11.0 s", "20.0 s")


def test_a_line_without_a_measurement_says_why() -> None:
    text = render([NotMeasured("x", "ours beside theirs", "theirs is not installed")])
    assert "ours beside theirs\n      not measured: theirs is not installed\n" in text


def test_benches_are_headed_and_columns_stand_below_each_other() -> None:
    theirs = Series("a longer label", "ms", (10.0,) * 3)
    lines = [Result("one", FEW, theirs), Result("two", FEW, None, note="a note")]
    text = render(lines).splitlines()
    assert text[1:3] == ["", "one"]
    assert text[4:6] == ["", "two"]
    assert text[7] == "      a note"
    assert text[0].index("beside") == text[3].index("a longer label")
    assert "2.00 x (2.00 - 2.00)" in text[3]
