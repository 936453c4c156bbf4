from math import inf

from hypothesis import given
from hypothesis import strategies as st

from runner.core.scheduler.timeline import Span, Timeline

TIMES = st.integers(0, 12).map(float)
BOOKINGS = st.lists(st.tuples(TIMES, st.integers(1, 6), st.integers(-2, 3)), max_size=6)


def booked(bookings: list[tuple[float, int, int]]) -> tuple[Timeline, list[int]]:
    """Return a timeline, and the same as one amount for each second."""
    line, seconds = Timeline(0.0, 4), [4] * 40
    for begins_s, lasts_s, amount in bookings:
        line.take(begins_s, begins_s + lasts_s, amount)
        for second in range(int(begins_s), int(begins_s) + lasts_s):
            seconds[second] -= amount
    return line, seconds


@given(BOOKINGS, TIMES, st.integers(1, 8))
def test_the_least_amount_is_that_of_the_worst_second(
    bookings: list[tuple[float, int, int]], at_s: float, lasts_s: int
) -> None:
    line, seconds = booked(bookings)
    assert line.min_free(at_s, at_s + lasts_s) == min(seconds[int(at_s) : int(at_s) + lasts_s])


@given(BOOKINGS, TIMES, st.integers(0, 8), st.integers(0, 5))
def test_the_opening_is_the_first_second_from_which_enough_stays_free(
    bookings: list[tuple[float, int, int]], at_s: float, lasts_s: int, amount: int
) -> None:
    line, seconds = booked(bookings)
    fits = (second for second in range(int(at_s), 25)
            if min(seconds[second : second + max(lasts_s, 1)]) >= amount)  # fmt: skip
    assert line.earliest(at_s, Span(lasts_s), amount) == next(fits, inf)


@given(BOOKINGS, TIMES, st.integers(0, 5), st.lists(st.integers(0, 30).map(float), max_size=3))
def test_a_stay_with_stops_lasts_until_the_next_of_them(
    bookings: list[tuple[float, int, int]], at_s: float, amount: int, stops: list[float]
) -> None:
    line, seconds = booked(bookings)
    stay = Span(4.0, (*sorted(stops), inf))

    def fits(second: int) -> bool:
        ends_s = min((stop for stop in stops if stop > second + 4), default=len(seconds))
        return stay.end_s(second) >= ends_s and min(seconds[second : int(ends_s)]) >= amount

    assert line.earliest(at_s, stay, amount) == next((i for i in range(int(at_s), 25) if fits(i)), inf)


@given(BOOKINGS)
def test_what_is_given_back_is_as_if_it_had_never_been_taken(bookings: list[tuple[float, int, int]]) -> None:
    line, _ = booked(bookings)
    twin = line.copy()
    twin.take(3.0, inf, 2)
    twin.take(3.0, inf, -2)
    assert all(
        line.min_free(second, second) == twin.min_free(second, second) for second in map(float, range(20))
    )


def test_what_is_taken_for_ever_never_opens_again() -> None:
    line = Timeline(0.0, 1)
    line.take(5.0, inf, 1)
    assert line.earliest(0.0, Span(5.0), 1) == 0.0
    assert line.earliest(0.0, Span(6.0), 1) == inf
    assert line.min_free(0.0, inf) == 0
