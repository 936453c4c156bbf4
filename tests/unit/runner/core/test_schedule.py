"""Firings of a schedule, over times that the test makes up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.schedule import (
    MAX_COUNTED,
    ON_TIME,
    FiringTerms,
    Missed,
    NextTime,
    Overlap,
    SkipFiring,
    SubmitFiring,
    next_firing,
    upcoming,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATE = ON_TIME + timedelta(seconds=1)


def every(step: timedelta) -> NextTime:
    """Return the times T0, T0 + step, and so on."""

    def after(moment: datetime) -> datetime:
        return T0 + (max(-1, (moment - T0) // step) + 1) * step

    return after


def at(*hours: float) -> NextTime:
    """Return these times and no others."""
    return among([T0 + hour * HOUR for hour in hours])


def among(times: Sequence[datetime]) -> NextTime:
    return lambda moment: next((each for each in times if each > moment), None)


def test_before_its_time_nothing_follows() -> None:
    assert next_firing(T0, T0 + HOUR / 2, FiringTerms(), every(HOUR), ()) is None
    assert next_firing(T0, T0 + 9 * HOUR, FiringTerms(), at(), ()) is None


def test_at_its_time_one_job_follows() -> None:
    assert next_firing(T0, T0 + HOUR, FiringTerms(), every(HOUR), ()) == SubmitFiring(T0 + HOUR)


def test_a_little_late_is_still_on_time() -> None:
    assert next_firing(T0, T0 + HOUR + ON_TIME, FiringTerms(), every(HOUR), ()) == SubmitFiring(T0 + HOUR)


def test_what_was_missed_is_left_out_once() -> None:
    found = next_firing(T0, T0 + 5 * HOUR + LATE, FiringTerms(), every(HOUR), ())
    assert found == SkipFiring(T0 + 5 * HOUR, "nobody was there; 5 times left out")
    one = next_firing(T0, T0 + HOUR + LATE, FiringTerms(), every(HOUR), ())
    assert one == SkipFiring(T0 + HOUR, "nobody was there; 1 time left out")


def test_what_was_missed_is_made_up_for_once() -> None:
    terms = FiringTerms(missed=Missed.RUN_ONCE)
    found = next_firing(T0, T0 + 5 * HOUR + LATE, terms, every(HOUR), ())
    assert found == SubmitFiring(T0 + 5 * HOUR, (), "4 times before it left out")


def test_one_that_is_on_time_is_submitted_whatever_was_missed_before() -> None:
    found = next_firing(T0, T0 + 5 * HOUR, FiringTerms(), every(HOUR), ())
    assert found == SubmitFiring(T0 + 5 * HOUR, (), "4 times before it left out")


def test_a_downtime_of_a_year_is_counted_so_far() -> None:
    calls = 0
    minutely = every(timedelta(minutes=1))

    def after(moment: datetime) -> datetime | None:
        nonlocal calls
        calls += 1
        return minutely(moment)

    now = T0 + timedelta(days=365, seconds=7)
    found = next_firing(T0, now, FiringTerms(missed=Missed.RUN_ONCE), after, ())
    assert found == SubmitFiring(
        now - timedelta(seconds=7), (), f"{MAX_COUNTED} times or more before it left out"
    )
    assert calls < MAX_COUNTED + 50


@pytest.mark.parametrize(
    ("overlap", "unfinished", "expected"),
    [
        (Overlap.SKIP, (), SubmitFiring(T0 + HOUR)),
        (Overlap.SKIP, ("7",), SkipFiring(T0 + HOUR, "job 7 of an earlier time is not finished")),
        (Overlap.SKIP, ("7", "8"), SkipFiring(T0 + HOUR, "jobs 7, 8 of earlier times are not finished")),
        (Overlap.QUEUE, ("7",), SubmitFiring(T0 + HOUR)),
        (Overlap.REPLACE, ("7", "8"), SubmitFiring(T0 + HOUR, ("7", "8"))),
    ],
)
def test_an_unfinished_job_of_an_earlier_time(
    overlap: Overlap, unfinished: tuple[str, ...], expected: object
) -> None:
    assert next_firing(T0, T0 + HOUR, FiringTerms(overlap), every(HOUR), unfinished) == expected


def test_nothing_follows_after_the_end() -> None:
    terms = FiringTerms(until=T0 + 2 * HOUR)
    assert list(upcoming(T0, terms, every(HOUR))) == [T0 + HOUR, T0 + 2 * HOUR]
    assert next_firing(T0 + 2 * HOUR, T0 + 3 * HOUR, terms, every(HOUR), ()) is None


def test_times_that_end_by_themselves_end() -> None:
    assert list(upcoming(T0, FiringTerms(), at(1, 4))) == [T0 + HOUR, T0 + 4 * HOUR]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=60, unique=True),
    st.integers(0, 5000),
    st.integers(0, 5000),
)
def test_whatever_the_times_the_newest_is_found_and_the_others_are_counted(
    minutes: list[int], since: int, now: int
) -> None:
    times = [T0 + timedelta(minutes=minute) for minute in sorted(minutes)]
    begin, end = T0 + timedelta(minutes=since), T0 + timedelta(minutes=now)
    passed = [each for each in times if begin < each <= end]
    found = next_firing(begin, end, FiringTerms(missed=Missed.RUN_ONCE), among(times), ())
    count = len(passed) - 1
    words = "" if not count else f"{count} time{'s' if count > 1 else ''} before it left out"
    assert found == (SubmitFiring(passed[-1], (), words) if passed else None)
