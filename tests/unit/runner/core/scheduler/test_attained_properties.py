"""Properties of the order by attained service, whatever arrives, costs and is killed.

Budget, quantum and work done are properties in ``test_attained``; here are those of the plan: nobody starves,
shares divide the machine, jobs of several devices and arrays stay whole, and a device has one holder.
"""

from collections import Counter
from dataclasses import replace
from math import inf, log

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.scheduler.backfill import Plan
from runner.core.scheduler.calendar import Calendar
from runner.core.scheduler.config import DEFAULT_CLASSES, SchedulerConfig, SchedulingOrder, SwitchingConfig
from runner.core.scheduler.displacement import switch_cost_s
from runner.core.scheduler.fairshare import FairShare, entitlements
from runner.core.scheduler.placement import Placements
from runner.core.scheduler.priority import EligibleJobs
from runner.core.scheduler.simulator import Arrival, Site, simulate
from runner.core.scheduler.snapshot import JobArray, Snapshot
from tests.fakes.host.directories import gpus, host
from tests.fakes.host.disk import examples

DEVICES = 4
BOUND_S = 7200.0
LEVEL_S = 600.0
BUDGET = 0.1
CLASSES = tuple(replace(each, starvation_limit_s=BOUND_S) for each in DEFAULT_CLASSES)
RULES = SchedulerConfig(
    order=SchedulingOrder.ATTAINED,
    classes=CLASSES,
    cpu_weight=0.0,
    switching=SwitchingConfig((LEVEL_S, 4 * LEVEL_S), BUDGET),
)
SITE = Site((host(DEVICES),), RULES, min_interval_s=1.0)
ARRAYS = (JobArray("a", 1), JobArray("b", 2))

arrivals = st.builds(
    Arrival,
    job_id=st.just(""),
    owner=st.sampled_from(["ada", "bob", "eve"]),
    request=st.sampled_from([gpus(1), gpus(1), gpus(2), gpus(4), gpus(2, linked=True)]),
    submitted_s=st.floats(0, 40_000),
    duration_s=st.floats(5, 60_000),
    time_limit_s=st.sampled_from([None, None, None, 30.0, 5_000.0]),  # some are killed at it
    priority_class=st.sampled_from(["normal", "normal", "normal", "idle", "urgent"]),
    array=st.sampled_from([None, None, None, *ARRAYS]),
    restart_s=st.floats(1, 30),
    saves=st.sampled_from([True, True, False]),
    save_s=st.floats(1, 30),
    checkpoint_every_s=st.sampled_from([None, 900.0]),
    progress=st.booleans(),
)
traces = st.lists(arrivals, min_size=2, max_size=25).map(
    lambda drafts: [replace(each, job_id=str(number)) for number, each in enumerate(drafts)]
)
PLENTY = settings(max_examples=examples(15))


@PLENTY
@given(traces)
def test_a_device_has_one_holder_and_jobs_of_several_devices_and_arrays_stay_whole(
    trace: list[Arrival],
) -> None:
    requests = {each.job_id: each.request for each in trace}
    arrays = {each.job_id: each.array for each in trace}

    def watch(snapshot: Snapshot, decided: Plan) -> None:
        held = [uuid for job in snapshot.running for uuid in job.devices]
        held += [uuid for start in decided.starts for uuid in start.devices]
        assert len(held) == len(set(held))
        assert all(len(start.devices) == requests[start.job_id].gpus for start in decided.starts)
        assert set(Counter(each.job_id for each in decided.preemptions).values()) <= {1}
        active = [*(job.job_id for job in snapshot.running), *(start.job_id for start in decided.starts)]
        of_arrays = Counter(array.id for each in active if (array := arrays[each]) is not None)
        assert all(of_arrays[array.id] <= (array.max_parallel or len(trace)) for array in ARRAYS)

    done = simulate(SITE, trace, watch)
    assert len(done) == len(trace)


@PLENTY
@given(traces)
def test_whoever_has_had_a_share_in_a_service_level_goes_after_others_and_displaces_none_of_them(
    trace: list[Arrival],
) -> None:
    rules = replace(RULES, half_life_s=120.0)  # a few minutes of devices are a share

    def watch(snapshot: Snapshot, decided: Plan) -> None:
        shares, running = FairShare.of(snapshot), {job.job_id: job for job in snapshot.running}
        eligible = EligibleJobs(snapshot, shares, lambda _: True)
        jobs = {job.job_id: job for job in snapshot.pending}
        for each in decided.preemptions:
            victim, job = running[each.job_id], jobs[each.for_job]
            if " of class " in each.why or victim.owner == job.owner:  # or preempted by a class
                continue
            standing = eligible.standing(job)
            had = snapshot.level_usage.get((job.group, job.owner), ())
            whole_s = entitlements(snapshot)[job.group, job.owner] * rules.half_life_s / log(2)
            assert sum(had[: int(standing) + 1]) <= whole_s
            assert not shares.has_had_share(job.owner, job.group, standing)
        order = [job for job in eligible if job.job_id not in {each.job_id for each in eligible.overdue}]
        by_class: dict[str, list[bool]] = {}
        for job in order:
            had_share = shares.has_had_share(job.owner, job.group, eligible.standing(job))
            by_class.setdefault(job.priority_class, []).append(had_share)
        assert all(found == sorted(found) for found in by_class.values())

    simulate(replace(SITE, config=rules), trace, watch)


def test_work_that_is_cut_into_short_jobs_gets_its_share_and_no_more() -> None:
    whole = Arrival("whole", "bob", gpus(1), 0.0, 40_000.0, restart_s=1.0, save_s=1.0)
    cut = [Arrival(f"cut{n}", "ada", gpus(1), 1.0, 500.0, restart_s=1.0, save_s=1.0) for n in range(400)]
    rules = replace(RULES, classes=DEFAULT_CLASSES)  # nobody is overdue

    def slowed(half_life_s: float) -> float:
        site = replace(SITE, hosts=(host(1),), config=replace(rules, half_life_s=half_life_s))
        done = {each.arrival.job_id: each for each in simulate(site, [whole, *cut])}
        return done["whole"].ended_s / whole.duration_s

    assert 1.6 < slowed(7200.0) < 2.4
    assert slowed(inf) > 4  # there the short jobs go first for as long as there are any


@PLENTY
@given(traces)
def test_devices_that_an_overdue_job_needs_go_to_nobody_behind_it(trace: list[Arrival]) -> None:
    def watch(snapshot: Snapshot, decided: Plan) -> None:
        jobs = EligibleJobs(snapshot, FairShare.of(snapshot), Placements(Calendar(snapshot)).can_start)
        overdue = {job.job_id for job in jobs.overdue}
        reserved = [each for each in decided.reservations if each.job_id in overdue]
        durations_s = {job.job_id: job.planned_duration_s(RULES) for job in snapshot.pending}
        for start in decided.starts:
            ends_s = snapshot.now_s + durations_s[start.job_id]
            in_the_way = [each for each in reserved if set(each.devices) & set(start.devices)]
            assert start.job_id in overdue or all(ends_s <= each.at_s for each in in_the_way)

    simulate(SITE, trace, watch)


@PLENTY
@given(traces)
def test_a_job_that_waits_longer_than_its_bound_starts_within_a_turn_of_each_other_job(
    trace: list[Arrival],
) -> None:
    """One owner, one class, jobs that can all save: nothing but the order decides."""
    alike = [
        replace(each, owner="ada", priority_class="normal", array=None, saves=True, time_limit_s=None)
        for each in trace
    ]
    turn_s = max(LEVEL_S, *((each.restart_s + (each.save_s or 0)) / BUDGET for each in alike)) + 61
    for each in simulate(SITE, alike):
        queued_s = (each.arrival.submitted_s, *(ends_s for _, ends_s in each.spans))
        waits_s = [begins_s - came_s for came_s, (begins_s, _) in zip(queued_s, each.spans, strict=False)]
        assert max(waits_s) <= BOUND_S + 2 * len(alike) * turn_s


@settings(max_examples=examples(10))
@given(traces, st.sampled_from(list(SchedulingOrder)))
def test_no_switch_costs_less_than_nothing(trace: list[Arrival], order: SchedulingOrder) -> None:
    hosts = (host(DEVICES, name="a"), host(2, name="b"), host(DEVICES, name="c"))
    site = replace(SITE, hosts=hosts, config=replace(RULES, order=order, default_duration_s=3600.0))

    def watch(snapshot: Snapshot, _plan: Plan) -> None:
        assert all(switch_cost_s(job, snapshot.now_s) >= 0 for job in snapshot.running)

    simulate(site, trace, watch)
