from dataclasses import replace
from itertools import pairwise

import pytest

from runner.core.scheduler.backfill import Plan
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.simulator import Arrival, SimulatedJob, Site, simulate
from runner.core.scheduler.simulator_report import make_report, max_min, slowdown
from runner.core.scheduler.snapshot import Dependency, Maintenance, Snapshot
from tests.fakes.host.directories import HOUR_S, gpus, host

SITE = Site((host(2),), SchedulerConfig(order=SchedulingOrder.FIFO))


def job(job_id: str, at_s: float, lasts_s: float, count: int = 1, owner: str = "ada") -> Arrival:
    return Arrival(job_id, owner, gpus(count), at_s, lasts_s, time_limit_s=lasts_s)


def spans(trace: list[Arrival], site: Site = SITE) -> dict[str, tuple[tuple[float, float], ...]]:
    return {each.arrival.job_id: each.spans for each in simulate(site, trace)}


def test_jobs_start_when_there_is_room_and_end_when_they_are_done() -> None:
    trace = [job("a", 0, 10, 2), job("b", 1, 5), job("c", 2, 7), job("d", 3, 1)]
    assert spans(trace) == {"a": ((0, 10),), "b": ((10, 15),), "d": ((15, 16),), "c": ((10, 17),)}


def test_a_job_ends_at_its_limit() -> None:
    (played,) = simulate(SITE, [replace(job("a", 0, 10), time_limit_s=4)])
    assert (played.ended_s, played.killed) == (4, True)


def test_dependent_jobs_wait_and_those_of_killed_jobs_never_start() -> None:
    after = (Dependency("a"),)
    trace = [job("a", 0, 10), replace(job("b", 0, 1), dependencies=after)]
    assert spans(trace)["b"] == ((10, 11),)
    trace[0] = replace(trace[0], time_limit_s=4)
    assert list(spans(trace)) == ["a"]


def test_after_a_maintenance_the_queue_moves_again() -> None:
    site = replace(SITE, maintenance=(Maintenance(0, 50, "fans"),))
    assert spans([job("a", 0, 10)], site) == {"a": ((50, 60),)}


def test_plans_are_a_tick_apart() -> None:
    site = replace(SITE, min_interval_s=30.0)
    moments: list[float] = []
    simulate(
        site, [job(str(i), i, 5) for i in range(40)], lambda snapshot, _plan: moments.append(snapshot.now_s)
    )
    assert all(later - sooner >= 30 for sooner, later in pairwise(moments))


def test_a_preempted_job_comes_back_and_does_the_rest_of_its_work() -> None:
    idle = replace(job("idle", 0, 9 * HOUR_S, 2), priority_class="idle")
    urgent = replace(job("urgent", HOUR_S, HOUR_S, 2, "eve"), priority_class="urgent")
    done = {each.arrival.job_id: each for each in simulate(Site((host(2),)), [idle, urgent])}
    assert list(done["urgent"].spans) == [(HOUR_S + 60, 2 * HOUR_S + 60)]
    assert list(done["idle"].spans) == [(0, HOUR_S + 60), (2 * HOUR_S + 60, 10 * HOUR_S)]
    assert done["idle"].killed


def test_a_preempted_job_without_a_limit_pays_for_its_restart_and_ends() -> None:
    idle = replace(job("idle", 0, 9 * HOUR_S, 2), priority_class="idle", time_limit_s=None)
    urgent = replace(job("urgent", HOUR_S, HOUR_S, 2, "eve"), priority_class="urgent")
    done = {each.arrival.job_id: each for each in simulate(Site((host(2),)), [idle, urgent])}
    assert (done["idle"].held_s, done["idle"].killed) == (9 * HOUR_S + 60, False)


def test_a_job_that_ends_while_it_is_asked_to_leave_has_ended() -> None:
    idle = replace(job("idle", 0, HOUR_S + 30, 2), priority_class="idle", time_limit_s=9 * HOUR_S)
    urgent = replace(job("urgent", HOUR_S, HOUR_S, 2, "eve"), priority_class="urgent")
    done = {each.arrival.job_id: each for each in simulate(Site((host(2),)), [idle, urgent])}
    assert list(done["idle"].spans) == [(0, HOUR_S + 30)]
    assert done["urgent"].started_s == HOUR_S + 30


def test_usage_decides_who_is_next() -> None:
    trace = [job("a", 0, 100, 2), job("a2", 1, 100, 2), job("b", 2, 100, 2, "bob")]
    assert spans(trace, Site((host(2),)))["b"] == ((100, 200),)


def test_the_usage_that_a_plan_sees_is_what_was_used() -> None:
    seen: list[float] = []

    def remember(snapshot: Snapshot, _decided: Plan) -> None:
        seen.append(snapshot.user_usage.get("ada", 0.0))

    simulate(SITE, [job("a", 0, 100, 2), job("b", 100, 1)], remember)
    assert seen == [0.0, pytest.approx(2.01 * 100, rel=1e-3)]


# --- reports


def test_a_report_counts_what_was() -> None:
    trace = [job("a", 0, 100, 2), job("b", 0, 100, 2, "bob"), job("never", 0, 1, 3)]
    found = make_report(SITE, simulate(SITE, trace), len(trace))
    assert (found.jobs, found.never_started, found.makespan_s, found.utilisation) == (2, 1, 200, 1.0)
    assert (found.mean_wait_s, dict(found.waits_s)) == (50, {50: 0, 90: 100, 95: 100, 99: 100, 100: 100})
    assert found.mean_slowdown == 1.5
    assert found.users["bob"].device_hours == pytest.approx(200 / 3600)
    assert (found.users["ada"].service, found.users["bob"].service) == (1.0, 0.5)
    assert [user.due for user in found.users.values()] == pytest.approx([1.0, 2 / 3], rel=1e-3)
    assert found.preemptions == 0


def test_short_jobs_do_not_make_slowdowns_explode() -> None:
    assert slowdown(SimulatedJob(job("a", 0, 1), ((9, 10),), killed=False)) == 1.0
    assert slowdown(SimulatedJob(job("a", 0, 1), ((99, 100),), killed=False)) == 10.0


def test_jobs_without_devices_are_due_none() -> None:
    found = make_report(SITE, simulate(SITE, [job("a", 0, 10, 0)]), 1)
    assert (found.users["ada"].due, found.users["ada"].service, found.utilisation) == (1.0, 1.0, 0.0)


def test_a_site_without_devices_uses_none() -> None:
    site = Site((host(own=()),))
    bare = replace(site, hosts=(replace(site.hosts[0], devices=()),))
    assert make_report(bare, simulate(bare, [job("a", 0, 10, 0)]), 1).utilisation == 0.0


def test_nothing_played_is_no_report() -> None:
    with pytest.raises(ValueError, match="no job started"):
        make_report(SITE, [], 3)


def test_devices_are_due_in_equal_parts_to_those_who_want_more() -> None:
    assert max_min({"a": 1, "b": 9, "c": 4}, 9) == {"a": 1, "c": 4, "b": 4}
    assert max_min({"a": 5, "b": 5}, 8) == {"a": 4.0, "b": 4.0}
    assert max_min({}, 8) == {}
