"""Daly's interval, beside the numbers that its paper prints."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.checkpoint.interval import LONGEST_S, SHORTEST_S, daly_s, interval_s
from runner.core.policy.economics import estimate_mtbf_s

MINUTE = 60.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("mean_min", "published_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)], ids=["24h", "6h", "15min"]
)
def test_the_optimum_is_that_of_the_paper_for_a_save_of_five_minutes(
    mean_min: float, published_min: float
) -> None:
    assert daly_s(5 * MINUTE, mean_min * MINUTE) / MINUTE == pytest.approx(published_min, rel=0.01)


def test_a_save_that_takes_longer_than_the_host_lasts_is_made_as_often_as_it_lasts() -> None:
    assert daly_s(200, 100) == 100


def lengthened(interval: float, save: float, mean: float) -> float:
    """Return the factor by which interruptions and saves lengthen computing (Daly 2006)."""
    return mean / interval * math.expm1((interval + save) / mean)


@given(st.floats(0.1, 60), st.floats(0.5, 48))
def test_no_other_interval_is_much_better_than_the_optimum(save_s: float, mean_h: float) -> None:
    mean, best = mean_h * HOUR, daly_s(save_s, mean_h * HOUR)
    cost = lengthened(best, save_s, mean)
    assert all(cost <= lengthened(best * other, save_s, mean) * (1 + 1e-4) for other in (0.5, 0.8, 1.25, 2.0))


def test_twice_or_half_the_optimum_costs_a_quarter_more_waste() -> None:
    save, mean = 0.3, 24 * HOUR
    best = daly_s(save, mean)
    waste = [lengthened(best * other, save, mean) - 1 for other in (1, 2, 0.5)]
    assert [each / waste[0] for each in waste[1:]] == pytest.approx([1.25, 1.25], abs=0.01)


@pytest.mark.parametrize(
    ("save_s", "mean_h", "wanted_s"),
    [(0.3, 24, 228), (0.3, 1, 46), (2.1, 24, 600), (20, 6, 600), (60, 6, 1200)],
)
def test_the_interval_stays_within_its_bounds(save_s: float, mean_h: float, wanted_s: float) -> None:
    assert interval_s(save_s, mean_h * HOUR) == pytest.approx(wanted_s, rel=0.01)


def test_two_saves_do_not_overlap() -> None:
    assert interval_s(0.1, HOUR, write_s=300) == 300


def test_saving_that_costs_nothing_is_still_not_done_all_the_time() -> None:
    assert interval_s(0, HOUR) == SHORTEST_S
    assert interval_s(0, HOUR) < LONGEST_S


@pytest.mark.parametrize(
    ("observed_h", "interruptions", "mean_h"), [(0, 0, 12), (100, 0, 112), (100, 7, 14), (0, 5, 2)]
)
def test_the_mean_between_interruptions_begins_with_a_guess(
    observed_h: float, interruptions: int, mean_h: float
) -> None:
    assert estimate_mtbf_s(observed_h * HOUR, interruptions) == pytest.approx(mean_h * HOUR)


def test_the_mean_is_finite_whatever_was_seen() -> None:
    assert math.isfinite(estimate_mtbf_s(0, 10**6))
