"""What switching has cost, as it is observed."""

import pytest

from runner.control.switching import SwitchingCosts


def test_the_time_of_a_save_on_request_is_learned() -> None:
    costs = SwitchingCosts()
    costs.told["1"] = (100.0, 60.0)
    costs.left("1", 112.0, 2.0, 20.0)
    assert (costs.saves_s, costs.unsaving) == ({"1": 12.0}, set())
    assert costs.spent_s("1", 3, 20.0) == 3 * 32.0
    assert costs.spent_device_s(112.0, 1000.0) == pytest.approx(64.0, rel=0.1)
    spent = costs.spent_device_s(200.0, 1000.0)
    assert costs.spent_device_s(1200.0, 1000.0) == pytest.approx(spent / 2)


def test_a_job_that_lets_the_grace_period_pass_cannot_save() -> None:
    costs = SwitchingCosts()
    costs.told["1"] = (100.0, 60.0)
    costs.left("1", 160.0, 1.0, 20.0)
    assert costs.unsaving == {"1"}
    costs.forget("1")
    assert (costs.unsaving, costs.saves_s) == (set(), {})
