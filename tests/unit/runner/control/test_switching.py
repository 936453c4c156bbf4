"""Observed cost of switching."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from runner.base.instant import Instant
from runner.control.switching import SwitchingCosts
from runner.core.job.model import Job
from runner.core.job.states import Preparing
from runner.core.ports.store import DecisionRow, SwitchRecord

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_time_of_a_save_on_request_is_learned() -> None:
    costs = SwitchingCosts()
    costs.told["1"] = 100.0
    costs.left("1", 112.0, 2.0, 20.0, 1000.0)
    assert costs.saves_s == {"1": 12.0}
    assert costs.spent_s("1", 3, 20.0) == 3 * 32.0
    assert costs.spent_device_s(112.0, 1000.0) == pytest.approx(64.0, rel=0.1)
    spent = costs.spent_device_s(200.0, 1000.0)
    assert costs.spent_device_s(1200.0, 1000.0) == pytest.approx(spent / 2)


def test_what_switches_have_cost_before_is_known_to_the_next_daemon() -> None:
    costs, hour = SwitchingCosts(), timedelta(hours=1)
    past = [
        SwitchRecord(2, 10.0, NOW - hour - timedelta(seconds=40), NOW - hour),
        SwitchRecord(1, 0, NOW, NOW - hour),
    ]
    costs.load(past, Instant(NOW, 500.0), 0.1, 3600.0)
    assert costs.spent_device_s(500.0, 3600.0) == pytest.approx((3 * 100 + 60) / 2)
    assert costs.spent_device_s(4100.0, 3600.0) == pytest.approx((3 * 100 + 60) / 4)


def decided(killed_by: str, *, charged: bool, moment: str = "exit") -> DecisionRow:
    body = {"facts": {"killed_by": killed_by}, "verdict": {"charged": charged}}
    return DecisionRow("1", 1, moment, NOW, json.dumps(body))


@pytest.mark.parametrize(
    ("decision", "cannot"),
    [
        (decided("preemption", charged=True), {"1"}),
        (decided("preemption", charged=False), set()),
        (decided("nobody", charged=True), set()),
        (decided("preemption", charged=True, moment="watch"), set()),
    ],
)
def test_a_job_that_was_charged_for_giving_way_cannot_save(decision: DecisionRow, cannot: set[str]) -> None:
    costs, asked = SwitchingCosts(), []

    def decisions(job_id: str) -> tuple[DecisionRow, ...]:
        asked.append(job_id)
        return (decision,)

    for preempted in (0, 1, 1, 2):
        costs.look(Job("1", Preparing(NOW), preempted=preempted), decisions)
    assert asked == ["1", "1"]  # once for each switch
    assert costs.unsaving == cannot
    costs.forget("1")
    assert (costs.unsaving, costs.looked) == (set(), {})
