from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.units import format_duration, format_size, parse_duration, parse_size

MIB, GIB = 1024**2, 1024**3


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("20GiB", 20 * GIB),
        ("512MiB", 512 * MIB),
        ("1.5GB", 1_500_000_000),
        ("2G", 2 * GIB),
        ("2g", 2 * GIB),
        ("2gib", 2 * GIB),
        ("2 GiB", 2 * GIB),
        ("100kB", 100_000),
        ("1KiB", 1024),
        ("1TiB", 1024 * GIB),
        ("0.5G", GIB // 2),
        ("4096", 4096),
        ("7B", 7),
        (4096, 4096),
        (0, 0),
    ],
    ids=repr,
)
def test_a_size_is_read_as_people_write_it(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(
    ("written", "fact"),
    [
        ("16Gb", '"16Gb" means bits; did you mean "16GiB"?'),
        (-5, "must not be negative, but is -5"),
        ("-5G", 'must be a size such as 512MiB or 20GiB, not "-5G"; it cannot be negative'),
        ("1.5", 'must be a size such as 512MiB or 20GiB, not "1.5"; did you mean "1.5GiB"?'),
        (1.5, "must be a size such as 512MiB or 20GiB, not 1.5"),
        (True, "must be a size such as 512MiB or 20GiB, not true"),
        (None, "must be a size such as 512MiB or 20GiB, not null"),
        ((1,), "must be a size such as 512MiB or 20GiB, not a list"),
        ({}, "must be a size such as 512MiB or 20GiB, not a mapping"),
        ("", 'must be a size such as 512MiB or 20GiB, not ""'),
        ("1 GiB and more", 'must be a size such as 512MiB or 20GiB, not "1 GiB and more"'),
        ("٣GiB", 'must be a size such as 512MiB or 20GiB, not "٣GiB"'),
    ],
    ids=repr,
)
def test_what_is_no_size_is_refused(written: object, fact: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(written)
    assert str(caught.value) == fact


@pytest.mark.parametrize(
    ("written", "duration"),
    [
        ("90m", timedelta(minutes=90)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("2h 30m", timedelta(hours=2, minutes=30)),
        ("1d", timedelta(days=1)),
        ("45s", timedelta(seconds=45)),
        ("1.5h", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("1m500ms", timedelta(minutes=1, milliseconds=500)),
        ("0s", timedelta()),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_a_duration_is_read_as_people_write_it(written: object, duration: timedelta) -> None:
    assert parse_duration(written) == duration


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        (90, 'needs a unit: did you mean "90s" or "90m"?'),
        (1.5, 'needs a unit: did you mean "1.5s" or "1.5m"?'),
        ("90", 'needs a unit: did you mean "90s" or "90m"?'),
        (-90, "not -90; it cannot be negative"),
        ("-90s", "it cannot be negative"),
        ("2:30:00", 'did you mean "2h30m"?'),
        ("1:30", 'did you mean "1m30s"?'),
        ("0:00", 'did you mean "0s"?'),
        ("90M", 'did you mean "90m"?'),
        ("30m2h", 'not "30m2h"'),
        ("1m1m", 'not "1m1m"'),
        ("soon", 'not "soon"'),
        ("", 'not ""'),
        ("h", 'not "h"'),
        (True, "not true"),
        (None, "not null"),
        ("PT30S", 'not "PT30S"'),
    ],
    ids=repr,
)
def test_what_is_no_duration_is_refused_with_a_guess(written: object, hint: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(written)
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("parse", [parse_size, parse_duration])
@pytest.mark.parametrize(
    "written",
    ["1d" + " " * 100_000 + "x", "9" * 100_000, "1" * 100_000 + "GiB"],
    ids=["spaces", "digits", "size"],
)
def test_a_long_text_is_refused_without_trying_to_match_it(parse: object, written: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="…"):
        parse(written)


@given(st.integers(0, 2**60))
def test_a_size_survives_writing_and_reading(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("written", "shown"),
    [("2TB", "2TB"), ("1.5GB", "1500MB"), ("64MiB", "64MiB"), ("2G", "2GiB"), ("0B", "0B"), ("17B", "17B")],
)
def test_a_size_is_shown_in_the_unit_in_which_it_was_written(written: str, shown: str) -> None:
    assert format_size(parse_size(written)) == shown


@given(st.timedeltas(timedelta(), timedelta(days=9999)))
def test_a_duration_survives_writing_and_reading(duration: timedelta) -> None:
    whole = timedelta(milliseconds=duration // timedelta(milliseconds=1))
    assert parse_duration(format_duration(whole)) == whole
