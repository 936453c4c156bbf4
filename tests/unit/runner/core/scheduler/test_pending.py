"""Reasons of pending jobs, in words."""

from dataclasses import replace

import pytest

from runner.core.job.states import Outcome
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig
from runner.core.scheduler.formatting import format_time
from runner.core.scheduler.pending import PendingReason
from runner.core.scheduler.snapshot import (
    GIB,
    Dependency,
    DependencyCondition,
    DeviceState,
    EndedJob,
    Host,
    Maintenance,
    PendingJob,
    ResourceRequest,
    SchedulableDevice,
    Snapshot,
)
from tests.fakes.host.directories import HOUR_S, NOW_S, devices, gpus, host, out, planned, running, waiting

FOREIGN = "a foreign process (pid 4121, uid 1007, python)"
BUSY = [running("r", ["h-0", "h-1"], hours=2)]


def why(job: PendingJob) -> str:
    return planned([job], busy=BUSY).pending_reasons[job.job_id].why


def test_the_reason_names_what_is_wanted_what_is_free_and_who_has_the_rest() -> None:
    own = (*devices(3), out(replace(devices(4)[3]), DeviceState.FOREIGN, FOREIGN))
    queue = [
        waiting("first", gpus(2), age_s=99),
        waiting("1", ResourceRequest(1, GIB, 2, device_bytes=40 * GIB, linked=True)),
    ]
    decided = planned(queue, [host(own=own)], BUSY)
    assert decided.pending_reasons["1"].why == (
        "waits for 2 linked GPUs with >= 40 GiB: 1 free, GPU-3 used by a foreign process (pid 4121, "
        "uid 1007, python), 2 allocated, the next until about 19:46, 1 job ahead; starts about 20:46"
    )


def test_jobs_of_a_higher_class_are_counted_apart() -> None:
    queue = [waiting(f"u{i}", gpus(4), priority_class="urgent", owner="eve") for i in range(2)]
    queue += [
        waiting("n", gpus(4), age_s=99),
        waiting("n2", gpus(4), age_s=98),
        waiting("1", gpus(4), owner="ada"),
    ]
    said = planned(queue, busy=BUSY).pending_reasons["1"].why
    assert "4 jobs ahead (2 of a higher class)" in said


def test_several_devices_out_of_service_are_summed_up() -> None:
    own = [out(device, DeviceState.DIRTY, "12 GiB left in use") for device in devices(5)]
    said = (
        planned([waiting("1", gpus(1))], [host(own=[*own, out(devices(6)[5], DeviceState.DRAINED)])])
        .pending_reasons["1"]
        .why
    )
    assert said == (
        "waits for 1 GPU: 0 free, GPU-0 dirty (12 GiB left in use), GPU-1 dirty (12 GiB left in use), "
        "GPU-2 dirty (12 GiB left in use), 3 more out of service; start time unknown"
    )


def test_a_state_without_a_reason_stands_alone() -> None:
    own = (out(devices(2)[0], DeviceState.DRAINED), out(devices(2)[1], DeviceState.FOREIGN))
    said = planned([waiting("1", gpus(1))], [host(own=own)]).pending_reasons["1"].why
    assert "GPU-0 drained, GPU-1 used by a foreign process;" in said


def test_conditions_are_named() -> None:
    amd = replace(waiting("1"), request=ResourceRequest(gpus=1, vendor="amd"))
    assert why(amd).startswith("never starts: no host has 1 AMD GPU with 1 cpu and 0 B")
    new = replace(waiting("1"), request=ResourceRequest(gpus=1, models=("B200", "B300"), capability=(10, 0)))
    assert why(new).startswith("never starts: no host has 1 GPU (B200 or B300) of capability >= 10.0 with")


def test_free_devices_that_are_kept_say_for_whom() -> None:
    queue = [waiting("big", gpus(4), age_s=99), waiting("long", hours=3), waiting("endless", hours=None)]
    waits = planned(queue, busy=BUSY).pending_reasons
    assert "2 free, reserved for job big from about 19:46, 2 allocated" in waits["long"].why
    assert "job big from about 19:46; with a time limit the job might fit before that" in waits["endless"].why


def test_devices_that_are_kept_for_maintenance_say_so() -> None:
    ahead = (Maintenance(NOW_S + HOUR_S, NOW_S + 9 * HOUR_S, "driver update"),)
    wait = planned([waiting("1", hours=2)], maintenance=ahead).pending_reasons["1"]
    assert "4 free, reserved for driver update at 18:46" in wait.why
    assert wait.why.endswith("starts about 2030-03-18 02:46")


def test_only_what_is_in_the_way_of_a_job_is_named() -> None:
    other = Maintenance(NOW_S + 0.2 * HOUR_S, NOW_S + HOUR_S, "amd", devices=frozenset({"elsewhere"}))
    later = Maintenance(NOW_S + 9 * HOUR_S, NOW_S + 10 * HOUR_S, "next year")
    fan = Maintenance(NOW_S + HOUR_S, NOW_S + 3 * HOUR_S, "fan")
    wait = planned([waiting("1", hours=2)], maintenance=(other, later, fan)).pending_reasons["1"]
    assert wait.why == "waits for 1 GPU: 4 free, reserved for fan at 18:46; starts about 20:46"
    elsewhere = replace(fan, hosts=frozenset({"i"}), reason="disk")
    assert planned([waiting("1", hours=2)], maintenance=(fan, elsewhere)).pending_reasons["1"].why == wait.why


def test_a_job_without_devices_is_told_of_a_maintenance_too() -> None:
    fan = Maintenance(NOW_S + HOUR_S, NOW_S + 2 * HOUR_S, "fan")
    job = waiting("1", ResourceRequest(1, GIB), hours=None)
    assert planned([job], maintenance=(fan,)).pending_reasons["1"].why == (
        "waits for 1 cpu and 1 GiB of memory: reserved for fan at 18:46; "
        "with a time limit the job might fit before that; starts about 19:46"
    )


def test_during_a_maintenance_everybody_is_told_so() -> None:
    fan = Maintenance(NOW_S - HOUR_S, NOW_S + HOUR_S, "fan")
    queue = [
        waiting("1"),
        waiting("2", ResourceRequest(64, GIB)),
        waiting("3", ResourceRequest(1, GIB), age_s=9),
    ]
    waits = planned(queue, maintenance=(fan,)).pending_reasons
    assert waits["1"].why == "waits for 1 GPU: 0 free, closed for fan until 18:46; starts about 18:46"
    assert waits["2"].never
    assert waits["3"].why.startswith("waits for 1 cpu and 1 GiB of memory: closed for fan until 18:46")
    own = Maintenance(NOW_S - HOUR_S, NOW_S + HOUR_S, "fan", devices=frozenset({"h-0", "h-1"}))
    said = planned([waiting("1", gpus(3))], busy=BUSY, maintenance=(own,)).pending_reasons["1"].why
    assert said.startswith("waits for 3 GPUs: 2 free, closed for fan until 18:46; ")


def test_a_device_out_of_service_that_is_lent_still_is_counted_once() -> None:
    own = [out(device, DeviceState.DRAINED) for device in devices(2)] + [devices(3)[2]]
    busy = [running("a", ["h-0"], hours=1), running("b", ["h-1"], hours=2), running("c", ["h-2"], hours=3)]
    said = planned([waiting("1")], [host(own=own)], busy).pending_reasons["1"].why
    assert said.startswith(
        "waits for 1 GPU: 0 free, GPU-0 drained, GPU-1 drained, 1 allocated, the next until about 20:46;"
    )


def test_free_devices_that_are_not_linked_are_not_together() -> None:
    own = tuple(SchedulableDevice(f"{i}", f"GPU-{i}", link_group=f"i{i // 2}") for i in range(4))
    busy = [running("r", ["0", "2"])]
    said = planned([waiting("1", gpus(2, linked=True))], [host(own=own)], busy).pending_reasons["1"].why
    assert said.startswith(
        "waits for 2 linked GPUs: 2 free, not together, 2 allocated, the next until about 18:46; "
    )


def test_what_else_is_scarce_is_said() -> None:
    busy = replace(BUSY[0], request=ResourceRequest(30, 255 * GIB, 2))
    said = planned([waiting("1", ResourceRequest(4, 8 * GIB, 1))], busy=[busy]).pending_reasons["1"].why
    assert "4 cpus wanted and 2 free (held by job r), 8 GiB of memory wanted and 1 GiB free;" in said
    only = planned([waiting("1", ResourceRequest(4, 8 * GIB))], busy=[busy]).pending_reasons["1"].why
    assert only.startswith("waits for 4 cpus and 8 GiB of memory: 4 cpus wanted")
    scarce = replace(busy, request=ResourceRequest(1, 255 * GIB, 2))
    said = planned([waiting("1", ResourceRequest(4, 8 * GIB, 1))], busy=[scarce]).pending_reasons["1"].why
    assert "8 GiB of memory wanted and 1 GiB free (held by job r);" in said


def test_a_device_of_a_job_without_an_end_has_none() -> None:
    queue = [waiting("endless", gpus(4), hours=None, age_s=99), waiting("1")]
    wait = planned(queue).pending_reasons["1"]
    assert wait.why == "waits for 1 GPU: 0 free, 4 allocated; no estimate: job endless has no time limit"
    assert (wait.starts_s, wait.never) == (None, False)


def no_estimate(wait: PendingReason) -> str:
    """Return the job that an estimate would rest on; empty where there is an estimate."""
    named = wait.why.partition("; no estimate: job ")[2].removesuffix(" has no time limit")
    assert bool(named) is (wait.starts_s is None)
    return named


def test_an_estimate_that_would_rest_on_a_job_without_a_known_end_names_it() -> None:
    busy = [running("long", ["h-0", "h-1"], hours=None), running("short", ["h-2", "h-3"], hours=2)]
    waits = planned([waiting("1", gpus(3))], busy=busy).pending_reasons
    assert no_estimate(waits["1"]) == "long"
    assert "4 allocated, the next until about 19:46; no estimate" in waits["1"].why
    old = [running("long", ["h-0", "h-1"], hours=None, ran_s=99 * HOUR_S), busy[1]]
    assert no_estimate(planned([waiting("1", gpus(3))], busy=old).pending_reasons["1"]) == "long"


def test_an_estimate_that_needs_no_job_without_a_known_end_is_given() -> None:
    busy = [running("long", ["h-0", "h-1"], hours=None), running("short", ["h-2", "h-3"], hours=2)]
    waits = planned([waiting("1", gpus(2), age_s=99), waiting("2", hours=2)], busy=busy).pending_reasons
    assert (waits["1"].starts_s, waits["2"].starts_s) == (NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S)


def test_a_job_without_a_known_end_on_other_devices_is_in_no_estimates_way() -> None:
    own = (*devices(1), SchedulableDevice("a", "GPU-a", "amd"))
    busy = [running("r", ["h-0"], hours=30), running("long", ["a"], hours=None, ran_s=20 * HOUR_S)]
    job = waiting("1", ResourceRequest(1, GIB, 1, vendor="nvidia"))
    assert planned([job], [host(own=own)], busy).pending_reasons["1"].starts_s == NOW_S + 30 * HOUR_S
    hungry = [busy[0], replace(busy[1], request=ResourceRequest(32, GIB, 1))]
    assert no_estimate(planned([job], [host(own=own)], hungry).pending_reasons["1"]) == "long"
    elsewhere = [
        hungry[0],
        replace(running("long", [], hours=None, on="i"), request=ResourceRequest(32, GIB)),
    ]
    there = [host(own=own), Host("i", 32, 256 * GIB)]
    assert planned([job], there, elsewhere).pending_reasons["1"].starts_s == NOW_S + 30 * HOUR_S


def test_a_job_in_front_of_which_nobody_knows_how_long_it_lasts_is_named() -> None:
    queue = [waiting("big", gpus(4), age_s=99), waiting("long", hours=None, age_s=98), waiting("1", hours=9)]
    waits = planned(queue, busy=BUSY).pending_reasons
    assert (waits["big"].starts_s, waits["long"].starts_s) == (NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S)
    assert no_estimate(waits["1"]) == "long"


def test_behind_a_reservation_without_a_known_end_nothing_is_promised() -> None:
    queue = [waiting("long", gpus(3), hours=None, age_s=99), waiting("1", gpus(2), hours=9)]
    waits = planned([*queue, waiting("2", hours=9, age_s=9)], busy=BUSY).pending_reasons
    assert waits["long"].starts_s == NOW_S + 2 * HOUR_S
    assert no_estimate(waits["1"]) == "long"
    assert "2" not in waits  # beside the reservation there is room
    own = [running("r", ["h-0", "h-1", "h-2", "h-3"], hours=2)]
    beside = planned([*queue, waiting("2", hours=9, age_s=9)], busy=own).pending_reasons["2"]
    assert no_estimate(beside) == ""
    assert beside.starts_s is not None
    assert beside.starts_s < NOW_S + 20 * HOUR_S


def test_when_a_reservation_begins_is_said_only_where_it_is_known() -> None:
    busy = [running("r", ["h-0", "h-1"], hours=None)]
    said = (
        planned([waiting("big", gpus(4), age_s=99), waiting("1", hours=30)], busy=busy)
        .pending_reasons["1"]
        .why
    )
    assert (
        "2 free, reserved for job big, 2 allocated, 1 job ahead; no estimate: job r has no time limit" in said
    )


def test_a_job_that_gives_way_is_gone_soon_and_in_no_estimates_way() -> None:
    idle = running("i", [f"h-{i}" for i in range(4)], hours=None, priority_class="idle", ran_s=9 * HOUR_S)
    waits = planned([waiting("1", gpus(4), priority_class="urgent")], busy=[idle]).pending_reasons
    assert waits["1"].starts_s == NOW_S + 60
    assert "the next until about 17:47, 1 job making room; starts about 17:47" in waits["1"].why
    leaving = replace(idle, stopping=True, ends_s=NOW_S + HOUR_S)
    assert planned([waiting("1")], busy=[leaving]).pending_reasons["1"].starts_s == NOW_S + HOUR_S


def test_a_quota_that_a_job_without_a_known_end_uses_up_gives_no_estimate() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(jobs=2)}))
    busy = [running("long", ["h-0"], owner="ada", hours=None), running("r", ["h-1"], owner="ada")]
    queue = [waiting("1", age_s=99), waiting("2", hours=None, age_s=98), waiting("3")]
    waits = planned(queue, busy=busy, rules=rules).pending_reasons
    assert (waits["1"].starts_s, waits["2"].starts_s) == (NOW_S + HOUR_S, NOW_S + 1.5 * HOUR_S)
    assert no_estimate(waits["3"]) == "2"
    only = SchedulerConfig(quotas=Quotas(users={"ada": Quota(jobs=1)}))
    assert no_estimate(planned(queue[:1], busy=busy[:1], rules=only).pending_reasons["1"]) == "long"
    full = [busy[1], running("long", ["h-0", "h-2", "h-3"], hours=None)]
    assert no_estimate(planned([waiting("1", gpus(2))], busy=full, rules=only).pending_reasons["1"]) == "long"


def test_a_quota_says_whose_how_much_and_until_when() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(devices=2)}, groups={"lab": Quota(jobs=0)}))
    busy = [running("r", ["h-0"], owner="ada")]
    wait = planned([waiting("1", gpus(2))], busy=busy, rules=rules).pending_reasons["1"]
    said = "waits for the limit of user ada: 1 of 2 devices in use or reserved; starts about 18:46"
    assert (wait.why, wait.starts_s) == (said, NOW_S + HOUR_S)
    none = planned([replace(waiting("1", owner="bob"), group="lab")], rules=rules).pending_reasons["1"]
    assert (none.why, none.never) == (
        "never starts: group lab may have 0 jobs at a time, and this job asks for 1",
        True,
    )
    endless = replace(waiting("0", hours=None, age_s=99))
    full = planned([endless, waiting("2", gpus(2))], rules=rules).pending_reasons["2"]
    assert full.why.endswith("1 of 2 devices in use or reserved; no estimate: job 0 has no time limit")


def test_a_quota_counts_the_jobs_of_its_owner_that_go_first() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(jobs=1)}))
    busy = [running("r", ["h-0"], owner="ada")]
    queue = [waiting(f"{i}", age_s=99 - i, hours=2) for i in range(3)]
    waits = planned(queue, busy=busy, rules=rules).pending_reasons
    hours = [((waits[f"{i}"].starts_s or 0) - NOW_S) / HOUR_S for i in range(3)]
    assert hours == [1, 3, 5]
    fans = tuple(Maintenance(NOW_S + at * HOUR_S, NOW_S + (at + 1) * HOUR_S, "fan") for at in (40, 5))
    last = planned(queue, busy=busy, rules=rules, maintenance=fans).pending_reasons["2"]
    assert last.starts_s == NOW_S + 6 * HOUR_S


def test_a_quota_does_not_promise_a_start_that_a_maintenance_forbids() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(jobs=1)))
    busy = [running("r", ["h-0"], owner="ada")]
    fan = Maintenance(NOW_S + 2 * HOUR_S, NOW_S + 3 * HOUR_S, "fan")
    wait = planned([waiting("1", hours=None)], busy=busy, rules=rules, maintenance=(fan,)).pending_reasons[
        "1"
    ]
    assert wait.why.endswith("user ada: 1 of 1 jobs in use or reserved; starts about 20:46")


def test_what_a_reservation_keeps_of_a_quota_is_counted_once() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(jobs=1)))
    queue = [waiting("big", gpus(4), age_s=99), waiting("1", hours=9)]
    waits = planned(queue, busy=BUSY, rules=rules).pending_reasons
    assert waits["1"].starts_s == NOW_S + 3 * HOUR_S


def test_a_job_that_no_host_has_room_for_does_not_wait_for_its_quota() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(jobs=1)))
    busy = [running("r", ["h-0"], owner="ada")]
    assert planned([waiting("1", gpus(9))], busy=busy, rules=rules).pending_reasons["1"].never


def test_a_limit_that_is_too_small_for_ever_is_named_before_one_that_is_reached() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(jobs=1, devices=1)))
    busy = [running("r", ["h-0"], owner="ada")]
    wait = planned([waiting("1", gpus(2))], busy=busy, rules=rules).pending_reasons["1"]
    assert wait.why == "never starts: user ada may have 1 devices at a time, and this job asks for 2"


def test_the_limit_that_is_reached_is_the_one_that_is_named() -> None:
    rules = SchedulerConfig(quotas=Quotas(user=Quota(jobs=9, devices=1)))
    wait = planned([waiting("1")], busy=[running("r", ["h-0"], owner="ada")], rules=rules).pending_reasons[
        "1"
    ]
    assert "user ada: 1 of 1 devices in use or reserved" in wait.why


def test_dependencies_say_what_must_happen() -> None:
    job = replace(
        waiting("1"),
        dependencies=(
            Dependency("x"),
            Dependency("y", DependencyCondition.ANY),
            Dependency("z", DependencyCondition.FAILED),
        ),
    )
    ended = {"z": EndedJob(Outcome.FAILED, NOW_S)}
    assert (
        planned([job], ended=ended).pending_reasons["1"].why
        == "waits for job x to succeed and for job y to end"
    )
    ended["z"] = EndedJob(Outcome.SUCCEEDED, NOW_S)
    wait = planned([job], ended=ended).pending_reasons["1"]
    assert (wait.why, wait.never) == ("never starts: job z succeeded, but it had to fail", True)


def test_who_waits_for_what_never_starts_is_told_why_however_far_away_that_is() -> None:
    ended = {"gone": EndedJob(Outcome.FAILED, NOW_S)}
    dead = replace(waiting("dead"), dependencies=(Dependency("gone"),))
    near = [
        replace(waiting(name), dependencies=(Dependency("busy"), Dependency("dead", DependencyCondition.ANY)))
        for name in "ab"
    ]
    far = replace(waiting("far"), dependencies=(Dependency("a"), Dependency("b"), Dependency("busy")))
    fine = replace(waiting("fine"), dependencies=(Dependency("busy"),))
    waits = planned([dead, *near, far, fine], ended=ended).pending_reasons
    reason = "job dead never starts: job gone failed, but it had to succeed"
    assert waits["dead"].why == reason.removeprefix("job dead ")
    both = "never starts: it waits for job busy to succeed and for job dead to end"
    assert waits["a"].why == f"{both}, and {reason}"
    assert waits["far"].why == f"never starts: it waits for jobs a, b and busy to succeed, and {reason}"
    assert waits["fine"].why == "waits for job busy to succeed"
    assert [waits[name].never for name in ("dead", "a", "far", "fine")] == [True, True, True, False]


def test_who_waits_for_what_no_host_or_no_quota_has_never_starts_either() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"bob": Quota(devices=1)}))
    queue = [
        waiting("large", gpus(9)),
        replace(waiting("later", gpus(9)), not_before_s=NOW_S + HOUR_S),
        waiting("much", gpus(2), owner="bob"),
        replace(waiting("own", gpus(9)), dependencies=(Dependency("busy"),)),
        *(
            replace(waiting(f"behind {name}"), dependencies=(Dependency(name),))
            for name in ("large", "later", "much")
        ),
    ]
    waits = planned(queue, rules=rules).pending_reasons
    assert waits["own"].why.startswith("never starts: no host has 9 GPUs")
    for name in ("large", "later", "much"):
        said = f"never starts: it waits for job {name} to succeed, and job {name} {waits[name].why}"
        assert (waits[f"behind {name}"].why, waits[f"behind {name}"].never) == (said, True)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "job 2"),
        (2, "jobs 2 and 3"),
        (3, "jobs 2, 3 and 4"),
        (4, "jobs 2, 3, 4 and 5"),
        (5, "jobs 2, 3, 4 and 2 others"),
        (99, "jobs 2, 3, 4 and 96 others"),
    ],
)
def test_jobs_that_must_end_alike_are_named_together_a_few_of_them(count: int, said: str) -> None:
    job = replace(waiting("1"), dependencies=tuple(Dependency(str(2 + i)) for i in range(count)))
    assert planned([job]).pending_reasons["1"].why == f"waits for {said} to succeed"


def test_a_job_whose_others_have_all_ended_waits_for_devices_like_everybody() -> None:
    job = replace(waiting("1"), dependencies=(Dependency("x"),))
    said = planned(
        [job],
        busy=[running("r", [f"h-{i}" for i in range(4)])],
        ended={"x": EndedJob(Outcome.SUCCEEDED, NOW_S)},
    )
    assert said.pending_reasons["1"].why.startswith("waits for 1 GPU: 0 free, 4 allocated")


def test_of_many_jobs_those_that_have_ended_are_not_named() -> None:
    job = replace(
        waiting("1"),
        dependencies=(
            *(Dependency(str(i), DependencyCondition.ANY) for i in (2, 3, 4)),
            Dependency("5"),
            Dependency("6"),
        ),
    )
    ended = {each: EndedJob(Outcome.SUCCEEDED, NOW_S) for each in ("3", "5")}
    assert (
        planned([job], ended=ended).pending_reasons["1"].why
        == "waits for job 6 to succeed and for jobs 2 and 4 to end"
    )


def test_a_time_is_named_with_its_date_on_another_day_of_the_sites_clock() -> None:
    job = replace(waiting("1"), not_before_s=NOW_S + 7 * HOUR_S)
    assert planned([job]).pending_reasons["1"].why == "not before 2030-03-18 00:46 UTC"
    assert planned([job], utc_offset_s=1.5 * HOUR_S).pending_reasons["1"].why.endswith(" UTC+01:30")
    assert planned([job], utc_offset_s=-2 * HOUR_S).pending_reasons["1"].why == "not before 22:46 UTC-2"


@pytest.mark.parametrize(
    ("at_s", "said"),
    [(253402300799.0, "9999-12-31 00:00"), (-1e12, "1000-01-01 00:00"), (1e300, "9999-12-31 00:00")],
)
def test_a_time_that_no_calendar_has_can_be_told(at_s: float, said: str) -> None:
    assert format_time(at_s, Snapshot(NOW_S, (), utc_offset_s=2 * HOUR_S)) == said


def test_the_estimate_counts_the_work_of_those_before() -> None:
    queue = [waiting(f"{i:02d}", age_s=99 - i, hours=4) for i in range(12)]
    decided = planned(queue, busy=BUSY)
    late = decided.pending_reasons["11"].starts_s
    assert late is not None
    assert NOW_S + 8 * HOUR_S <= late <= NOW_S + 10 * HOUR_S


def test_those_who_never_start_are_in_nobodys_way() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"eve": Quota(devices=0)}))
    queue = [waiting("a", gpus(9), age_s=99), waiting("b", age_s=98, owner="eve"), waiting("1", gpus(4))]
    assert "first" not in planned(queue, busy=BUSY, rules=rules).pending_reasons["1"].why


def test_jobs_that_want_other_devices_are_not_counted() -> None:
    own = (*devices(2), SchedulableDevice("a", "GPU-a", "amd"))
    amd, nvidia = (ResourceRequest(1, 0, 1, vendor=vendor) for vendor in ("amd", "nvidia"))
    busy = [running("r", ["h-0", "h-1", "a"])]
    queue = [waiting("x", amd, age_s=99), waiting("y", gpus(1), age_s=98),
             waiting("z", ResourceRequest(64), age_s=97),
             waiting("1", nvidia), waiting("2", nvidia, age_s=50)]  # fmt: skip
    waits = planned(queue, [host(own=own), Host("cpu", 64, 0)], busy).pending_reasons
    assert "1 job ahead" in waits["1"].why
    assert "2 jobs ahead" in waits["2"].why


def test_an_overdue_queue_holds_back_what_would_fit() -> None:
    rules = SchedulerConfig(reservations=0)
    queue = [waiting("late", gpus(4), age_s=9e6), waiting("1", ResourceRequest(1))]
    wait = planned(queue, busy=BUSY, rules=rules).pending_reasons["1"]
    assert wait.why.startswith(
        "waits for 1 cpu and 0 B of memory: held back by the queue order; starts about"
    )
    free = planned([queue[0], waiting("1", gpus(1))], busy=BUSY, rules=rules).pending_reasons["1"]
    assert free.why.startswith(
        "waits for 1 GPU: 2 free, 2 allocated, the next until about 19:46, 1 job ahead;"
    )


def test_all_waiting_jobs_are_there() -> None:
    waits = planned([waiting(str(i), gpus(3)) for i in range(3)]).pending_reasons
    assert (len(waits), sorted(waits)) == (2, ["1", "2"])
    assert "0" not in waits


def test_a_quota_opens_no_devices_that_are_out_of_service() -> None:
    rules = SchedulerConfig(quotas=Quotas(users={"ada": Quota(jobs=1)}))
    own = [out(device, DeviceState.DRAINED) for device in devices(2)]
    busy = [replace(running("r", [], owner="ada"), request=ResourceRequest(1, GIB))]
    wait = planned([waiting("1")], [host(own=own)], busy, rules).pending_reasons["1"]
    assert wait.why.endswith("user ada: 1 of 1 jobs in use or reserved; start time unknown")


def test_jobs_that_last_about_as_long_find_a_place_at_the_same_time() -> None:
    queue = [waiting("big", gpus(4), age_s=99), *(waiting(str(i), gpus(3), hours=1 + i / 99) for i in (1, 2))]
    waits = planned(queue, busy=BUSY).pending_reasons
    assert (waits["1"].starts_s, waits["2"].starts_s) == (NOW_S + 3 * HOUR_S, NOW_S + 3 * HOUR_S)


def test_a_third_shell_of_a_user_waits_for_the_limit_of_its_class() -> None:
    shells = [waiting(f"s{i}", priority_class="interactive") for i in range(3)]
    others = [waiting("n"), waiting("b", priority_class="interactive", owner="bob")]
    decided = planned([*shells, *others])
    assert sorted(each.job_id for each in decided.starts) == ["b", "n", "s0", "s1"]
    wait = decided.pending_reasons["s2"].why
    assert wait.startswith("waits for the limit of user ada in class interactive: 2 of 2 jobs")
