"""Choice of the job to preempt, and the gain that it needs."""

from dataclasses import replace

import pytest

from runner.core.scheduler.config import PreemptionConfig, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, RunningJob
from tests.fakes.host.directories import HOUR_S, NOW_S, gpus, host, planned, running, waiting

URGENT = waiting("urgent", gpus(2), priority_class="urgent", owner="eve")


def idle(job_id: str, *held: str, hours: float = 9.0) -> RunningJob:
    return running(job_id, held, priority_class="idle", hours=hours)


def victims(
    busy: list[RunningJob], rules: SchedulerConfig | None = None, job: PendingJob = URGENT
) -> list[str]:
    return [each.job_id for each in planned([job], busy=busy, rules=rules).preemptions]


ALL = ["h-0", "h-1", "h-2", "h-3"]
FULL = [idle("a", "h-0", "h-1"), idle("b", "h-2", "h-3")]


def test_an_urgent_job_takes_the_place_of_an_idle_one() -> None:
    decided = planned([URGENT], busy=FULL)
    (gone,) = decided.preemptions
    assert (gone.job_id, gone.for_job) == ("a", "urgent")
    assert gone.why.startswith("preempted for job urgent of class urgent, which would wait 8h59m longer: ")
    assert decided.reservations[0].at_s == NOW_S + 60
    wait = decided.pending_reasons["urgent"]
    assert wait.starts_s == NOW_S + 60
    assert wait.why.endswith("4 allocated, the next until about 17:47, 1 job making room; starts about 17:47")


def test_a_wait_for_a_job_whose_end_nobody_knows_is_not_told_as_a_time() -> None:
    (gone,) = planned([URGENT], busy=[replace(each, ends_s=None) for each in FULL]).preemptions
    assert gone.why.startswith("preempted for job urgent of class urgent, which would wait for job ")
    assert ", whose end is unknown: " in gone.why


def test_whoever_loses_least_gives_way() -> None:
    lossy = replace(FULL[0], saves_when_asked=False, checkpoint_s=NOW_S - 1800)
    assert victims([lossy, FULL[1]]) == ["b"]


def test_it_is_not_done_when_more_is_lost_than_won() -> None:
    lossy = replace(running("a", ALL, priority_class="idle", hours=2, ran_s=20 * HOUR_S),
                    saves_when_asked=False)  # fmt: skip
    assert victims([lossy]) == []
    assert victims([replace(lossy, checkpoint_s=NOW_S - 60)]) == ["a"]


def test_it_is_not_done_for_a_job_that_starts_soon_anyway() -> None:
    assert victims([idle("a", "h-0", "h-1", hours=0.01), FULL[1]]) == []


def test_nobody_superfluous_is_stopped() -> None:
    busy = [idle("a", "h-0"), idle("b", "h-1"), idle("c", "h-2", "h-3")]
    job = replace(URGENT, request=gpus(2))
    assert victims(busy, job=job) == ["a", "b"]
    assert victims(
        [replace(each, restart_s=5.0 if each.job_id != "c" else 9.0) for each in busy], job=job
    ) == ["a", "b"]
    dear = [
        replace(busy[0], restart_s=300.0),
        replace(busy[1], restart_s=400.0),
        replace(busy[2], restart_s=350.0),
    ]
    assert victims(dear, job=replace(URGENT, request=gpus(3))) == ["a", "c"]


@pytest.mark.parametrize(
    "protected",
    [
        replace(FULL[0], priority_class="normal"),
        replace(FULL[0], stopping=True),
        replace(FULL[0], started_s=NOW_S - 60),
        replace(FULL[0], preempted=3),
    ],
    ids=["class", "stopping", "young", "often enough"],
)
def test_some_jobs_are_let_be(protected: RunningJob) -> None:
    assert victims([protected, replace(FULL[1], priority_class="normal")]) == []


def test_a_normal_job_preempts_nobody() -> None:
    assert victims(FULL, job=replace(URGENT, priority_class="normal")) == []


@pytest.mark.parametrize("order", [SchedulingOrder.FIFO, SchedulingOrder.SJF])
def test_orders_without_classes_preempt_nobody(order: SchedulingOrder) -> None:
    assert victims(FULL, SchedulerConfig(order=order)) == []


def test_the_hurdle_is_the_sites() -> None:
    assert victims(FULL, SchedulerConfig(preemption=PreemptionConfig(min_gain=1e6))) == []


def test_jobs_on_other_devices_are_not_stopped_in_vain() -> None:
    job = replace(URGENT, request=ResourceRequest(1, 0, 2, avoid=frozenset({"h-0", "h-1"})))
    assert victims(FULL, job=job) == ["b"]


def test_processors_can_be_fought_for_too() -> None:
    hungry = replace(idle("a"), request=ResourceRequest(32))
    job = replace(URGENT, request=ResourceRequest(8))
    decided = planned([job], [host(0)], [hungry])
    assert [each.job_id for each in decided.preemptions] == ["a"]


def test_two_jobs_do_not_get_the_same_victim() -> None:
    late = [replace(URGENT, job_id=str(i), submitted_s=NOW_S - 2 * 86400 + i) for i in range(3)]
    decided = planned(late, busy=FULL)
    assert sorted(each.job_id for each in decided.preemptions) == ["a", "b"]
    assert [each.at_s - NOW_S for each in decided.reservations] == [60, 60, 60 + HOUR_S]
