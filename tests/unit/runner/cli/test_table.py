"""One layout for all tables: cut at the edge of the screen, wrapped in the last column, coloured by state."""

from hypothesis import given
from hypothesis import strategies as st

from runner.cli.table import Style, Table, cut, format_table, make_table, text_width, wrap_text


def test_columns_stand_below_each_other_and_a_missing_value_is_a_dash() -> None:
    table = make_table(("A", "LONGER"), [("first", 1), (None, "")])
    assert format_table(table, 80) == ["A      LONGER", "first  1", "-      -"]


def test_a_table_without_rows_says_what_is_missing() -> None:
    assert format_table(Table(("A",), (), empty="no jobs"), 80) == ["no jobs"]
    assert format_table(Table(("A", "B"), ()), 80) == ["A  B"]


def test_a_state_has_its_colour_and_a_terminal_without_colours_gets_none() -> None:
    table = make_table(("STATE", "WHY"), [("failed", "x")])
    assert format_table(table, 80, Style(colour=True))[1] == "\x1b[31mfailed\x1b[0m  x"
    assert format_table(table, 80)[1] == "failed  x"


def test_the_last_cell_is_wrapped_between_words_below_its_column() -> None:
    table = make_table(("JOB", "WHY"), [("1", "waits for two GPUs\nof one host")])
    assert format_table(table, 16, wrap=True) == [
        "JOB  WHY",
        "1    waits for",
        "     two GPUs",
        "     of one host",
    ]


def test_what_is_left_out_is_counted() -> None:
    table = make_table(("A",), [("x",), ("y",), ("z",)])
    assert format_table(table, 80, shown=1) == ["A", "x", "and 2 more"]


def test_wide_characters_count_twice() -> None:
    assert text_width("\N{CJK UNIFIED IDEOGRAPH-6A21}\N{CJK UNIFIED IDEOGRAPH-578B}") == 4
    assert text_width("e\u0301") == 1
    assert cut("\N{CJK UNIFIED IDEOGRAPH-6A21}xx", 3) == "\N{CJK UNIFIED IDEOGRAPH-6A21}x"


@given(text=st.text(max_size=80), width=st.integers(2, 40))
def test_wrapped_text_loses_nothing_but_spaces_and_fits(text: str, width: int) -> None:
    lines = list(wrap_text(text, width))
    assert all(text_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
