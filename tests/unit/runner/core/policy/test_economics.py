"""The arithmetic of docs/reference/policy.md, with its published and worked examples."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.policy.catalog import validate_facts
from runner.core.policy.economics import (
    Alternatives,
    ChangeCosts,
    Evaluations,
    Overheads,
    Rate,
    Risk,
    Work,
    break_even_speedup,
    compare_alternatives,
    expected_unsaved_s,
    interruption_factor,
    misses_expectation,
    price_s,
    undisturbed_s,
)
from runner.core.policy.facts import DecisionPoint

HOUR = 3600.0
COSTS = Overheads(stop_s=2, start_s=18)


def exactly(rate: float) -> Rate:
    return Rate(rate, 0.0, 100)


def gains(share: float, faster: float, *, saved: float = 0.0) -> Alternatives:
    """Return the alternatives of a job of 1,000 items at one item a second, without overheads."""
    found = compare_alternatives(
        ChangeCosts(Work(1000, 1000 * share, 1000 * saved)), exactly(1), exactly(faster)
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("share", "faster", "saves"),
    [(0.084, 5, 0.78), (0.084, 7, 0.84), (0.42, 5, 0.66), (0.42, 7, 0.75), (0.84, 5, -0.25), (0.84, 7, 0.11)],
)
def test_a_restart_saves_what_the_table_on_the_page_says(share: float, faster: float, saves: float) -> None:
    found = gains(share, faster)
    assert 1 - found.restart_s / found.keep_s == pytest.approx(saves, abs=0.006)
    assert found.best == ("restart" if saves > 0 else "keep")


@pytest.mark.parametrize(("faster", "saves"), [(5, 0.80), (7, 0.86)])
def test_with_a_checkpoint_resuming_beats_both(faster: float, saves: float) -> None:
    found = gains(0.84, faster, saved=0.84)
    assert found.resume_s is not None
    assert 1 - found.resume_s / found.keep_s == pytest.approx(saves, abs=0.005)
    assert found.best == "resume"


@pytest.mark.parametrize(("share", "needed"), [(0.084, 1.09), (0.42, 1.72), (0.84, 6.25)])
def test_the_speed_up_at_which_a_restart_breaks_even(share: float, needed: float) -> None:
    assert break_even_speedup(Work(1, share), 1) == pytest.approx(needed, abs=0.005)
    assert break_even_speedup(Work(1, share), 1) == pytest.approx(1 / (1 - share))


def test_overheads_raise_it_until_nothing_is_fast_enough() -> None:
    assert break_even_speedup(Work(1000, 500), 1, 100) == pytest.approx(2.5)
    assert break_even_speedup(Work(1000, 500), 1, 500) == math.inf


def test_where_nothing_is_saved_there_is_nothing_to_resume() -> None:
    found = gains(0.5, 10)
    assert (found.resume_s, found.resume_gain) == (None, None)
    assert found.facts() == {
        "econ.best": "restart",
        "econ.restart_gain": 5.0,
        "econ.restart_saves_s": 400.0,
    }


def test_every_overhead_is_in_the_time_that_it_belongs_to() -> None:
    work = Work(1000, 500, 400)
    found = compare_alternatives(ChangeCosts(work, COSTS), exactly(1), exactly(2))
    assert found == Alternatives(500, 2 + 18 + 300, 2 + 18 + 500)
    asked = compare_alternatives(
        ChangeCosts(Work(1000, 500, 400, on_demand=True), COSTS), exactly(1), exactly(2)
    )
    assert asked == Alternatives(500, 2 + 18 + 250, 520)


@given(st.floats(1, 900), st.floats(1, 10))
def test_resuming_beats_restarting_by_what_is_saved(saved: float, faster: float) -> None:
    found = compare_alternatives(ChangeCosts(Work(1000, 950, saved), COSTS), exactly(1), exactly(faster))
    assert found is not None
    assert found.resume_s is not None
    assert found.restart_s - found.resume_s == pytest.approx(saved / faster)


def test_the_start_that_a_job_that_stands_still_needs_is_on_both_sides() -> None:
    work = Work(1000, 500, 500, on_demand=True)
    stands = ChangeCosts(work, Overheads(stop_s=2, start_s=60), standing_s=50.0)
    found = compare_alternatives(stands, exactly(1), exactly(1.2))
    assert found == Alternatives(50 + 500, 60 + 500 / 1.2, 60 + 1000 / 1.2)
    assert found.best == "resume"
    runs = compare_alternatives(replace(stands, standing_s=None), exactly(1), exactly(1.2))
    assert runs is not None
    assert runs.keep_s == 500


def test_evaluations_are_work_and_so_is_the_rest_of_the_one_that_runs() -> None:
    told = Evaluations(every=100, now_s=2700, new_s=340, running_s=500)
    work = Work(200, 100, 100)
    found = compare_alternatives(ChangeCosts(work, evaluations=told), exactly(0.1), exactly(0.1))
    assert found is not None
    assert found.keep_s == pytest.approx(500 + 1000 + 2700)
    assert found.resume_s == pytest.approx(340 + 1000 + 340)  # the one that ran begins anew
    assert found.restart_s == pytest.approx(2000 + 2 * 340)
    before = compare_alternatives(
        ChangeCosts(Work(200, 100, 50), evaluations=told), exactly(0.1), exactly(0.1)
    )
    assert before is not None
    assert before.resume_s == pytest.approx(1500 + 2 * 340)


@pytest.mark.parametrize(
    ("step", "total", "count"),
    [(0, 100, 4), (25, 100, 3), (99, 100, 1), (100, 100, 0), (0, 90, 4), (80, 90, 1)],
)
def test_evaluations_come_after_every_so_many_steps_and_at_the_end(step: int, total: int, count: int) -> None:
    assert Evaluations(every=25).after(step, total) == count
    assert Evaluations().after(step, total) == 0


def test_the_last_evaluation_is_work_when_all_steps_are_done() -> None:
    runs = Evaluations(every=100, now_s=600, new_s=60, running_s=400)
    found = compare_alternatives(ChangeCosts(Work(100, 100, 100), evaluations=runs), exactly(1), exactly(1))
    assert found is not None
    assert (found.keep_s, found.resume_s, found.best) == (400, 60, "resume")


def test_the_price_of_a_change_is_its_stop_its_start_and_what_is_computed_again() -> None:
    case = ChangeCosts(Work(1001, 1000, 690), Overheads(stop_s=1, start_s=10))
    assert price_s(case, exactly(1), "resume") == pytest.approx(321)
    assert price_s(case, exactly(1), "restart") == pytest.approx(1011)
    assert price_s(case, exactly(1), "keep") == 0
    assert price_s(ChangeCosts(Work(1000, 500)), exactly(1), "resume") is None


def test_without_interruptions_an_alternative_takes_no_more_than_its_work() -> None:
    case = ChangeCosts(Work(100, 50), Overheads(start_s=10), Risk(mean_between_s=60))
    assert undisturbed_s(case, exactly(1), exactly(2)) == {"keep": 50, "restart": 60}
    assert undisturbed_s(case, exactly(1), None) == {}


@pytest.mark.parametrize(
    ("now", "new", "done"),
    [
        (None, Rate(1, 0, 100), 0),
        (Rate(1, 0, 100), None, 0),
        (Rate(1, 0, 100), Rate(1, 50, 20), 0),
        (Rate(1, 0, 100), Rate(1, 0, 100), 1000),
    ],
)
def test_what_is_not_known_has_no_gain(now: Rate | None, new: Rate | None, done: float) -> None:
    assert compare_alternatives(ChangeCosts(Work(1000, done)), now, new) is None


def test_what_comes_out_is_what_a_policy_may_ask() -> None:
    facts = gains(0.5, 4, saved=0.4).facts()
    assert validate_facts(facts, DecisionPoint.CHANGE) == facts


# --- Rates


def test_a_lower_bound_is_never_negative() -> None:
    assert Rate(1, 100, 20).low == 0


def test_a_rate_has_bounds_of_two_standard_errors() -> None:
    assert (Rate(10, 4, 64).low, Rate(10, 4, 64).high) == (9, 11)


def test_a_gain_is_taken_at_the_bounds_that_speak_against_the_change() -> None:
    sure, unsure = Rate(2, 0, 100), Rate(2, 2, 100)
    certain = compare_alternatives(ChangeCosts(Work(1000, 500, 500)), exactly(1), sure)
    vague = compare_alternatives(ChangeCosts(Work(1000, 500, 500)), Rate(1, 1, 100), unsure)
    assert certain is not None
    assert vague is not None
    assert certain.resume_gain == pytest.approx(2)
    assert vague.resume_gain == pytest.approx(1.6 / 1.2)

    # --- Trials


def test_less_than_half_of_what_was_promised_is_a_disappointment() -> None:
    assert misses_expectation(2.0, 1.4)
    assert not misses_expectation(2.0, 1.6)
    assert not misses_expectation(0.52, 0.1)  # nobody promised a gain


# --- Interruptions


def test_inflation_is_what_the_approximation_says_when_interruptions_are_rare() -> None:
    interval, mean, recovery = 300.0, 24 * HOUR, 60.0
    about = 1 + (interval / 2 + recovery) / mean
    assert interruption_factor(interval, mean, recovery) == pytest.approx(about, rel=1e-4)


def test_without_checkpoints_three_times_the_mean_takes_nineteen() -> None:
    assert expected_unsaved_s(3, 1, 0) == pytest.approx(19.1, abs=0.02)


def test_a_hopeless_job_takes_very_long_and_not_too_long_for_a_float() -> None:
    assert math.isfinite(expected_unsaved_s(1e12, 1, 0))
    assert math.isfinite(interruption_factor(1e9, 1, 1e9))


def test_a_risk_makes_a_job_that_saves_nothing_worth_restarting_with_less_to_do() -> None:
    work = Work(1000, 500, 0)
    calm = compare_alternatives(ChangeCosts(work, COSTS), exactly(1), exactly(2))
    stormy = compare_alternatives(ChangeCosts(work, COSTS, Risk(mean_between_s=500)), exactly(1), exactly(2))
    assert calm is not None
    assert stormy is not None
    assert calm.keep_s < calm.restart_s
    assert stormy.keep_s > stormy.restart_s  # going on stands to lose all; half the time is half the risk


def test_a_stop_that_saves_is_no_gain_of_a_slower_change() -> None:
    """The save would be worth a stop; the change is not, and does not get what the save brings."""
    work = Work(1000, 900, 0, on_demand=True)
    found = compare_alternatives(ChangeCosts(work, COSTS, Risk(mean_between_s=500)), exactly(1), exactly(0.7))
    assert found is not None
    assert found.best == "keep"
    assert found.resume_gain is not None
    assert found.resume_gain < 1


def test_going_on_and_beginning_again_cost_the_same_when_nothing_is_done() -> None:
    found = compare_alternatives(
        ChangeCosts(Work(1000, 0), Overheads(), Risk(mean_between_s=300)), exactly(1), exactly(1)
    )
    assert found is not None
    assert found.keep_s == pytest.approx(found.restart_s)


def test_with_checkpoints_all_alternatives_are_inflated_alike() -> None:
    risk = Risk(mean_between_s=10 * HOUR, interval_s=600)
    plain = compare_alternatives(ChangeCosts(Work(1e6, 5e5, 5e5)), exactly(1), exactly(2))
    risky = compare_alternatives(ChangeCosts(Work(1e6, 5e5, 5e5), Overheads(), risk), exactly(1), exactly(2))
    assert plain is not None
    assert risky is not None
    assert risky.keep_s / plain.keep_s == pytest.approx(risky.restart_s / plain.restart_s)
    assert risky.keep_s > plain.keep_s
