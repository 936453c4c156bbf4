"""State of a device, as a function of what was seen, who has it and what was said."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.instant import Instant
from runner.core.devices.reading import Health, ProcessOnDevice, Sample
from runner.core.devices.state import (
    AdminMark,
    CleanupRules,
    DeviceStatus,
    Remembered,
    StatusInput,
    assign_labels,
    clear_status,
    foreign_processes,
    format_processes,
    next_status,
    remember_status,
    restore_status,
)
from runner.core.scheduler.snapshot import GIB, DeviceState

START = datetime(2030, 1, 1, tzinfo=UTC)
FOREIGNER = ProcessOnDevice(4121, foreign=True, uid=1007, program="python")
STRANGER = ProcessOnDevice(99)
IDLE_BYTES = GIB // 2


def moment(s: float) -> Instant:
    return Instant(START + timedelta(seconds=s), s)


def seen(s: float, *occupants: ProcessOnDevice, used: int | None = IDLE_BYTES, **more: object) -> Sample:
    health = Health(lost=False, used_bytes=used, processes=occupants)
    return Sample(s, replace(health, **more))  # type: ignore[arg-type]  # a test says what it likes


def now_at(s: float, look: Sample | None, before: DeviceStatus | None = None, *holders: str) -> DeviceStatus:
    return next_status(StatusInput(before, look, frozenset(holders), None, moment(s), 80 * GIB))


def free(s: float = 0.0) -> DeviceStatus:
    standing = now_at(s, seen(s))
    assert standing.state is DeviceState.FREE
    return standing


def given_back(s: float = 10.0) -> DeviceStatus:
    """Return a device that job 7 had until this moment, and that was looked at just before."""
    return now_at(s, seen(s - 1, ProcessOnDevice(5, job="7"), used=40 * GIB), now_at(1, seen(1), free(), "7"))


# --- before it is lent


def test_a_device_that_nobody_has_looked_at_is_not_lent() -> None:
    standing = now_at(0, None)
    assert (standing.state, standing.reason) == (DeviceState.DIRTY, "not looked at yet")


def test_a_look_that_found_it_clean_makes_it_free() -> None:
    assert (free().state, free().reason, free().since) == (DeviceState.FREE, "", START)


def test_a_driver_that_has_stopped_answering_closes_the_device_and_opens_it_again() -> None:
    standing = now_at(30, seen(5), free())
    assert (standing.state, standing.reason) == (DeviceState.DIRTY, "its driver has not answered for 25s")
    assert now_at(31, seen(31), standing).state is DeviceState.FREE


def test_where_nobody_looks_at_devices_they_are_as_good_as_clean() -> None:
    case = StatusInput(None, None, frozenset(), None, moment(0), watched=False)
    lent = next_status(replace(case, before=next_status(case), holders=frozenset({"7"})))
    assert (next_status(case).state, lent.state) == (DeviceState.FREE, DeviceState.ALLOCATED)
    assert next_status(replace(case, before=lent)).state is DeviceState.FREE


def test_a_foreign_process_is_named() -> None:
    standing = now_at(1, seen(1, FOREIGNER), free())
    assert standing.state is DeviceState.FOREIGN
    assert standing.reason == "a foreign process (pid 4121, uid 1007, python)"


def test_a_process_that_cannot_be_read_is_unknown_and_never_foreign() -> None:
    standing = now_at(1, seen(1, STRANGER), free())
    assert (standing.state, standing.reason) == (
        DeviceState.DIRTY,
        "used by an unknown process (pid 99)",
    )


def test_a_process_of_a_job_that_does_not_have_it_keeps_it_from_being_lent() -> None:
    standing = now_at(1, seen(1, ProcessOnDevice(5, job="3", uid=1001, user="ann")), free())
    assert (standing.state, standing.reason) == (
        DeviceState.DIRTY,
        "used by job 3 (pid 5, uid 1001, ann)",
    )


def test_memory_that_no_process_owns_up_to_keeps_it_from_being_lent() -> None:
    standing = now_at(1, seen(1, used=3 * GIB), free())
    assert standing.state is DeviceState.DIRTY
    assert standing.reason == "3 GiB in use by no process that can be seen, where 0.5 GiB is normal"


def test_at_the_first_look_only_plenty_of_memory_is_suspicious() -> None:
    assert now_at(0, seen(0, used=2 * GIB)).state is DeviceState.FREE
    standing = now_at(0, seen(0, used=3 * GIB))
    assert (standing.state, standing.reason) == (
        DeviceState.DIRTY,
        "3 GiB in use by no process that can be seen",
    )


def test_a_device_whose_memory_nobody_knows_is_judged_by_its_processes() -> None:
    assert now_at(0, seen(0, used=None)).state is DeviceState.FREE
    of_unknown_size = StatusInput(None, seen(0, used=9 * GIB), frozenset(), None, moment(0))
    assert next_status(of_unknown_size).state is DeviceState.FREE


def test_the_baseline_is_the_least_that_was_ever_in_use() -> None:
    standing = now_at(1, seen(1, used=GIB // 4), free())
    assert standing.baseline_bytes == GIB // 4
    assert now_at(2, seen(2, used=GIB // 3), standing).baseline_bytes == GIB // 4


# --- what its driver says


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (seen(1, lost=True), "it no longer answers"),
        (seen(1, recovery="gpu_reset"), "its driver asks for gpu_reset"),
    ],
)
def test_a_broken_device_is_quarantined_also_while_it_is_lent(look: Sample, reason: str) -> None:
    for holders in ((), ("7",)):
        standing = now_at(1, look, free(), *holders)
        assert (standing.state, standing.reason) == (DeviceState.QUARANTINED, reason)


def test_one_that_nothing_can_compute_on_is_not_lent_for_as_long_as_that_lasts() -> None:
    standing = now_at(1, seen(1, unusable="it is in MIG mode and has no instances"), free())
    assert (standing.state, standing.reason) == (DeviceState.DIRTY, "it is in MIG mode and has no instances")
    assert now_at(2, seen(2), standing).state is DeviceState.FREE


def test_a_recovery_action_of_none_is_none() -> None:
    assert now_at(1, seen(1, recovery="none"), free()).state is DeviceState.FREE


# --- while it is lent


def test_a_lent_device_stays_lent_whatever_is_on_it_or_unknown() -> None:
    for look in (seen(1, FOREIGNER), seen(1, used=70 * GIB), None):
        standing = now_at(1, look, free(), "12", "7")
        assert (standing.state, standing.reason) == (DeviceState.ALLOCATED, "job 7, job 12")


def test_an_intruder_is_who_is_known_not_to_be_the_holder() -> None:
    own, other = ProcessOnDevice(1, job="7"), ProcessOnDevice(2, job="8")
    lent = now_at(1, seen(1), free(), "7")
    assert foreign_processes(lent, seen(2, own, other, STRANGER, FOREIGNER)) == (other, FOREIGNER)
    assert foreign_processes(free(), seen(2, FOREIGNER)) == ()
    assert foreign_processes(lent, None) == ()
    assert foreign_processes(lent, seen(2, processes=None)) == ()


def test_what_is_left_of_the_job_before_is_no_intruder_of_a_shared_device() -> None:
    both = now_at(1, seen(1), free(), "7", "8")
    one = now_at(2, seen(2.5, ProcessOnDevice(5, job="7")), both, "8")
    assert foreign_processes(one, seen(2.5, ProcessOnDevice(5, job="7"))) == ()


# --- after it came back


def test_a_device_that_came_back_is_dirty_until_a_later_look_finds_it_clean() -> None:
    back = given_back()
    assert (back.state, back.reason) == (DeviceState.DIRTY, "after job 7: not looked at since")
    clean = now_at(11, seen(10.5), back)
    assert (clean.state, clean.uncleaned_jobs, clean.returned_at) == (DeviceState.FREE, frozenset(), None)


def test_what_is_still_on_it_is_said() -> None:
    standing = now_at(11, seen(10.5, ProcessOnDevice(5, job="7"), FOREIGNER, STRANGER), given_back())
    assert standing.reason == (
        "after job 7: used by job 7 (pid 5), a foreign process (pid 4121, uid 1007, python) and 1 more"
    )


def test_one_that_is_not_clean_in_time_is_quarantined() -> None:
    standing = now_at(71, seen(70.5, used=20 * GIB), given_back())
    assert (standing.state, standing.reason) == (
        DeviceState.QUARANTINED,
        "not clean 1m after job 7: 20 GiB in use by no process that can be seen, where 0.5 GiB is normal",
    )


def test_one_whose_driver_does_not_answer_any_more_is_quarantined_too() -> None:
    assert now_at(40, seen(9), given_back()).reason == "after job 7: its driver has not answered for 31s"
    assert now_at(71, seen(9), given_back()).state is DeviceState.QUARANTINED


def test_a_clock_that_jumps_quarantines_nothing() -> None:
    back = given_back()
    case = StatusInput(
        back, seen(10.5), frozenset(), None, Instant(START + timedelta(days=9), 11.0), 80 * GIB
    )
    assert next_status(case).state is DeviceState.FREE


def test_a_shared_device_is_lent_on_while_one_of_its_jobs_leaves() -> None:
    both = now_at(1, seen(1), free(), "7", "8")
    going = now_at(
        3, seen(2.9, ProcessOnDevice(5, job="7"), ProcessOnDevice(6, job="8"), used=70 * GIB), both, "8"
    )
    assert (going.state, going.uncleaned_jobs) == (DeviceState.ALLOCATED, frozenset({"7"}))
    still = now_at(4, seen(3.5, ProcessOnDevice(5, job="7")), going, "8")
    assert (still.state, still.uncleaned_jobs) == (DeviceState.ALLOCATED, frozenset({"7"}))
    gone = now_at(5, seen(4.5, ProcessOnDevice(6, job="8"), used=70 * GIB), still, "8")
    assert (gone.state, gone.uncleaned_jobs) == (DeviceState.ALLOCATED, frozenset())
    late = now_at(70, seen(69, ProcessOnDevice(5, job="7")), still, "8")
    assert (late.state, late.reason) == (
        DeviceState.QUARANTINED,
        "not clean 1m after job 7: still used by job 7 (pid 5)",
    )


def test_a_job_that_gets_the_device_again_has_not_left_it() -> None:
    again = now_at(12, seen(10.5), given_back(), "7")
    assert (again.state, again.uncleaned_jobs, again.returned_at) == (
        DeviceState.ALLOCATED,
        frozenset(),
        None,
    )


# --- what was said


@pytest.mark.parametrize("state", [DeviceState.DRAINED, DeviceState.QUARANTINED])
def test_a_word_holds_whatever_is_seen_and_whoever_has_it(state: DeviceState) -> None:
    word = AdminMark(state, "new fan", "ann", START - timedelta(days=1))
    for holders in (frozenset[str](), frozenset({"7"})):
        for look in (seen(1), seen(1, lost=True), None):
            standing = next_status(StatusInput(free(), look, holders, word, moment(1), 80 * GIB))
            assert (standing.state, standing.reason, standing.since) == (state, "new fan", word.since)


def test_who_looked_and_resumed_has_said_what_is_normal() -> None:
    back = now_at(20, seen(19.5, used=5 * GIB), given_back())
    fine = clear_status(back, seen(19.5, used=5 * GIB), 20)
    assert now_at(21, seen(20.5, used=5 * GIB), fine).state is DeviceState.FREE
    assert clear_status(back, seen(19.5, FOREIGNER), 20).baseline_bytes == back.baseline_bytes
    assert clear_status(back, None, 20).baseline_bytes == back.baseline_bytes


def test_who_resumed_what_nobody_has_seen_since_waits_for_a_look() -> None:
    before = now_at(90, seen(5), given_back())
    assert before.state is DeviceState.QUARANTINED
    again = now_at(91, seen(90.5), clear_status(before, seen(5), 91))
    assert (again.state, again.reason) == (DeviceState.DIRTY, "after job 7: not looked at since")
    assert now_at(92, seen(91.5), again).state is DeviceState.FREE


def test_since_is_when_the_state_began_and_not_when_it_was_looked_at_again() -> None:
    assert now_at(9, seen(9), free()).since == START
    assert now_at(9, seen(9, FOREIGNER), free()).since == START + timedelta(seconds=9)


# --- for all of it

OCCUPANTS = st.sampled_from([FOREIGNER, STRANGER, ProcessOnDevice(5, job="7"), ProcessOnDevice(6, job="8")])
LOOKS = st.one_of(
    st.none(),
    st.just((1.0, (), IDLE_BYTES, False)),
    st.builds(
        lambda age, occupants, used, lost: (age, tuple(occupants), used, lost),
        st.floats(0, 30),
        st.lists(OCCUPANTS, max_size=2, unique=True),
        st.sampled_from([None, IDLE_BYTES, 30 * GIB]),
        st.sampled_from([None, False, True]),
    ),
)
STEPS = st.lists(
    st.tuples(st.floats(0.1, 40), LOOKS, st.just(frozenset[str]()) | st.frozensets(st.sampled_from("78"))),
    max_size=12,
)


@given(STEPS)
def test_a_device_is_free_only_after_a_fresh_look_that_found_nobody_on_it(
    steps: list[
        tuple[
            float, tuple[float, tuple[ProcessOnDevice, ...], int | None, bool | None] | None, frozenset[str]
        ]
    ],
) -> None:
    standing: DeviceStatus | None = None
    at, care = 0.0, CleanupRules()
    for passed, said, holders in steps:
        at += passed
        look = said and Sample(at - said[0], Health(said[3], used_bytes=said[2], processes=said[1]))
        before, standing = (
            standing,
            next_status(StatusInput(standing, look or None, holders, None, moment(at), 80 * GIB)),
        )
        assert standing.holders == holders
        assert not standing.uncleaned_jobs & holders
        if standing.state is DeviceState.FREE:
            assert look
            assert not holders
            assert look.at >= at - care.max_reading_age_s
            assert not look.health.processes
            assert not look.health.lost
            assert before is None or not before.holders  # never without a look since it came back
        if standing.state is DeviceState.ALLOCATED:
            assert holders


# --- names


def test_what_a_slow_device_is_kept_with_is_what_the_next_daemon_begins_with() -> None:
    before = now_at(30, seen(30, used=40 * GIB), given_back())
    assert remember_status(before, 12.0) == Remembered(
        IDLE_BYTES
    )  # it came back 2 s ago: most are clean at the next look
    told = remember_status(before, 30.0)
    assert told == Remembered(IDLE_BYTES, frozenset({"7"}), 10.0)
    begins = restore_status(told, moment(31), CleanupRules())
    assert (begins.state, begins.since) == (DeviceState.DIRTY, START + timedelta(seconds=10))
    assert now_at(71, seen(71, used=40 * GIB), begins).state is DeviceState.QUARANTINED
    assert now_at(69, seen(69), begins).state is DeviceState.FREE


@pytest.mark.parametrize(("within_s", "left_s"), [(60.0, 10.0), (10.0, 10.0), (5.0, 5.0)])
def test_after_a_long_time_without_a_daemon_there_is_time_for_a_look(within_s: float, left_s: float) -> None:
    care = CleanupRules(clean_within_s=within_s)
    begins = restore_status(Remembered(IDLE_BYTES, frozenset({"7"}), 10.0), moment(5000), care)
    assert begins.returned_at == 5000 + left_s - within_s
    assert restore_status(Remembered(IDLE_BYTES), moment(5000), care).baseline_bytes == IDLE_BYTES


def test_a_name_stays_with_its_device_when_the_driver_counts_anew() -> None:
    first = assign_labels({}, [("a", "GPU-0"), ("b", "GPU-1"), ("c", "GPU-2")])
    again = assign_labels(first, [("a", "GPU-0"), ("c", "GPU-1"), ("d", "GPU-2")])
    assert again == {"a": "GPU-0", "b": "GPU-1", "c": "GPU-2", "d": "GPU-3"}


def test_processes_in_words_are_two_and_a_number() -> None:
    assert format_processes([STRANGER]) == "an unknown process (pid 99)"
    assert format_processes([STRANGER] * 4).endswith("(pid 99) and 2 more")


def test_whose_every_process_is_is_known_or_not() -> None:
    assert seen(1, FOREIGNER, ProcessOnDevice(5, job="7")).health.owners_known
    assert not seen(1, FOREIGNER, STRANGER).health.owners_known
    assert not seen(1, processes=None).health.owners_known
