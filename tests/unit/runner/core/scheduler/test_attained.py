"""The order by attained service: its first job, preemption, and what that may cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.scheduler.attained import (
    learned_levels,
    next_rise_s,
    pending_standing,
    running_standing,
    service_level,
)
from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.calendar import expected_end
from runner.core.scheduler.config import PriorityClass, SchedulerConfig, SchedulingOrder, SwitchingConfig
from runner.core.scheduler.displacement import (
    StayReason,
    describe_turn,
    next_change_s,
    stay_reason,
    switch_cost_s,
)
from runner.core.scheduler.fairshare import billed_devices, charge_usage, entitlements
from runner.core.scheduler.level_usage import Holding, LevelUsage
from runner.core.scheduler.simulator import Arrival, SimulatedJob, Site, simulate
from runner.core.scheduler.simulator_report import make_report, slowdown
from runner.core.scheduler.snapshot import EstimateSource, PendingJob, RunningJob, Snapshot
from tests.fakes.host.directories import HOUR_S, NOW_S, gpus, host, planned, running, starts, waiting
from tests.fakes.host.disk import examples

RULES = SchedulerConfig(order=SchedulingOrder.ATTAINED, cpu_weight=0.0)
LEVELS = RULES.switching.levels_device_s
ONE = [host(1)]


def long(job_id: str = "long", *held: str, owner: str = "ada", ran_s: float = 9 * HOUR_S) -> RunningJob:
    """Return a job that has run for hours, of unknown duration, and that can save."""
    job = running(job_id, held or ("h-0",), owner=owner, hours=None, ran_s=ran_s)
    return replace(job, save_s=10.0, restart_s=20.0)


def short(job_id: str = "short", *, owner: str = "ada", count: int = 1) -> PendingJob:
    return waiting(job_id, gpus(count), owner=owner, hours=None)


def victims(queue: list[PendingJob], busy: list[RunningJob], rules: SchedulerConfig = RULES) -> list[str]:
    hosts = [host(sum(len(each.devices) for each in busy))]
    return [each.job_id for each in planned(queue, hosts, busy=busy, rules=rules).preemptions]


# --- levels


def test_a_job_rises_as_it_holds_devices() -> None:
    assert [service_level(each, RULES) for each in (0.0, LEVELS[0] - 1, LEVELS[0], inf)] == [
        0,
        0,
        1,
        len(LEVELS),
    ]
    two = replace(long(ran_s=0.0), request=gpus(2), ran_s=LEVELS[0] / 2 - 5)
    assert next_rise_s(two, NOW_S, RULES) == pytest.approx(5.0)
    assert running_standing(two, inf, NOW_S, RULES) == 0
    assert running_standing(two, inf, NOW_S + 5, RULES) == 1
    assert next_rise_s(long(ran_s=99 * 24 * HOUR_S), NOW_S, RULES) is None


def test_an_overdue_job_is_new_again_until_it_has_held_devices_as_long_as_a_new_one_may() -> None:
    limit_s = RULES.priority_class("normal").starvation_limit_s
    had = replace(short(), ran_s=99 * HOUR_S)
    assert pending_standing(had, RULES) > pending_standing(had, RULES, promoted=True) == 0
    waited = replace(long(ran_s=60.0), ran_s=99 * HOUR_S, queued_s=NOW_S - 61 - limit_s)
    assert running_standing(waited, inf, NOW_S, RULES) == 0
    assert running_standing(replace(waited, queued_s=NOW_S - 61), inf, NOW_S, RULES) > 0
    young = replace(short("young"), submitted_s=NOW_S - 5)
    queue = [young, replace(had, submitted_s=NOW_S - 9e6, queued_s=NOW_S - limit_s - 1)]
    assert list(starts(planned(queue, ONE, rules=RULES))) == ["short"]
    queue[1] = replace(queue[1], queued_s=NOW_S - 9)
    assert list(starts(planned(queue, ONE, rules=RULES))) == ["young"]


def test_the_job_with_the_least_service_goes_first_and_the_owners_priority_before_that() -> None:
    had = replace(short("had"), submitted_s=NOW_S - 900, ran_s=LEVELS[0])
    assert list(starts(planned([had, short("new")], ONE, rules=RULES))) == ["new"]
    assert list(starts(planned([replace(had, priority=60), short("new")], ONE, rules=RULES))) == ["had"]


def test_the_limits_of_the_levels_are_learned_from_what_earlier_jobs_held() -> None:
    assert learned_levels([HOUR_S] * 99) is None
    assert learned_levels([2.5 * HOUR_S] * 100) == (2.5 * HOUR_S, 15 * HOUR_S, 120 * HOUR_S)  # no turns
    assert learned_levels([60.0] * 900 + [40 * HOUR_S] * 100) == (6720.0, 6 * 6720.0, 48 * 6720.0)
    assert learned_levels([60.0] * 990 + [HOUR_S] * 10) == (600.0, HOUR_S, 8 * HOUR_S)
    first, *_ = learned_levels([float(each) for each in range(10_000)]) or ()
    assert first == 60 * ceil(2000 / 60)  # a fifth of the jobs end below it


# --- by remaining time


def known(job: RunningJob, remaining_s: float) -> RunningJob:
    return replace(job, ends_s=NOW_S + remaining_s, ends_by=EstimateSource.PROGRESS)


def left(job: PendingJob, remaining_s: float) -> PendingJob:
    return replace(job, ran_s=9 * HOUR_S, estimated_s=remaining_s, estimated_by=EstimateSource.PROGRESS)


def test_a_remaining_time_that_is_known_takes_the_place_of_the_service() -> None:
    first, _, last = LEVELS
    times_s = (0.0, first / 8, first / 2, first, last - 1, last, 8 * last, inf)
    standings = [pending_standing(left(short(), each), RULES) for each in times_s]
    assert standings == [0, 0, 0.5, 1, 2.75, 3, 3.75, 3.75]
    assert running_standing(known(long(), first), NOW_S + first, NOW_S, RULES) == 1
    assert next_rise_s(known(long(ran_s=0.0), first), NOW_S, RULES) is None
    assert pending_standing(replace(left(short(), last), time_limit_s=last), RULES) == 3  # of its service
    none = replace(RULES, switching=replace(RULES.switching, levels_device_s=()))
    assert pending_standing(left(short(), last), none) == 0


def test_a_job_that_ends_soon_is_let_be_and_takes_the_place_of_one_that_does_not() -> None:
    assert victims([short()], [known(long(), 9 * HOUR_S)]) == ["long"]
    assert victims([short()], [known(long(), LEVELS[0] / 8)]) == []
    assert victims([left(short(), HOUR_S)], [known(long(), 9 * HOUR_S)]) == ["long"]
    assert victims([left(short(), 9 * HOUR_S)], [known(long(), HOUR_S)]) == []
    told = describe_turn(known(long(), LEVELS[0] / 2), NOW_S, RULES)
    assert told == "in service level 0.5 by its remaining time, may be preempted for jobs of a lower one"


def test_a_long_job_that_has_waited_for_too_long_is_in_the_lowest_level_whatever_is_known() -> None:
    limit_s = RULES.priority_class("normal").starvation_limit_s
    waited = replace(known(long(ran_s=60.0), 99 * HOUR_S), queued_s=NOW_S - 61 - limit_s)
    assert running_standing(waited, NOW_S + 99 * HOUR_S, NOW_S, RULES) == 0
    assert pending_standing(left(short(), 99 * HOUR_S), RULES, promoted=True) == 0


def test_jobs_whose_steps_are_known_end_sooner_though_the_estimates_are_wrong() -> None:
    jobs = tuple(
        Arrival(str(n), "ada", gpus(1), 60.0 * n, 600.0 * (1 + 30 * (n % 3)), save_s=10.0, restart_s=20.0)
        for n in range(60)
    )
    wrong = tuple(replace(each, progress=True, misjudged=0.5 + (n % 2)) for n, each in enumerate(jobs))
    site = Site((host(2),), RULES, min_interval_s=1.0)
    blind, told = (make_report(site, simulate(site, trace), 60) for trace in (jobs, wrong))
    assert told.mean_completion_s < blind.mean_completion_s
    assert told.jobs == blind.jobs == 60


# --- preemption


def test_a_short_job_takes_the_place_of_a_long_one_which_comes_back() -> None:
    decided = planned([short()], ONE, busy=[long()], rules=RULES)
    (gone,) = decided.preemptions
    assert (gone.job_id, gone.for_job) == ("long", "short")
    assert gone.why == (
        "preempted for job short (no service so far, needs 1 GPU), which would wait for job long, "
        "whose end is unknown, after 9h; cost about 30s"
    )
    assert decided.reservations[0].at_s == NOW_S + 10


def test_a_job_that_gives_way_is_told_when_it_may_be_back() -> None:
    had = replace(short(count=2), estimated_s=360.0, ran_s=240.0)
    busy = [replace(each, ends_s=NOW_S + 15 * HOUR_S) for each in (long(), long("b", "h-1"))]
    (gone, _) = planned([had], [host(2)], busy=busy, rules=RULES).preemptions
    assert gone.why.startswith(
        "preempted for job short (4m of service, needs 2 GPUs, about 6m), which would wait 14h59m longer, "
    )
    assert gone.why.endswith("; cost about 30s; back about 17:52")


LET_BE: Sequence[tuple[RunningJob, StayReason | None]] = (
    (long(), None),
    (replace(long(), stopping=True), StayReason.STOPPING),
    (replace(long(), preemptible=False), StayReason.ITS_OWNER),
    (replace(long(), stays_until_s=NOW_S + 1), StayReason.NO_ROOM),
    (replace(long(), saves_when_asked=False), StayReason.CANNOT_SAVE),
    (replace(long(), ends_s=NOW_S + 30), StayReason.ENDING),
    (replace(long(), ends_s=NOW_S - 1, ends_by=EstimateSource.NAME), None),  # it has outlasted the estimate
    (replace(long(ran_s=999.0)), StayReason.QUANTUM),
    (replace(long(), switched_s=0.03 * 9 * HOUR_S), StayReason.BUDGET),
)


@pytest.mark.parametrize(("job", "why"), LET_BE)
def test_a_job_that_is_let_be_has_a_reason_and_no_other_one_stays(
    job: RunningJob, why: StayReason | None
) -> None:
    assert stay_reason(job, expected_end(job, NOW_S, RULES), NOW_S, RULES) is why
    assert victims([short()], [job]) == ([] if why else ["long"])
    told = describe_turn(job, NOW_S, RULES)
    level = 1 if why is StayReason.QUANTUM else 3
    gives_way = f"cannot be preempted now: {why}" if why else "may be preempted for jobs of a lower one"
    assert told == f"in service level {level}, {gives_way}"


def test_who_gives_way_is_told_in_this_order_alone() -> None:
    assert describe_turn(long(), NOW_S, replace(RULES, order=SchedulingOrder.FAIR)) == ""
    cheap = replace(long(ran_s=500.0), save_s=0.0, restart_s=1.0)
    assert describe_turn(cheap, NOW_S, RULES) == "in service level 0, is preempted for higher classes only"


def test_a_job_that_waits_is_told_which_jobs_of_a_higher_level_are_let_be() -> None:
    busy = [
        replace(long("kept", "h-0"), preemptible=False),
        replace(long("rigid", "h-1"), saves_when_asked=False),
        replace(long("raw", "h-2"), saves_when_asked=False),
        replace(long("going", "h-3"), stopping=True, ends_s=NOW_S + 9),
    ]
    queue = [short("first", count=2), replace(short("second", count=2), submitted_s=NOW_S - 5)]
    reasons = planned(queue, [host(4)], busy=busy, rules=RULES).pending_reasons
    told = (
        "job kept is not preempted (queue.preemptible is false), jobs rigid and raw are not preempted "
        "(no checkpoint is known yet, nor that it saves when asked"
    )
    assert told in reasons["first"].why
    assert told in reasons["second"].why
    assert "going" not in reasons["first"].why
    for left_s, is_told in ((29.0, True), (31.0, False)):
        decided = planned([short()], ONE, [long()], RULES, switching_left_device_s=left_s)
        said = decided.pending_reasons["short"].why
        assert (
            "job long is not preempted (the budget of the machine for switching is used up)" in said
        ) is is_told
    fair = planned(queue, [host(4)], busy=busy, rules=replace(RULES, order=SchedulingOrder.FAIR))
    assert "preempted" not in fair.pending_reasons["first"].why
    same = [replace(each, ran_s=0.0, started_s=NOW_S - 60) for each in busy[:3]]
    level = planned(queue, [host(3)], busy=same, rules=RULES).pending_reasons
    assert "preempted" not in level["first"].why


@pytest.mark.parametrize(
    ("busy", "queue", "expected"),
    [
        ([long()], [], "for job long, whose end is unknown"),
        ([replace(long(), ends_s=NOW_S + 4 * HOUR_S)], [], "3h59m longer"),
        (
            [replace(long(), ends_s=NOW_S + 4 * HOUR_S), replace(long("b", "h-1"), preemptible=False)],
            [],
            "3h59m longer",  # the other one may go on
        ),
        (
            [replace(long(ran_s=29 / 0.03 + 20), ends_s=NOW_S + 99 * HOUR_S), long("b", "h-1")],
            [],
            "for job b, whose end is unknown",
        ),
        (
            [replace(long(ran_s=2 * HOUR_S), ends_s=NOW_S + 99 * HOUR_S)],
            [short("other")],  # it starts now on the other device, for as long as it wants
            "for job other, whose end is unknown",
        ),
    ],
    ids=["victim", "known", "other job goes on", "competitor", "competitor that starts now"],
)
def test_a_wait_is_not_told_as_a_time_if_it_depends_on_a_job_whose_end_nobody_knows(
    busy: list[RunningJob], queue: list[PendingJob], expected: str
) -> None:
    queue = [*queue, replace(short(), submitted_s=NOW_S - 1)]
    decided = planned(queue, [host(max(len(busy), len(queue)))], busy=busy, rules=RULES)
    (gone,) = (each for each in decided.preemptions if each.for_job == "short")
    assert f", which would wait {expected}, after " in gone.why


@pytest.mark.parametrize(
    "kept",
    [
        replace(long(), stopping=True, ends_s=NOW_S + 5),
        replace(long(), preemptible=False),
        replace(long(), saves_when_asked=False),
        replace(long(), ends_s=NOW_S + 20),
        replace(long(), priority_class="urgent"),
        replace(long(), switched_s=0.03 * 9 * HOUR_S),
        long(ran_s=29 / 0.03),
    ],
    ids=[
        "stopping",
        "not preemptible",
        "never saved",
        "about to end",
        "of a higher class",
        "no budget",
        "young",
    ],
)
def test_who_is_let_be(kept: RunningJob) -> None:
    assert victims([short()], [kept]) == []


def test_a_job_that_saved_by_itself_gives_way_at_the_price_of_what_it_repeats() -> None:
    saved = replace(long(), saves_when_asked=False, checkpoint_s=NOW_S - 100)
    assert switch_cost_s(saved, NOW_S) == 120.0
    assert victims([short()], [saved]) == ["long"]


def test_jobs_of_one_level_do_not_displace_each_other() -> None:
    assert victims([replace(short(), ran_s=8 * HOUR_S)], [long()]) == []


def test_the_highest_level_gives_way_first_and_no_more_jobs_than_needed() -> None:
    busy = [long("a", "h-0", ran_s=HOUR_S / 2), long("b", "h-1", ran_s=2 * HOUR_S), long("c", "h-2")]
    assert victims([short()], busy) == ["c"]
    assert victims([short(count=2)], busy) == ["c", "b"]
    assert sorted(victims([short("x"), short("y")], busy)) == ["b", "c"]


def test_a_job_that_no_displacement_helps_waits() -> None:
    assert victims([short(count=2), short("other", count=2)], [long()]) == []
    assert victims([replace(short(), time_limit_s=60.0)], [replace(long(), ends_s=NOW_S + 35)]) == []


def test_a_switch_must_cost_less_than_the_waiting_that_it_spares() -> None:
    ends_soon = replace(long(), save_s=200.0, restart_s=200.0, ends_s=NOW_S + 500)
    assert victims([short()], [ends_soon]) == []


def test_the_budget_of_the_machine_is_a_limit() -> None:
    def left(device_s: float) -> int:
        snapshot = Snapshot(
            NOW_S, tuple(ONE), (short(),), (long(),), config=RULES, switching_left_device_s=device_s
        )
        return len(plan(snapshot).preemptions)

    assert [left(30.0), left(29.0)] == [1, 0]


def test_whoever_was_preempted_for_a_class_is_not_displaced_as_well() -> None:
    classes = (PriorityClass("normal", 10, preemptible=True), PriorityClass("urgent", 20, 4.0, preempts=True))
    queue = [replace(short("urgent"), priority_class="urgent"), short("short")]
    busy = [replace(long(), save_s=None)]
    decided = planned(queue, ONE, busy=busy, rules=replace(RULES, classes=classes))
    assert Counter(each.job_id for each in decided.preemptions) == {"long": 1}


def test_a_stopped_job_on_an_unknown_host_changes_nothing() -> None:
    away = replace(long(), host="elsewhere")
    decided = planned([short(count=2)], ONE, busy=[away], rules=RULES)
    assert decided.preemptions == ()


# --- shares


def had(owner: str, *device_s: float) -> Mapping[tuple[str, str], Sequence[float]]:
    return {("", owner): device_s}


def test_whoever_has_had_a_share_in_a_level_displaces_own_jobs_only() -> None:
    busy = (long("mine", "h-0", owner="ada"), long("theirs", "h-1", owner="bob", ran_s=8 * HOUR_S))
    whole_s = RULES.half_life_s / log(2)  # of two devices and two owners, the share of each is one
    snapshot = Snapshot(
        NOW_S, (host(2),), (short(owner="ada"), short("two", owner="ada")), busy, config=RULES
    )

    def told(*device_s: float) -> list[str]:
        known = replace(snapshot, level_usage=had("ada", *device_s))
        return sorted(each.job_id for each in plan(known).preemptions)

    assert told(whole_s - 1) == ["mine", "theirs"]
    assert told(whole_s + 1) == ["mine"]
    assert told(0.0, whole_s + 1) == ["mine", "theirs"]  # in a higher level, that does not matter


def test_the_jobs_of_whoever_has_had_a_share_in_their_level_go_after_those_of_others() -> None:
    queue = (short("new", owner="ada"), replace(short("old", owner="bob"), ran_s=9 * HOUR_S))
    snapshot = Snapshot(NOW_S, tuple(ONE), queue, config=RULES)
    assert list(starts(plan(snapshot))) == ["new"]
    many = replace(snapshot, level_usage=had("ada", 1e9))
    assert list(starts(plan(many))) == ["old"]


def test_whoever_has_a_share_of_0_goes_last_and_displaces_nobody_from_the_beginning() -> None:
    rules = replace(RULES, user_shares={"eve": 0.0})
    queue = (short("new", owner="eve"), replace(short("old", owner="bob"), ran_s=9 * HOUR_S))
    snapshot = Snapshot(NOW_S, tuple(ONE), queue, config=rules)
    assert list(starts(plan(snapshot))) == ["old"]
    assert victims([short(owner="eve")], [long(owner="bob")], rules) == []
    assert victims([short(owner="eve")], [long(owner="eve")], rules) == ["long"]


def test_of_one_level_the_jobs_of_whoever_has_used_most_give_way_first() -> None:
    busy = (long("a", "h-0", owner="ada"), long("b", "h-1", owner="bob"))
    for most, expected in (("ada", "a"), ("bob", "b")):
        usage = {most: 9e6, "eve": 1.0}
        snapshot = Snapshot(NOW_S, (host(2),), (short(owner="eve"),), busy, usage, config=RULES)
        assert [each.job_id for each in plan(snapshot).preemptions] == [expected]


def test_what_an_owner_has_had_counts_in_the_level_that_the_job_was_in_at_the_time() -> None:
    usage, limits = LevelUsage(inf), (600.0, 3600.0)
    usage.begin("1", Holding(("lab", "ada"), 2.0, 100.0, 50.0))
    assert usage.read(150.0, limits) == {("lab", "ada"): (200.0,)}
    assert usage.read(2050.0, limits) == {("lab", "ada"): (500.0, 3000.0, 500.0)}
    usage.end("1", 2050.0, limits)
    usage.end("1", 9000.0, limits)
    usage.add(Holding(("", "bob"), 0.0, 0.0, 0.0), 99.0, 99.0, limits)
    assert usage.read(9000.0, limits) == {("lab", "ada"): (500.0, 3000.0, 500.0), ("", "bob"): (0.0,)}


@given(st.lists(st.floats(1, 5000), min_size=1, max_size=6))
def test_what_was_had_by_level_adds_up_to_all_that_was_used(parts_s: list[float]) -> None:
    half_life_s, limits, now_s, had_device_s = 3600.0, (600.0, 2400.0), 0.0, 0.0
    usage, whole = LevelUsage(half_life_s), 0.0
    for number, part_s in enumerate(parts_s):
        usage.begin(str(number), Holding(("", "ada"), 2.0, had_device_s, now_s))
        usage.read(now_s + part_s / 3, limits)
        now_s, had_device_s = now_s + part_s, had_device_s + 2 * part_s
        usage.end(str(number), now_s, limits)
        whole = charge_usage(whole, 2.0, part_s, half_life_s)
    assert sum(usage.read(now_s, limits)["", "ada"]) == pytest.approx(whole)


def test_shares_divide_the_machine_among_groups_and_then_users() -> None:
    queue = (replace(short("a", owner="ada"), group="lab"), replace(short("e", owner="eve"), group="lab"))
    rules = replace(RULES, group_shares={"lab": 3.0, "none": 9.0}, user_shares={"eve": 2.0})
    snapshot = Snapshot(NOW_S, (host(4),), queue, (replace(long(owner="bob"), group="guests"),), config=rules)
    assert entitlements(snapshot) == {("lab", "ada"): 1.0, ("lab", "eve"): 2.0, ("guests", "bob"): 1.0}
    nobody = replace(snapshot, config=replace(rules, user_shares={"ada": 0.0, "eve": 0.0}))
    assert entitlements(nobody)["lab", "ada"] == 0.0


# --- by remaining time


def test_the_shortest_remaining_time_goes_first_and_displaces_longer_ones() -> None:
    rules = replace(RULES, order=SchedulingOrder.SRPT)
    busy = [replace(long(), ends_s=NOW_S + HOUR_S)]
    assert victims([replace(short(), estimated_s=60.0)], busy, rules) == ["long"]
    assert victims([replace(short(), estimated_s=HOUR_S - 10)], busy, rules) == []
    assert next_change_s(busy[0], NOW_S, rules) == inf


# --- time


def test_the_next_change_is_a_rise_or_the_end_of_the_quantum() -> None:
    assert next_change_s(long(ran_s=990.0), NOW_S, RULES) == pytest.approx(10.0)
    assert next_change_s(long(ran_s=LEVELS[0] - 7), NOW_S, RULES) == pytest.approx(7.0)
    broke = replace(long(ran_s=LEVELS[2] + 1), switched_s=0.03 * (LEVELS[2] + 1) - 29)
    assert next_change_s(broke, NOW_S, RULES) == pytest.approx(1 / 0.03)
    assert next_change_s(long(), NOW_S, replace(RULES, switching=SwitchingConfig(budget=0.0))) == inf


# --- the whole order, played


def arrival(job_id: str, at_s: float, lasts_s: float, count: int = 1, owner: str = "ada") -> Arrival:
    return Arrival(job_id, owner, gpus(count), at_s, lasts_s, restart_s=20.0, save_s=10.0)


def played(
    trace: list[Arrival], devices: int = 1, config: SchedulerConfig = RULES
) -> dict[str, SimulatedJob]:
    found = simulate(Site((host(devices),), config), trace)
    return {each.arrival.job_id: each for each in found}


def test_a_long_job_gives_way_to_short_ones_and_does_all_its_work() -> None:
    done = played(
        [arrival("long", 0, 9 * HOUR_S), arrival("a", 2 * HOUR_S, 60), arrival("b", 4 * HOUR_S, 60)]
    )
    assert done["a"].spans == ((2 * HOUR_S + 10, 2 * HOUR_S + 70),)
    assert len(done["long"].spans) == 3
    assert done["long"].switched_s == pytest.approx(60.0)
    assert done["long"].held_s == pytest.approx(9 * HOUR_S + 60)
    assert slowdown(done["b"]) == pytest.approx(70 / 60)


@pytest.mark.parametrize("learns", [True, False])
def test_a_simulation_learns_the_limits_from_jobs_that_have_ended_if_it_should(*, learns: bool) -> None:
    trace = [arrival(str(number), 1000.0 * number, 900) for number in range(150)]
    seen: list[tuple[float, ...]] = []
    site = Site((host(1),), RULES, learns_levels=learns)
    simulate(site, trace, lambda snapshot, _: seen.append(snapshot.config.switching.levels_device_s))
    assert seen[0] == LEVELS
    assert seen[-1] == ((900.0, 5400.0, 43200.0) if learns else LEVELS)


def test_a_job_rises_while_somebody_waits_and_gives_way_then() -> None:
    done = played([arrival("long", 0, 9 * HOUR_S), arrival("short", 60, 60)])
    assert done["short"].started_s == pytest.approx(max(LEVELS[0], 30 / 0.03) + 10, abs=1.0)


@pytest.mark.parametrize(("every_s", "lost_s"), [(1000.0, 20.0), (None, None)])
def test_what_a_job_without_a_save_on_request_repeats(every_s: float | None, lost_s: float | None) -> None:
    trace = [replace(arrival("long", 0, 9 * HOUR_S), saves=False, checkpoint_every_s=every_s),
             arrival("short", 7200, 60)]  # fmt: skip
    done = played(trace)
    if lost_s is None:
        assert len(done["long"].spans) == 1
    else:
        assert done["short"].started_s == pytest.approx(8000, abs=1.0)
        assert done["long"].switched_s == pytest.approx(lost_s, abs=1.0)


def test_a_job_of_a_lower_class_that_never_saves_begins_again_when_it_is_preempted() -> None:
    idle = replace(arrival("idle", 0, 9 * HOUR_S), saves=False, priority_class="idle")
    urgent = replace(arrival("urgent", 600, HOUR_S, owner="eve"), priority_class="urgent")
    rules = replace(RULES, order=SchedulingOrder.FAIR)
    done = played([idle, urgent], config=rules)
    assert done["idle"].held_s == pytest.approx(9 * HOUR_S + 600 + 20)


def test_the_end_of_a_job_that_reports_its_steps_is_known_soon() -> None:
    ends: dict[float, float | None] = {}

    def watch(snapshot: Snapshot, _decided: Plan) -> None:
        for job in snapshot.running:
            if job.job_id == "long":
                ends[snapshot.now_s] = job.ends_s

    quiet = replace(arrival("long", 0, 9 * HOUR_S), progress=True)
    others = [arrival(str(at_s), at_s, 60) for at_s in (100.0, 1000.0, 2 * HOUR_S, 3 * HOUR_S)]
    simulate(Site((host(1),), RULES), [quiet, *others], watch)
    assert (ends[100.0], ends[1000.0]) == (None, 9 * HOUR_S)
    told = [ends_s for at_s, ends_s in ends.items() if at_s > 2 * HOUR_S]
    assert all(ends_s is not None for ends_s in told)  # it is known in later attempts from their beginning


def test_an_oracle_knows_the_durations() -> None:
    trace = [arrival("long", 0, 9 * HOUR_S), arrival("b", 60, 600), arrival("a", 61, 300)]
    site = Site((host(1),), replace(RULES, order=SchedulingOrder.SRPT), true_durations=True)
    done = {each.arrival.job_id: each for each in simulate(site, trace)}
    assert (done["a"].started_s, done["b"].started_s) == (70, 370)
    assert done["long"].ended_s > done["a"].ended_s


jobs = st.lists(
    st.tuples(
        st.floats(0, 5e4), st.floats(5, 2e5), st.sampled_from([1, 1, 1, 2, 4]),
        st.sampled_from(["ada", "bob", "eve"]), st.floats(1, 120), st.floats(1, 120),
        st.sampled_from([True, True, False]),
    ),
    min_size=2, max_size=25,
)  # fmt: skip


@settings(max_examples=examples(20))
@given(jobs, st.sampled_from([0.01, 0.03, 0.1]))
def test_whatever_arrives_budget_quantum_and_devices_hold_and_everything_ends(
    drafts: list[tuple[float, float, int, str, float, float, bool]], budget: float
) -> None:
    trace = [
        Arrival(
            str(number), owner, gpus(count), at_s, lasts_s, restart_s=restart_s, save_s=save_s, saves=saves
        )
        for number, (at_s, lasts_s, count, owner, restart_s, save_s, saves) in enumerate(drafts)
    ]
    config = replace(RULES, switching=replace(RULES.switching, budget=budget))

    def watch(snapshot: Snapshot, decided: Plan) -> None:
        held = [uuid for job in snapshot.running for uuid in job.devices]
        held += [uuid for each in decided.starts for uuid in each.devices]
        assert len(held) == len(set(held)), "a device has two holders"
        told = Counter(each.job_id for each in decided.preemptions)
        assert set(told.values()) <= {1}
        by_id = {job.job_id: job for job in snapshot.running}
        spent = 0.0
        for job in (by_id[each] for each in told):
            cost_s = switch_cost_s(job, snapshot.now_s)
            assert job.saves_when_asked
            assert (snapshot.now_s - job.started_s) * budget >= cost_s
            spent += cost_s * billed_devices(job.request, config)
        assert spent <= max(snapshot.switching_left_device_s, 0.0)

    done = simulate(Site((host(4),), config, min_interval_s=1.0), trace, watch)
    assert len(done) == len(trace), "a job never ended"
    for each in done:
        assert each.switched_s <= budget * each.held_s + 1e-6
        assert each.held_s - each.switched_s == pytest.approx(each.arrival.duration_s)
    assert make_report(Site((host(4),), config), done, len(trace)).never_started == 0
