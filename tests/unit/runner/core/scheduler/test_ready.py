"""Plans made from queues that are kept in order equal those that sort all pending jobs themselves."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.job.states import Outcome
from runner.core.scheduler import backfill
from runner.core.scheduler.backfill import plan
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.ready import PendingIndex
from runner.core.scheduler.snapshot import (
    Dependency,
    EndedJob,
    Host,
    PendingJob,
    ResourceRequest,
    RunningJob,
    Snapshot,
)

NOW_S = 1_000_000.0
REQUESTS = [ResourceRequest(cpus=cpus) for cpus in (1.0, 2.0, 4.0, 9.0)]
OVERDUE_S = 30 * 86400.0

JOBS = st.lists(
    st.builds(
        PendingJob,
        job_id=st.just(""),
        owner=st.sampled_from(["ann", "bob"]),
        request=st.sampled_from(REQUESTS),
        submitted_s=st.sampled_from([NOW_S - OVERDUE_S, NOW_S - OVERDUE_S + 7, NOW_S - 50, NOW_S - 5, NOW_S]),
        group=st.sampled_from(["red", "blue"]),
        priority=st.sampled_from([10, 50]),
        not_before_s=st.sampled_from([None, None, NOW_S - 20, NOW_S, NOW_S + 20]),
        dependencies=st.sampled_from([(), (), (Dependency("900"),), (Dependency("901"),)]),
        time_limit_s=st.sampled_from([None, 60.0, 600.0]),
        ran_s=st.sampled_from([0.0, 0.0, 60.0, 9e5]),
        queued_s=st.sampled_from([None, NOW_S - 60, NOW_S - 5]),
    ),
    max_size=14,
).map(lambda jobs: [replace(job, job_id=str(number)) for number, job in enumerate(jobs, start=1)])


def site(jobs: list[PendingJob]) -> Snapshot:
    ended = {"900": EndedJob(Outcome.SUCCEEDED, NOW_S - 30)}
    return Snapshot(NOW_S, (Host("one", 4.0, 2**40),), tuple(jobs), ended=ended)


def indexed(jobs: list[PendingJob], removed: list[PendingJob] = []) -> PendingIndex:  # noqa: B006  never changed
    index = PendingIndex()
    for job in (*jobs, *removed):
        index.add(job)
        index.view(NOW_S - 20, 1)  # as earlier plans did
    for job in removed:
        index.remove(job)
    return index


@pytest.mark.parametrize("order", [SchedulingOrder.FAIR, SchedulingOrder.ATTAINED])
@given(jobs=JOBS, kept=st.integers(0, 14))
def test_a_plan_is_the_same_whoever_keeps_the_order(
    order: SchedulingOrder, jobs: list[PendingJob], kept: int
) -> None:
    rules = SchedulerConfig(order=order, cpu_weight=1.0)
    snapshot = replace(site(jobs[:kept]), config=rules)
    index = indexed(jobs[:kept], jobs[kept:])
    ready = index.view(NOW_S, SchedulerConfig().overdue_per_owner)
    one, other = plan(snapshot), plan(replace(snapshot, ready=ready))
    assert (one.starts, one.preemptions, one.reservations) == (
        other.starts,
        other.preemptions,
        other.reservations,
    )
    assert dict(one.pending_reasons) == dict(other.pending_reasons)


def test_a_view_says_when_the_next_job_may_start_and_does_not_change() -> None:
    jobs = [
        PendingJob(str(number), "ann", REQUESTS[0], NOW_S, not_before_s=not_before_s)
        for number, not_before_s in enumerate([None, NOW_S + 5, NOW_S + 9], start=1)
    ]
    index = indexed(jobs)
    before = index.view(NOW_S, 4)
    assert (before.next_s, [job.job_id for job in before.queues[0].jobs]) == (NOW_S + 5, ["1"])
    later = index.view(NOW_S + 5, 4)
    assert (later.next_s, [job.job_id for job in later.queues[0].jobs]) == (NOW_S + 9, ["2", "1"])
    for job in jobs:
        index.remove(job)
    assert [job.job_id for job in later.queues[0].jobs] == ["2", "1"]
    gone = index.view(NOW_S + 20, 4)
    assert (gone.queues, gone.requests, gone.next_s) == ((), (), inf)


def test_a_view_has_the_oldest_jobs_of_each_queue() -> None:
    jobs = [PendingJob(str(n), "ann", REQUESTS[0], NOW_S - n, priority=n) for n in range(1, 8)]
    [queue] = indexed(jobs).view(NOW_S, 2).queues
    assert [job.job_id for job in queue.oldest] == ["7", "6"]
    assert [job.job_id for job in queue.jobs] == ["1", "2", "3", "4", "5", "6", "7"]


def test_a_plan_looks_at_no_more_jobs_when_all_that_may_fit_are_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    considered: list[str] = []
    consider = backfill._Planner._consider

    def note(planner: backfill._Planner, job: PendingJob, *, overdue: bool) -> bool:
        considered.append(job.job_id)
        return consider(planner, job, overdue=overdue)

    monkeypatch.setattr(backfill._Planner, "_consider", note)
    large = [PendingJob(str(number), "ann", REQUESTS[2], NOW_S - 60) for number in range(1, 500)]
    jobs = [*large, PendingJob("900", "bob", REQUESTS[0], NOW_S)]
    ready = indexed(jobs).view(NOW_S, SchedulerConfig().overdue_per_owner)
    busy = RunningJob("999", "ann", REQUESTS[0], "one", (), NOW_S - 9)
    made = plan(replace(site(jobs), ready=ready, running=(busy,)))
    assert [start.job_id for start in made.starts] == ["900"]
    assert len(considered) <= 3
