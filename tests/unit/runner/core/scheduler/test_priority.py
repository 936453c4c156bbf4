"""Order of the queue."""

from dataclasses import replace
from typing import Unpack

import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.backfill import plan
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.ready import PendingIndex
from runner.core.scheduler.snapshot import (
    Dependency,
    DeviceState,
    EndedJob,
    PendingJob,
    ResourceRequest,
    Snapshot,
)
from tests.fakes.host.directories import (
    HOUR_S,
    NOW_S,
    More,
    devices,
    gpus,
    host,
    out,
    planned,
    running,
    starts,
    waiting,
)

DAY_S = 24 * HOUR_S
ONE = [host(1)]


def first(queue: list[PendingJob], rules: SchedulerConfig | None = None, **more: Unpack[More]) -> str:
    return planned(queue, ONE, rules=rules, **more).starts[0].job_id


def test_a_higher_class_goes_first() -> None:
    queue = [waiting("old", age_s=99), waiting("urgent", age_s=1, priority_class="urgent")]
    assert first(queue) == "urgent"


def test_who_has_used_less_goes_first() -> None:
    queue = [waiting("a", owner="ada", age_s=99), waiting("b", owner="bob", age_s=1)]
    assert first(queue, user_usage={"ada": 10.0, "bob": 5.0}) == "b"
    rules = SchedulerConfig(user_shares={"ada": 4.0})
    assert first(queue, rules, user_usage={"ada": 10.0, "bob": 5.0}) == "a"


def test_groups_are_compared_before_users() -> None:
    queue = [
        replace(waiting("a", owner="ada"), group="lab"),
        replace(waiting("b", owner="bob"), group="guests"),
    ]
    usage: More = {"user_usage": {"ada": 9.0, "bob": 1.0}, "group_usage": {"lab": 1.0, "guests": 2.0}}
    assert first(queue, **usage) == "a"


def test_an_owners_own_priority_decides_among_his_own_jobs_alone() -> None:
    mine = [waiting("low", priority=10, age_s=99), waiting("high", priority=90)]
    assert first(mine) == "high"
    others = [waiting("low", priority=10, age_s=99), waiting("high", owner="bob", priority=90)]
    assert first(others) == "low"


def test_age_decides_between_equals() -> None:
    assert first([waiting("new", age_s=1), waiting("old", age_s=9, owner="bob")]) == "old"


def test_what_starts_is_charged_at_once_so_that_owners_take_turns() -> None:
    queue = [waiting(f"a{i}", age_s=99 - i) for i in range(3)]
    queue += [waiting(f"b{i}", age_s=9 - i, owner="bob") for i in range(3)]
    assert list(starts(planned(queue))) == ["a0", "b0", "a1", "b1"]


def test_owners_take_turns_for_processors_too() -> None:
    needs = ResourceRequest(8)
    queue = [waiting(f"a{i}", needs, age_s=99 - i) for i in range(4)]
    queue += [waiting(f"b{i}", needs, age_s=9 - i, owner="bob") for i in range(4)]
    assert list(starts(planned(queue))) == ["a0", "b0", "a1", "b1"]


def test_an_owner_with_lines_in_two_classes_is_charged_for_both() -> None:
    queue = [waiting("u", priority_class="urgent", age_s=99), waiting("a", age_s=50)]
    queue += [waiting("b", owner="bob", age_s=1)]
    assert list(starts(planned(queue, [host(2)]))) == ["u", "b"]


def test_a_job_waiting_longer_than_its_bound_goes_before_all_others() -> None:
    late = waiting("late", priority_class="idle", age_s=14 * DAY_S + 1)
    assert first([late, waiting("urgent", priority_class="urgent")]) == "late"
    early = replace(late, submitted_s=late.submitted_s + 2)
    assert first([early, waiting("urgent", priority_class="urgent")]) == "urgent"


def test_the_bound_runs_from_the_moment_when_nothing_else_keeps_a_job() -> None:
    old = waiting("old", owner="eve", age_s=9 * DAY_S)
    other = waiting("other", owner="ada", priority=90)
    usage: More = {"user_usage": {"eve": 9.0}}
    held = replace(old, not_before_s=NOW_S - 60)
    after = replace(old, dependencies=(Dependency("x"),))
    assert first([old, other], **usage) == "old"
    assert first([held, other], **usage) == "other"
    usage["ended"] = {"x": EndedJob(Outcome.SUCCEEDED, NOW_S - 60)}
    assert first([after, other], **usage) == "other"


def test_only_the_oldest_few_jobs_of_an_owner_become_overdue_at_a_time() -> None:
    queue = [waiting(f"flood{i}", owner="eve", age_s=9 * DAY_S - i) for i in range(6)]
    queue += [waiting("other", owner="ada")]
    decided = planned(queue, [host(8)], user_usage={"eve": 9.0})
    assert list(starts(decided))[:5] == ["flood0", "flood1", "flood2", "flood3", "other"]


@pytest.mark.parametrize("kept", [False, True], ids=["of a list", "of a kept order"])
@pytest.mark.parametrize(
    ("stuck", "quota"),
    [(replace(gpus(1), models=("A100",)), None), (gpus(2), 1)],
    ids=["out of service", "more than the quota"],
)
def test_jobs_that_cannot_start_take_no_places_of_overdue_ones(
    stuck: ResourceRequest, quota: int | None, *, kept: bool
) -> None:
    broken = out(replace(devices(2)[1], model="A100"), DeviceState.QUARANTINED)
    rules = SchedulerConfig(quotas=Quotas(users={"eve": Quota(devices=quota)}))
    queue = [waiting(str(n), stuck, owner="eve", age_s=30 * DAY_S - n) for n in range(1, 9)]
    queue += [waiting("50", gpus(1), owner="eve", age_s=9 * DAY_S), waiting("60", gpus(1), priority=90)]
    index = PendingIndex()
    for job in queue:
        index.add(job)
    ready = index.view(NOW_S, rules.overdue_per_owner) if kept else None
    site = host(own=[*devices(2)[:1], broken] if quota is None else devices(2))
    usage = {"eve": 9.0}
    snapshot = Snapshot(NOW_S, (site,), tuple(queue), config=rules, user_usage=usage, ready=ready)
    assert plan(snapshot).starts[0].job_id == "50"


def test_a_class_that_the_site_has_given_up_is_the_middle_one() -> None:
    queue = [
        waiting("gone", priority_class="gone", age_s=1),
        waiting("idle", priority_class="idle", age_s=99),
    ]
    assert first(queue) == "gone"
    late = waiting("late", priority_class="gone", age_s=4 * DAY_S)
    assert first([late, waiting("urgent", priority_class="urgent")]) == "late"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (SchedulingOrder.FIFO, "old"),
        (SchedulingOrder.PRIORITY, "urgent"),
        (SchedulingOrder.SJF, "short"),
        (SchedulingOrder.FAIR, "urgent"),
    ],
)
def test_every_order_has_its_own_first(order: SchedulingOrder, expected: str) -> None:
    queue = [
        waiting("old", age_s=99),
        waiting("urgent", priority_class="urgent"),
        waiting("short", hours=0.1),
        waiting("endless", hours=None),
        waiting("strange", priority_class="gone"),
    ]
    assert first(queue, SchedulerConfig(order=order)) == expected


def test_the_running_count_as_used() -> None:
    queue = [waiting("b", owner="bob", age_s=99), waiting("a", owner="ada")]
    busy = [running("r", ["h-0"], owner="bob")]
    assert list(starts(planned(queue, [host(2)], busy))) == ["a"]


@pytest.mark.parametrize("order", SchedulingOrder)
def test_of_the_same_age_the_lower_number_goes_first(order: SchedulingOrder) -> None:
    queue = [waiting(job_id, hours=3) for job_id in ("10", "9", "11", "2")]
    decided = planned(queue, [host(3)], rules=SchedulerConfig(order=order))
    assert list(starts(decided)) == ["2", "9", "10"]
