"""Values as text, and hostile text made harmless."""

from datetime import UTC, datetime

import pytest

from runner.dashboard import text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("plain", "plain"),
        ("größe", "größe"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b", "a\\u2028b"),
        ("a\x00b", "a\\x00b"),
        (None, "-"),
        (7, "7"),
    ],
)
def test_what_could_pretend_to_be_something_else_is_shown_as_it_is(hostile: object, shown: str) -> None:
    assert text.clean(hostile) == shown


def test_a_value_has_a_length_that_a_page_can_show() -> None:
    assert len(text.clean("x" * 10_000_000)) < 2100


def test_a_log_of_any_length_is_escaped() -> None:
    assert str(text.log_text("<script>\x1b\n" * 3)) == "&lt;script&gt;\\x1b\n" * 3


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0s"),
        (-5, "0s"),
        (59, "59s"),
        (61, "1m01s"),
        (7800, "2h10m"),
        (90061, "1d01h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**31, "2 GiB"), (2**50, "1024 TiB")],
)
def test_a_size_has_a_binary_unit(count: float | None, shown: str) -> None:
    assert text.size(count) == shown


def test_times_are_those_of_utc_and_how_long_ago() -> None:
    at = "2030-01-02T03:04:05.000Z"
    assert text.clock(at) == "2030-01-02 03:04:05 UTC"
    assert text.ago(at, datetime(2030, 1, 2, 3, 5, 5, tzinfo=UTC)) == "1m"
    assert (text.clock(None), text.ago(None, datetime.now(UTC))) == ("-", "-")


def test_numbers_have_five_digits() -> None:
    assert [text.number(each) for each in (None, 3, 0.123456789, "x")] == ["-", "3", "0.12346", "x"]
    assert [text.share(each) for each in (None, 0.5)] == ["-", "50 %"]
