from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from runner.core.placement import Free, Lend, Needs, Wait, Waiting, place

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GIB = 1024**3
FREE = Free(4.0, 8 * GIB, (("GPU-a", "nvidia"), ("GPU-b", "nvidia"), ("amd-0", "amd")))


def waiting(job_id: str, needs: Needs, priority: int = 50, age_s: int = 0) -> Waiting:
    return Waiting(job_id, needs, priority, NOW - timedelta(seconds=age_s))


def test_devices_are_lent_in_order() -> None:
    queue = [waiting("1", Needs(1, GIB, 1, "nvidia"), age_s=9), waiting("2", Needs(1, GIB, 1))]
    assert place(queue, FREE, NOW) == (Lend("1", ("GPU-a",)), Lend("2", ("GPU-b",)))


def test_the_vendor_is_respected() -> None:
    assert place([waiting("1", Needs(1, GIB, 1, "amd"))], FREE, NOW) == (Lend("1", ("amd-0",)),)


def test_a_waiting_job_learns_all_that_it_lacks() -> None:
    answer = place([waiting("1", Needs(9, 9 * GIB, 3, "nvidia"))], FREE, NOW)
    why = "waits for 3 gpus (2 free) and 9 cpus (4 free) and 9.0 GiB of memory (8.0 GiB free)"
    assert answer == (Wait("1", why),)


def test_priority_goes_first_and_age_second() -> None:
    queue = [
        waiting("1", Needs(4, GIB)),
        waiting("2", Needs(4, GIB), age_s=5),
        waiting("3", Needs(4, GIB), 90),
    ]
    assert [answer.job_id for answer in place(queue, FREE, NOW)] == ["3", "2", "1"]


def test_a_backoff_is_waited_for_and_reserves_nothing() -> None:
    early = Waiting("1", Needs(4, GIB), 90, NOW, not_before=NOW + timedelta(seconds=3))
    assert place([early, waiting("2", Needs(4, GIB))], FREE, NOW) == (
        Wait("1", "backoff, 3 s left"),
        Lend("2", ()),
    )


def test_a_big_job_is_not_starved_by_small_ones_that_came_later() -> None:
    queue = [
        waiting("big", Needs(1, GIB, 3, "nvidia"), age_s=9),
        waiting("small", Needs(1, GIB, 1, "nvidia")),
    ]
    answers = place(queue, FREE, NOW)
    assert [type(answer) for answer in answers] == [Wait, Wait]
    assert place([queue[0], waiting("cpu", Needs(1, GIB))], FREE, NOW)[1] == Lend("cpu", ())


NEEDS = st.builds(Needs, st.integers(1, 6).map(float), st.integers(0, 9 * GIB), st.integers(0, 4))


@given(st.lists(NEEDS, max_size=8))
def test_nothing_is_lent_twice_or_beyond_what_is_free(wanted: list[Needs]) -> None:
    answers = place([waiting(str(i), needs) for i, needs in enumerate(wanted)], FREE, NOW)
    lent = [answer for answer in answers if isinstance(answer, Lend)]
    devices = [uuid for answer in lent for uuid in answer.devices]
    assert len(devices) == len(set(devices))
    assert sum(wanted[int(answer.job_id)].cpus for answer in lent) <= FREE.cpus
    assert sum(wanted[int(answer.job_id)].memory_bytes for answer in lent) <= FREE.memory_bytes


def test_a_device_that_a_job_avoids_is_left_to_others() -> None:
    wish = Needs(1, GIB, 1, "nvidia")
    queue = [waiting("1", replace(wish, avoid=("GPU-a",)), age_s=9), waiting("2", wish)]
    assert place(queue, FREE, NOW) == (Lend("1", ("GPU-b",)), Lend("2", ("GPU-a",)))
    picky = waiting("1", replace(wish, avoid=("GPU-a", "GPU-b")))
    assert place([picky], FREE, NOW) == (Wait("1", "waits for 1 gpus (0 free)"),)
