"""The arithmetic as a person reads it, with the numbers of the demonstration."""

import pytest

from runner.core.job.attempt import ExpectedSpeedup
from runner.core.policy.catalog import validate_facts
from runner.core.policy.economics import ChangeCosts, Evaluations, Overheads, Rate, Risk, Work
from runner.core.policy.facts import DecisionPoint, Facts
from runner.services.rollout.cost_benefit import NO_TOTAL, NOT_BESIDE, TOO_UNSURE, CostBenefit, explain
from runner.services.rollout.verify import verify

COSTS = Overheads(stop_s=1.0, start_s=5.0)
SLOW, FAST = Rate(2.0, 0.0, 30), Rate(10.0, 0.0, 30)


def text(worth: CostBenefit) -> str:
    return "\n".join(explain(worth))


def test_late_in_the_first_epoch_with_nothing_saved_a_restart_is_best() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 168), COSTS), SLOW, FAST)
    assert worth.seconds("keep") == pytest.approx(116.0)
    assert worth.seconds("resume") is None
    assert worth.seconds("restart") == pytest.approx(46.0)
    assert worth.facts()["econ.restart_gain"] == pytest.approx(116 / 46)
    assert worth.facts()["econ.best"] == "restart"
    assert "econ.resume_gain" not in worth.facts()
    assert "keep       232 steps / 2 = 116.0 s" in text(worth)
    assert "restart    6.0 s + 400 steps / 10 = 46.0 s: gain 116.0 / 46.0 = 2.52" in text(worth)
    assert "resume     nothing is saved: it would be a restart" in text(worth)
    assert "best       restart: 5.00 times faster" in text(worth)


def test_late_in_the_last_epoch_going_on_is_best() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 368, 200), COSTS), SLOW, FAST)
    assert worth.facts()["econ.best"] == "keep"
    late = CostBenefit(ChangeCosts(Work(400, 399, 200), COSTS), SLOW, FAST)
    assert "and a restart cannot pay any more" in text(late)
    assert "resume     6.0 s + 200 steps / 10 = 26.0 s: gain 16.0 / 26.0 = 0.62" in text(worth)


def test_what_is_saved_on_demand_is_all_that_is_done() -> None:
    worth = CostBenefit(
        ChangeCosts(Work(400, 168, 0, on_demand=True), Overheads(stop_s=2, start_s=5)), SLOW, FAST
    )
    assert worth.seconds("resume") == pytest.approx(7 + 23.2)
    assert "saved when it is asked to stop" in text(worth)
    assert "resume     7.0 s + 232 steps / 10" in text(worth)


def test_bounds_speak_against_the_change_and_expectations_are_means() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 168), COSTS), Rate(2.0, 0.5, 25), Rate(10.0, 2.5, 25))
    assert worth.seconds("restart") == pytest.approx(6 + 400 / 9)
    assert worth.expected("restart") == pytest.approx(46.0)
    assert worth.expected("keep") == pytest.approx(116.0)
    assert "surely 1.8 to 2.2 (25 windows)" in text(worth)


def test_a_canary_beside_the_job_says_how_it_was_compared() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 168), COSTS), SLOW, FAST, slowed=2.0)
    assert "beside     the job was 2.00 times slower while its canary ran" in text(worth)
    assert "beside" not in text(CostBenefit(ChangeCosts(Work(400, 168), COSTS), SLOW, FAST))
    unknown = CostBenefit(ChangeCosts(Work(400, 168), COSTS), SLOW, FAST, slowed=None)
    assert f"beside     {NOT_BESIDE}" in text(unknown)


def test_interruptions_are_reckoned_with_where_they_are_known() -> None:
    often = CostBenefit(ChangeCosts(Work(400, 168), COSTS, Risk(600.0)), SLOW, FAST)
    assert "risk       one interruption in 10m is reckoned with; it saves nothing on its way" in text(often)
    kept = often.seconds("keep")
    assert kept is not None
    assert kept > 116.0
    saves = CostBenefit(ChangeCosts(Work(400, 168), COSTS, Risk(36_000.0, 60.0)), SLOW, FAST)
    assert "risk       one interruption in 10h is reckoned with; it saves every 1m" in text(saves)


@pytest.mark.parametrize(("now", "new"), [(None, FAST), (SLOW, None), (None, None)])
def test_what_is_not_measured_is_not_guessed(now: Rate | None, new: Rate | None) -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 168)), now, new)
    assert worth.facts() == {}
    assert worth.seconds("keep") is None
    assert worth.expected("keep") is None
    assert "not measured" in text(worth)
    assert "gain       unknown" in text(worth)


def test_work_without_a_known_end_is_not_divided_by() -> None:
    said = text(CostBenefit(ChangeCosts(Work(0, 7)), SLOW, FAST))
    assert "work       7 steps are done, 0 of them in a checkpoint; how many there are to be" in said


def test_steps_of_another_kind_are_not_held_against_each_other() -> None:
    worth = CostBenefit(
        ChangeCosts(Work(400, 168), COSTS), SLOW, FAST, other="with the change there are 60 steps"
    )
    assert worth.facts() == {}
    assert "work       168 of 400 steps are done (42 %)" in text(worth)
    assert "gain       unknown: with the change there are 60 steps" in text(worth)


def test_where_nothing_is_interrupted_nothing_has_to_be_measured_or_to_pay() -> None:
    said = explain(CostBenefit(ChangeCosts(Work(400, 168), COSTS), interrupts=False))
    assert said[1:] == ("cost       none: nothing is interrupted, so nothing has to pay",)


def test_a_job_that_stands_still_is_shown_with_the_start_that_it_needs() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 200, 200), COSTS, standing_s=5.0), SLOW, FAST)
    assert "keep       5.0 s + 200 steps / 2 = 105.0 s" in text(worth)
    assert "resume     5.0 s + 200 steps / 10 = 25.0 s" in text(worth)
    assert "it needs 5.0 s to start again, with the change or without" in text(worth)


def test_evaluations_are_shown_with_what_they_take() -> None:
    each = Evaluations(100, 30.0, 3.0, running_s=12.0)
    worth = CostBenefit(ChangeCosts(Work(400, 200, 200), COSTS, evaluations=each), SLOW, FAST)
    assert "evaluation every 100 steps: 30.0 s, with the change 3.0 s" in text(worth)
    assert (
        "keep       200 steps / 2 + 2 evaluations * 30.0 s + 12.0 s of the one that runs = 172.0 s"
        in text(worth)
    )
    assert "resume     6.0 s + 200 steps / 10 + 3 evaluations * 3.0 s = 35.0 s" in text(worth)


def test_a_change_of_unknown_gain_has_a_price_at_the_present_rate() -> None:
    worth = CostBenefit(ChangeCosts(Work(401, 400, 80), Overheads(start_s=1.0)), Rate(1.0, 0.0, 30))
    assert "price      start 1.0 s, 320 steps again: 5m21s for 1s of work" in text(worth)
    assert worth.facts() == {"econ.price_s": 321.0, "econ.price_share": 321.0}
    afresh = CostBenefit(ChangeCosts(Work(500, 400, 80)), Rate(1.0, 0.0, 30), afresh=True)
    assert "400 steps again: 6m40s for 1m40s of work" in text(afresh)


def test_what_a_time_limit_leaves_is_held_against_each_alternative() -> None:
    worth = CostBenefit(ChangeCosts(Work(400, 200, 200), COSTS), SLOW, FAST, left_s=60.0)
    assert "= 100.0 s; not within the 1m that its time limit leaves" in text(worth)
    assert worth.facts()["econ.keep_in_time"] is False
    assert worth.facts()["econ.resume_in_time"] is True


def test_what_fits_into_the_time_if_nothing_interrupts_it_is_not_late() -> None:
    """A job that saves nothing will be interrupted; started from step 0 it cannot end in time at all."""
    risk = Risk(mean_between_s=60.0)
    worth = CostBenefit(ChangeCosts(Work(400, 200), COSTS, risk), SLOW, Rate(3.0, 0.0, 30), left_s=110.0)
    assert worth.found is not None
    assert worth.found.best == "restart"
    assert worth.found.keep_s > 110.0
    assert (worth.facts()["econ.keep_in_time"], worth.facts()["econ.restart_in_time"]) == (True, False)


def test_where_going_on_is_surely_late_a_change_need_only_be_expected_in_time() -> None:
    unsure = Rate(5.0, 4.0, 25)
    work = ChangeCosts(Work(400, 200, 200), COSTS)
    late = CostBenefit(work, SLOW, unsure, left_s=60.0)
    assert late.in_time() == {"keep": False, "resume": True, "restart": False}
    enough = CostBenefit(work, SLOW, unsure, left_s=100.0)
    assert enough.in_time() == {"keep": True, "resume": True, "restart": False}


def pays(facts: Facts) -> bool:
    return float(facts.get("econ.resume_gain", 0)) >= 1.15  # type: ignore[arg-type]


def test_a_measurement_that_is_too_wide_asks_for_a_longer_one_with_its_price() -> None:
    wide = Rate(3.0, 7.5, 25)  # surely 0 to 6: twice the standard error is the mean
    worth = CostBenefit(ChangeCosts(Work(4000, 200, 200), COSTS), SLOW, wide)
    assert worth.found is None
    assert f"unknown: {TOO_UNSURE}" in text(worth)
    longer = worth.longer_canary(60, 900, pays)
    assert longer is not None
    assert longer.steps == 60 * 32
    assert longer.seconds == pytest.approx(5 + 60 * 32 / 3)
    assert worth.longer_canary(60, 100, pays) is None  # none that long is possible
    slower = CostBenefit(ChangeCosts(Work(4000, 200, 200), COSTS), SLOW, Rate(1.0, 0.5, 25))
    assert slower.longer_canary(60, 900, pays) is None
    sure = CostBenefit(ChangeCosts(Work(4000, 200, 200), COSTS), SLOW, FAST)
    assert sure.longer_canary(60, 900, pays) is None


def test_a_change_that_costs_nothing_says_so() -> None:
    assert "change     costs nothing" in text(CostBenefit(ChangeCosts(Work(400, 168)), SLOW, FAST))


def test_programs_get_the_same_numbers() -> None:
    told = CostBenefit(ChangeCosts(Work(400, 168), COSTS), SLOW, FAST).json()
    assert told["seconds"] == {"keep": 116.0, "resume": None, "restart": 46.0}
    assert told["rate_now"] == {"mean": 2.0, "low": 2.0, "high": 2.0, "windows": 30}
    assert validate_facts(told["facts"], DecisionPoint.CHANGE)  # type: ignore[arg-type]
    assert CostBenefit(ChangeCosts(Work(400, 168))).json()["rate_new"] is None


@pytest.mark.parametrize(
    ("work", "now", "new", "reason"),
    [
        (Work(0, 50), SLOW, FAST, NO_TOTAL),
        (Work(50, 60), SLOW, FAST, "no step is left of 50"),
        (Work(400, 5), None, FAST, "the job has reported too few steps for a rate"),
        (Work(400, 60), SLOW, None, "the change has not been measured"),
    ],
)
def test_what_is_missing_for_a_comparison_is_named(
    work: Work, now: Rate | None, new: Rate | None, reason: str
) -> None:
    assert f"gain       unknown: {reason}" in text(CostBenefit(ChangeCosts(work, COSTS), now, new))


@pytest.mark.parametrize(("per_s", "rolls_back"), [(1.0, True), (2.2, False)])
def test_a_change_that_misses_its_gain_goes_where_no_end_is_known_only_if_it_is_slower(
    per_s: float, *, rolls_back: bool
) -> None:
    found = verify(ExpectedSpeedup(1, 2.0, 3.0, 20.0), Rate(per_s, 0.0, 30), Work(0, 500, 400))
    assert found.roll_back is rolls_back
    assert "going back" not in found.text
