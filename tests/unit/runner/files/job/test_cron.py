"""Times of cron expressions, on the days on which clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from runner.core.schedule import FiringTerms, upcoming
from runner.files.job.cron import parse_cron

BERLIN = "Europe/Berlin"


def times(expression: str, since: str, count: int, zone: str = BERLIN) -> list[str]:
    """Return the next times on the zone's clock; ``since`` is on it too, with its offset."""
    found = parse_cron(expression, zone)
    every = upcoming(datetime.fromisoformat(since).astimezone(UTC), FiringTerms(), found.after)
    return [found.local(at).strftime("%m-%d %H:%M%z") for at in islice(every, count)]


def test_in_spring_a_time_that_does_not_exist_comes_at_the_first_moment_after_the_gap() -> None:
    assert times("30 2 * * *", "2027-03-27T12:00+01:00", 3) == [
        "03-28 03:00+0200",
        "03-29 02:30+0200",
        "03-30 02:30+0200",
    ]


def test_in_autumn_a_time_that_comes_twice_comes_once() -> None:
    assert times("30 2 * * *", "2027-10-30T12:00+02:00", 3) == [
        "10-31 02:30+0200",
        "11-01 02:30+0100",
        "11-02 02:30+0100",
    ]


@pytest.mark.parametrize(
    "since", ["2027-10-31T02:31+02:00", "2027-10-31T02:15+01:00", "2027-10-31T02:30+01:00"]
)
def test_a_daemon_that_begins_in_the_hour_that_comes_twice_does_not_look_back(since: str) -> None:
    assert times("30 2 * * *", since, 1) == ["11-01 02:30+0100"]


def test_what_comes_every_hour_comes_in_both_hours_and_not_in_the_one_that_is_left_out() -> None:
    assert times("0 * * * *", "2027-10-31T01:30+02:00", 3) == [
        "10-31 02:00+0200",
        "10-31 02:00+0100",
        "10-31 03:00+0100",
    ]
    assert times("*/30 * * * *", "2027-03-28T01:15+01:00", 3) == [
        "03-28 01:30+0100",
        "03-28 03:00+0200",
        "03-28 03:30+0200",
    ]


def test_two_times_in_the_gap_become_one() -> None:
    assert times("0,30 2 * * *", "2027-03-27T12:00+01:00", 2) == ["03-28 03:00+0200", "03-29 02:00+0200"]


@pytest.mark.parametrize("zone", [BERLIN, "UTC", "America/Santiago", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "expression", ["17 2 * * *", "0,30 0-3 * * *", "*/20 * * * *", "0 */3 * * *", "@daily"]
)
def test_times_are_the_same_wherever_one_begins_to_count(expression: str, zone: str) -> None:
    found = parse_cron(expression, zone)
    for begin in (datetime(2027, 3, 26, tzinfo=UTC), datetime(2027, 10, 29, tzinfo=UTC)):
        end = begin + timedelta(days=10)
        whole = list(upcoming(begin, FiringTerms(until=end), found.after))
        assert whole == sorted(set(whole))
        for hours in range(240):
            since = begin + timedelta(hours=hours, minutes=13)
            assert found.after(since) == next((at for at in whole if at > since), found.after(since))


@pytest.mark.parametrize("zone", [BERLIN, "America/Santiago"])
@pytest.mark.parametrize("month", [3, 4, 10])
def test_every_wall_clock_time_that_exists_once_is_met_exactly(zone: str, month: int) -> None:
    found = parse_cron("5 * * * *", zone)
    begin = datetime(2027, month, 1, tzinfo=UTC)
    end = begin + timedelta(days=30)
    minutes = (begin + timedelta(minutes=n) for n in range(1, 30 * 24 * 60 + 1))
    assert list(upcoming(begin, FiringTerms(until=end), found.after)) == [
        each for each in minutes if found.local(each).minute == 5
    ]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 0 30 2 *", '"0 0 30 2 *" never occurs: the months have no such day'),
        ("0 0 31 4,6 *", "never occurs"),
        ("60 0 * * *", '"60" is not a valid minute in a cron expression'),
        ("0 24 * * *", '"24" is not a valid hour in a cron expression'),
        ("0 0 0 * *", '"0" is not a valid day in a cron expression'),
        ("0 0 * MAI *", '"MAI" is not a valid month in a cron expression'),
        ("0 0 * * 8", '"8" is not a valid weekday in a cron expression'),
        ("*/0 * * * *", '"*/0" is not a valid minute in a cron expression'),
    ],
)
def test_an_expression_that_never_comes_or_means_nothing_is_refused(expression: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"cron expression|never occurs") as refused:
        parse_cron(expression, BERLIN)
    assert words in str(refused.value)


def test_a_rare_day_is_no_day_that_never_comes() -> None:
    assert times("0 0 29 2 *", "2027-01-01T00:00+01:00", 2) == ["02-29 00:00+0100"] * 2
    assert times("0 0 * 2 1#5", "2027-01-01T00:00+01:00", 1) == ["02-29 00:00+0100"]


def test_a_time_zone_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match='there is no time zone "Europe/Bärlin"'):
        parse_cron("@daily", "Europe/Bärlin")
    with pytest.raises(ValueError, match="there is no time zone"):
        parse_cron("@daily", "Europe")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("@hourly", "01-01 13:00"),
        ("@daily", "01-02 00:00"),
        ("@weekly", "01-03 00:00"),
        ("@yearly", "01-01 00:00"),
    ],
)
def test_names_stand_for_expressions(name: str, first: str) -> None:
    assert times(name, "2027-01-01T12:30+01:00", 1)[0].startswith(first)
