"""The learning rate is a function of the step alone."""

from itertools import pairwise

import pytest

from jobs.contract.plans.causal_lm import CausalLm
from jobs.training.lr_schedule import learning_rate


def rates(**changes: object) -> list[float]:
    plan = CausalLm.model_validate(
        {"kind": "causal_lm", "data": "text", "steps": 100, "learning_rate": 1.0, "warmup_steps": 20}
        | {"floor": 0.2}
        | changes
    )
    return [learning_rate(plan, step) for step in range(101)]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_warm_up_is_a_straight_line_to_the_peak(schedule: str) -> None:
    assert rates(schedule=schedule)[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert rates(schedule=schedule)[20] == pytest.approx(1.0)


def test_a_cosine_is_half_way_down_in_the_middle_and_flat_at_both_ends() -> None:
    found = rates()
    assert [found[60], found[100]] == pytest.approx([0.6, 0.2])
    assert found[20] - found[21] < (found[60] - found[61]) / 10
    assert found[99] - found[100] < (found[60] - found[61]) / 10


def test_a_line_loses_the_same_in_every_step() -> None:
    found = rates(schedule="linear")
    assert [found[40], found[100]] == pytest.approx([0.8, 0.2])
    drops = [before - after for before, after in pairwise(found[20:])]
    assert drops == pytest.approx([0.01] * 80)


def test_a_constant_rate_stays_at_the_peak() -> None:
    assert set(rates(schedule="constant")[20:]) == {1.0}


def test_without_a_warm_up_the_first_step_is_at_the_peak() -> None:
    assert rates(warmup_steps=0)[0] == pytest.approx(1.0)


def test_a_warm_up_as_long_as_the_training_ends_at_the_peak() -> None:
    assert rates(warmup_steps=100)[99] == pytest.approx(1.0)
