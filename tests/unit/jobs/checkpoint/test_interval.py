"""Time of the next save, from its cost and the rate of interruptions by the host."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_job_runner import attach
from jobs.checkpoint.interval import LONGEST_S, REMEMBERED, SHORTEST_S, SaveSchedule, interval_s
from jobs.contract import CheckpointPlan

HALF_DAY = 12 * 3600.0


def _save_schedule(
    *stalls: float, mean_s: float | None = HALF_DAY, every_s: float | None = 120.0
) -> SaveSchedule:
    save_schedule = SaveSchedule(CheckpointPlan(every_s=every_s, mean_between_s=mean_s))
    for stall in stalls:
        save_schedule.stalled(stall)
    return save_schedule


@given(st.floats(0.001, 60), st.floats(1000, 1e6))
def test_a_script_of_its_own_comes_close_with_the_simpler_formula(save_s: float, mean_s: float) -> None:
    assert attach.interval_s(save_s, mean_s) == pytest.approx(interval_s(save_s, mean_s), rel=0.1)


def test_before_the_first_save_the_plan_counts() -> None:
    assert _save_schedule().every_s == 120


def test_what_a_save_costs_settles_it() -> None:
    assert _save_schedule(0.3).every_s == pytest.approx(math.sqrt(2 * 0.3 * HALF_DAY), rel=0.01)


def test_a_plan_that_says_a_time_means_it() -> None:
    assert _save_schedule(30.0, mean_s=None).every_s == 120


def test_a_plan_without_a_time_gets_none() -> None:
    assert _save_schedule(0.3, every_s=None).every_s is None


def test_one_slow_save_does_not_count_for_more_than_the_others() -> None:
    assert _save_schedule(9.0, 0.3, 0.3).every_s == _save_schedule(0.3).every_s


def test_old_saves_are_forgotten() -> None:
    assert _save_schedule(*[9.0] * 10, *[0.3] * REMEMBERED).every_s == _save_schedule(0.3).every_s


def test_saves_never_take_more_than_a_twentieth_of_the_time() -> None:
    assert _save_schedule(60.0, mean_s=600.0).every_s == 1200


def test_two_saves_never_overlap() -> None:
    save_schedule = _save_schedule(0.1, mean_s=3600.0)
    save_schedule.wrote(300)
    assert save_schedule.every_s == 300


def test_bounds_hold_whatever_was_measured() -> None:
    assert _save_schedule(0.0).every_s == SHORTEST_S
    assert _save_schedule(1.0, mean_s=1e9).every_s == LONGEST_S
