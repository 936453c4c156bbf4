"""Reservations, backfill, limits, dependencies, maintenance."""

from dataclasses import replace

import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.backfill import Reservation
from runner.core.scheduler.config import PriorityClass, Quota, Quotas, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import (
    GIB,
    Dependency,
    EndedJob,
    EstimateSource,
    JobArray,
    Maintenance,
    ResourceRequest,
)
from tests.fakes.host.directories import HOUR_S, NOW_S, gpus, host, planned, running, starts, waiting

AGES_S = 30 * 24 * HOUR_S
"""Older than any bound."""

HALF = [running("r", ["h-0", "h-1"], hours=2)]
BIG = waiting("big", gpus(4), age_s=99)


def test_the_first_blocked_job_has_a_reservation() -> None:
    decided = planned([BIG], busy=HALF)
    devices = ("h-0", "h-1", "h-2", "h-3")
    assert decided.reservations == (Reservation("big", "h", devices, NOW_S + 2 * HOUR_S),)


def test_backfill_takes_what_ends_before_the_reservation() -> None:
    queue = [BIG, waiting("fits", gpus(2), hours=2), waiting("long", gpus(2), hours=2.1)]
    assert list(starts(planned(queue, busy=HALF))) == ["fits"]
    assert list(starts(planned([queue[0], queue[2]], busy=HALF))) == []


def test_backfill_takes_what_the_reservation_leaves_for_as_long_as_it_likes() -> None:
    queue = [waiting("big", gpus(3), age_s=99), waiting("endless", hours=None), waiting("more", hours=None)]
    assert list(starts(planned(queue, busy=HALF))) == ["endless"]


def test_a_job_without_a_limit_or_a_past_is_not_backfilled_before_a_reservation() -> None:
    assert not planned([BIG, waiting("endless", hours=None)], busy=HALF).starts
    learned = replace(waiting("learned", hours=None), estimated_s=HOUR_S)
    assert list(starts(planned([BIG, learned], busy=HALF))) == ["learned"]


@pytest.mark.parametrize("hours", [0.0, 1e-9])
def test_a_job_whose_time_is_used_up_still_has_its_devices_to_itself(hours: float) -> None:
    queue = [waiting("spent", gpus(4), hours=hours, age_s=99), waiting("next", gpus(4))]
    assert list(starts(planned(queue))) == ["spent"]


def test_a_job_that_may_last_for_ever_is_reserved_for_as_long_as_is_usual() -> None:
    endless = replace(BIG, time_limit_s=None)
    assert planned([endless], busy=HALF).reservations[0].at_s == NOW_S + 2 * HOUR_S


def test_nobody_is_passed_over_in_the_plan_that_starts_a_job_that_may_last_for_ever() -> None:
    endless = waiting("endless", hours=None, age_s=999, owner="bob")
    behind = [waiting("long", hours=48, owner="eve"), waiting("unknown", hours=None, owner="dan")]
    decided = planned([endless, BIG, *behind], rules=SchedulerConfig(order=SchedulingOrder.FIFO))
    assert list(starts(decided)) == ["endless"]
    assert [(each.job_id, each.at_s) for each in decided.reservations] == [("big", NOW_S + 24 * HOUR_S)]


@pytest.mark.parametrize(("quota", "asked"), [(1, 2), (6, 5)], ids=["more-than-it-may", "more-than-there-is"])
def test_an_overdue_job_that_can_never_start_keeps_no_quota_from_others(quota: int, asked: int) -> None:
    rules = SchedulerConfig(quotas=Quotas(groups={"lab": Quota(devices=quota)}))
    busy = [replace(each, owner="eve", group="lab") for each in HALF] if quota > 2 else []
    old, new = waiting("old", gpus(asked), age_s=30 * 24 * HOUR_S), waiting("new", gpus(1), owner="eve")
    queue = [replace(each, group="lab") for each in (old, new)]
    assert list(starts(planned(queue, busy=busy, rules=rules))) == ["new"]


def test_the_processors_and_the_memory_of_a_reservation_are_kept_too() -> None:
    big = waiting("big", ResourceRequest(30, 250 * GIB, 4), age_s=99)
    queue = [
        big,
        waiting("cpus", ResourceRequest(3, GIB), hours=3),
        waiting("memory", ResourceRequest(1, 9 * GIB), hours=3),
    ]
    queue += [waiting("small", ResourceRequest(1, GIB), hours=3)]
    assert list(starts(planned(queue, busy=HALF))) == ["small"]


def test_a_quota_is_kept_for_a_reservation_from_when_it_begins() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(devices=4)))
    queue = [BIG, waiting("over", hours=2), waiting("own", hours=2.1), waiting("other", owner="eve", hours=9)]
    sites = [host(), host(2, "i")]
    assert sorted(starts(planned(queue, sites, HALF, rules))) == ["other", "over"]


def test_what_lasts_as_long_as_a_job_that_its_owners_quota_stops_is_stopped_and_what_is_shorter_is_not() -> (
    None
):
    rules = SchedulerConfig(quotas=Quotas(user=Quota(devices=4)))
    own = waiting("own", hours=2.1, age_s=50)
    queue = [BIG, own, waiting("as long", hours=2.1), waiting("longer", hours=3), waiting("short", hours=2)]
    assert list(starts(planned(queue, [host(), host(2, "i")], HALF, rules))) == ["short"]


def test_a_reservation_behind_a_maintenance_leaves_its_owners_quota_to_short_jobs() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(devices=1)))
    ahead = (Maintenance(NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S, "fan"),)
    decided = planned([waiting("long", age_s=99, hours=4), waiting("short")], rules=rules, maintenance=ahead)
    assert list(starts(decided)) == ["short"]
    assert decided.reservations[0].at_s == NOW_S + 3 * HOUR_S


def test_a_job_past_its_end_is_taken_to_need_a_little_longer() -> None:
    late = [running("r", ["h-0", "h-1"], hours=-1, ran_s=10 * HOUR_S)]
    assert planned([BIG], busy=late).reservations[0].at_s == NOW_S + HOUR_S


def test_a_running_job_of_unknown_end_is_taken_to_run_for_a_day() -> None:
    endless = [running("r", ["h-0", "h-1"], hours=None, ran_s=HOUR_S)]
    assert planned([BIG], busy=endless).reservations[0].at_s == NOW_S + 23 * HOUR_S


def test_without_backfill_nobody_overtakes() -> None:
    rules = SchedulerConfig(order=SchedulingOrder.FIFO, backfill=False)
    decided = planned([BIG, waiting("small")], busy=HALF, rules=rules)
    assert not decided.starts
    assert not decided.reservations


def test_a_job_that_can_never_start_is_in_nobodys_way() -> None:
    rules = SchedulerConfig(order=SchedulingOrder.FIFO, backfill=False)
    queue = [waiting("never", gpus(9), age_s=99), waiting("also", gpus(9), age_s=98), waiting("small")]
    assert list(starts(planned(queue, rules=rules))) == ["small"]


# --- limits


def test_a_quota_of_devices_stops_an_owner_and_nobody_else() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(devices=2)}))
    queue = [waiting(f"a{i}") for i in range(3)] + [waiting("b", owner="bob")]
    assert sorted(starts(planned(queue, rules=rules))) == ["a0", "a1", "b"]


def test_running_jobs_count_against_quotas_of_users_groups_and_sweeps() -> None:
    job = replace(waiting("a", owner="ada"), group="lab", array=JobArray("s", 1))
    same = replace(running("r", ["h-0"]), owner="ada", group="lab")
    for quotas in (
        Quotas(user=Quota(jobs=1)),
        Quotas(group=Quota(jobs=1)),
        Quotas(groups={"lab": Quota(devices=1)}),
    ):
        assert not planned([job], busy=[same], rules=SchedulerConfig(quotas=quotas)).starts
    assert not planned([job], busy=[replace(same, array=JobArray("s", 1))]).starts
    assert planned([job], busy=[replace(same, array=JobArray("t", 1))]).starts


def test_a_sweep_runs_so_many_jobs_at_a_time() -> None:
    queue = [replace(waiting(f"a{i}"), array=JobArray("s", 2)) for i in range(4)]
    assert len(planned(queue).starts) == 2
    free = [replace(job, array=JobArray("s")) for job in queue]
    assert len(planned(free).starts) == 4


def test_a_job_that_waits_for_its_own_quota_keeps_no_devices() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(devices=1)}))
    busy = [running("r", ["h-0"], owner="ada")]
    decided = planned(
        [waiting("a", age_s=99), waiting("b", gpus(3), owner="bob", hours=None)], busy=busy, rules=rules
    )
    assert list(starts(decided)) == ["b"]
    assert not decided.reservations


def test_the_quota_that_an_overdue_job_waits_for_is_not_given_to_its_owners_other_jobs() -> None:
    classes = (PriorityClass("normal", 1, starvation_limit_s=60.0),)
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(devices=2)}), classes=classes)
    busy = [running("r", ["h-0"], owner="ada")]
    queue = [
        waiting("late", gpus(2), age_s=99),
        waiting("small", age_s=9),
        waiting("b", owner="bob", age_s=9),
    ]
    assert list(starts(planned(queue, busy=busy, rules=rules))) == ["b"]


# --- overdue jobs

IMPATIENT = SchedulerConfig(classes=(PriorityClass("normal", 1, starvation_limit_s=60.0),), reservations=2)


def test_every_overdue_job_has_a_reservation() -> None:
    busy = [running("r", ["h-0", "h-1", "h-2"], hours=2)]
    queue = [waiting("x", gpus(4), age_s=99), waiting("y", gpus(2), age_s=98), waiting("z", gpus(3))]
    decided = planned(queue, busy=busy, rules=IMPATIENT)
    at = {each.job_id: each.at_s - NOW_S for each in decided.reservations}
    assert at == {"x": 2 * HOUR_S, "y": 3 * HOUR_S, "z": 4 * HOUR_S}


def test_beyond_the_reservations_nobody_passes_an_overdue_job() -> None:
    busy = [running("r", ["h-0", "h-1", "h-2"], hours=2)]
    queue = [waiting(str(i), gpus(4), age_s=99 - i) for i in range(3)] + [waiting("small", hours=0.1)]
    decided = planned(queue, busy=busy, rules=IMPATIENT)
    assert not decided.starts
    assert len(decided.reservations) == 2


@pytest.mark.parametrize(("late", "early", "most"), [(2, 1, 5), (1, 2, 6)])
def test_an_overdue_job_at_one_limit_is_spared_its_others_and_those_behind_keep_their_promises(
    late: int, early: int, most: int
) -> None:
    """The rest of the group's quota is not for a job that is not overdue.

    Given away, it would be closed in the next plan for the sake of ``swept``, and ``late`` promised nothing.
    """
    one, devices = JobArray("s", max_parallel=1), ("h-1", "h-2")[:late]
    busy = [replace(running("r", ["h-0"], hours=3), array=one), running("x", devices, hours=2)]
    kept = frozenset({"h-0", "h-2", "h-3"} if late == 1 else ())
    queue = [
        replace(waiting("swept", gpus(4), age_s=AGES_S), array=one),
        waiting("late", replace(gpus(late), avoid=kept), age_s=AGES_S - 1, owner="bob"),
        waiting("early", gpus(early), owner="eve"),
    ]
    inside = [replace(job, group="lab") for job in queue]
    rules = SchedulerConfig(quotas=Quotas(groups={"lab": Quota(devices=most)}))
    held = [replace(busy[0], group="lab"), busy[1]]
    decided = planned(inside, busy=held, rules=rules)
    assert [(each.job_id, each.at_s - NOW_S) for each in decided.reservations] == [("late", 2 * HOUR_S)]
    assert not decided.starts
    assert list(starts(planned(inside[1:], busy=held, rules=rules))) == ["early"]


def test_an_overdue_job_that_can_never_start_does_not_speak_for_one_of_as_many_devices_that_can() -> None:
    """Both are at the quota of their owner; only what the second waits for is kept from others."""
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(devices=4)}))
    queue = [
        waiting("never", replace(gpus(4), models=("B9000",)), age_s=AGES_S),
        waiting("late", gpus(4), age_s=AGES_S - 1),
        waiting("early", gpus(1)),
    ]
    busy = [running("r", ["h-0"], owner="ada")]
    assert not planned(queue, busy=busy, rules=rules).starts
    assert list(starts(planned([queue[0], queue[2]], busy=busy, rules=rules))) == ["early"]


# --- times and dependencies


def test_not_before_means_not_before() -> None:
    assert not planned([replace(waiting("1"), not_before_s=NOW_S + 1)]).starts
    assert planned([replace(waiting("1"), not_before_s=NOW_S)]).starts


def test_a_dependent_job_starts_when_the_other_has_ended_as_it_should() -> None:
    job = replace(waiting("1"), dependencies=(Dependency("x"),))
    assert not planned([job]).starts
    assert planned([job], ended={"x": EndedJob(Outcome.SUCCEEDED, NOW_S - 1)}).starts
    assert not planned([job], ended={"x": EndedJob(Outcome.FAILED, NOW_S - 1)}).starts


# --- maintenance


def test_nothing_runs_into_a_maintenance() -> None:
    ahead = (Maintenance(NOW_S + 2 * HOUR_S, NOW_S + 5 * HOUR_S, "driver update"),)
    queue = [waiting("short", hours=2), waiting("long", hours=3), waiting("endless", hours=None)]
    decided = planned(queue, maintenance=ahead)
    assert list(starts(decided)) == ["short"]
    assert decided.reservations[0].at_s == NOW_S + 5 * HOUR_S


def test_an_estimate_is_no_limit_that_a_maintenance_could_rely_on() -> None:
    near = (Maintenance(NOW_S + 120, NOW_S + HOUR_S, "driver update"),)
    guessed = replace(waiting("guessed", hours=None), estimated_s=60.0, estimated_by=EstimateSource.NAME)
    decided = planned([guessed, waiting("limited", hours=1 / 60)], maintenance=near)
    assert [start.job_id for start in decided.starts] == ["limited"]
    why = decided.pending_reasons["guessed"].why
    assert "driver update" in why
    assert "with a time limit the job might fit before that" in why
    assert decided.pending_reasons["guessed"].starts_s == NOW_S + HOUR_S
    later = (Maintenance(NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S, "driver update"),)
    assert planned([guessed], maintenance=later).starts


def test_a_maintenance_that_is_far_ahead_does_not_stop_jobs_that_may_last_for_ever() -> None:
    def starts(days: float) -> list[str]:
        begins_s = NOW_S + days * 24 * HOUR_S
        ahead = (Maintenance(begins_s, begins_s + HOUR_S, "driver update"),)
        decided = planned([waiting("endless", hours=None), waiting("week", hours=7 * 24)], maintenance=ahead)
        return [start.job_id for start in decided.starts]

    assert starts(0.9) == []
    assert starts(3) == ["endless"]
    assert starts(8) == ["endless", "week"]


def test_a_maintenance_days_ahead_moves_no_reservation_and_lets_nobody_past_it() -> None:
    busy = [running("r", ["h-0"], hours=0.2)]
    queue = [waiting("endless", gpus(4), hours=None, age_s=99), waiting("long", hours=48)]
    day_s = 24 * HOUR_S
    days = (Maintenance(NOW_S + 4 * day_s, NOW_S + 4 * day_s + HOUR_S, "fan"),)
    years = Maintenance(NOW_S + 200 * day_s, NOW_S + 201 * day_s, "move")
    for ahead in (days, (*days, years), (years,)):
        decided = planned(queue, busy=busy, maintenance=ahead)
        assert not decided.starts
        assert decided.reservations[0].at_s == NOW_S + 0.2 * HOUR_S
    brief = Maintenance(NOW_S + HOUR_S, NOW_S + HOUR_S + 30, "reset")
    assert planned(queue, busy=busy, maintenance=(years, brief)).reservations[0].at_s == brief.ends_s


def test_a_maintenance_of_one_device_or_host_leaves_the_others() -> None:
    device = Maintenance(NOW_S - 1, NOW_S + HOUR_S, "new fan", devices=frozenset({"h-0"}))
    elsewhere = Maintenance(NOW_S - 1, NOW_S + HOUR_S, "new fan", hosts=frozenset({"i"}))
    decided = planned([waiting("1", gpus(3))], [host(), host(name="i")], maintenance=(device, elsewhere))
    assert starts(decided) == {"1": ("h-1", "h-2", "h-3")}


def test_a_maintenance_that_is_over_is_over() -> None:
    over = (Maintenance(NOW_S - 2, NOW_S - 1, "driver update"),)
    assert planned([waiting("1")], maintenance=over).starts


def test_an_empty_queue_and_a_site_without_hosts_are_no_problem() -> None:
    assert planned([]).pending_reasons == {}
    from runner.core.scheduler.backfill import plan
    from runner.core.scheduler.snapshot import Snapshot

    nowhere = plan(Snapshot(NOW_S, (), (waiting("1"),)))
    assert nowhere.pending_reasons["1"].never
