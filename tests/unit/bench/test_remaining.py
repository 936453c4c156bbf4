"""The orders by remaining time are compared on jobs of a published trace."""

import pytest

from bench import remaining
from runner.core.scheduler.simulator import Arrival, SimulatedJob
from runner.core.scheduler.snapshot import ResourceRequest


def test_every_order_is_played_with_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remaining, "HOSTS", ("1x4",))
    monkeypatch.setattr(remaining, "LOADS", (0.9,))
    trace = tuple(
        Arrival(
            str(n), f"vc{n % 2}", ResourceRequest(gpus=1 + n % 3), 9.0 * n, 60.0 * (1 + n * n), save_s=10.0
        )
        for n in range(30)
    )
    jobs = remaining.sample(trace, 20)
    assert {0.5 <= each.misjudged <= 1.5 for each in jobs} == {True}
    results = [remaining.play(cell) for cell in remaining.cells(jobs)]
    found = {each["order"]: each for each in results}
    assert tuple(found) == remaining.ORDERS
    assert {each["jobs"] for each in found.values()} == {20}
    assert found["fifo"]["preemptions"] == 0
    assert found["oracle"]["mean_completion_s"] <= found["fifo"]["mean_completion_s"]
    assert remaining.table(results).count("| 4 | 0.9 | `") == len(remaining.ORDERS)


def test_finish_times_are_fair_if_everybody_has_an_equal_part() -> None:
    def job(number: int, begins_s: float, ends_s: float) -> SimulatedJob:
        arrival = Arrival(str(number), "u", ResourceRequest(gpus=1), 0.0, 100.0)
        return SimulatedJob(arrival, ((begins_s, ends_s),), killed=False)

    assert list(remaining.finish_time_fairness([job(1, 0, 100), job(2, 0, 100)], 2)) == [1.0, 1.0]
    first, second = remaining.finish_time_fairness([job(1, 0, 100), job(2, 100, 200)], 1)
    assert first == pytest.approx(0.5)  # it had the device of both
    assert second == pytest.approx(200 / (100 * 1.5))
