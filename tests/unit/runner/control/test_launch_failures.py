"""A launch failure that several jobs have is the host's, whatever its words are."""

from datetime import UTC, datetime, timedelta

from runner.control.launch_failures import FIRST_WAIT_S, KEPT, LONGEST_WAIT_S, LaunchFailures

FULL = "runner-1-7-1: failed to create shim: no space left on device"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def test_the_failure_of_one_job_is_its_own_however_often_it_comes() -> None:
    failures = LaunchFailures()
    assert [failures.note("7", FULL, NOW) for _ in range(5)] == [None] * 5


def test_a_second_job_that_fails_alike_makes_it_the_fault_of_the_host_for_all() -> None:
    failures = LaunchFailures()
    failures.note("7", FULL, NOW)
    found = failures.note("8", FULL.replace("-7-", "-8-"), NOW)
    assert found is not None
    assert (found.first, found.wait_s) == ("7", FIRST_WAIT_S)
    again = failures.note("7", FULL, NOW)
    assert again is not None
    assert again.wait_s == 2 * FIRST_WAIT_S


def test_the_same_failure_on_two_cards_is_one() -> None:
    failures = LaunchFailures()
    cards = ("GPU-5b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0", "GPU-a0b1c2d3-e4f5-0617-2839-4a5b6c7d8e9f")
    found = [
        failures.note(job, f"unresolvable CDI devices nvidia.com/gpu={card}", NOW)
        for job, card in zip("78", cards, strict=True)
    ]
    assert [each is not None for each in found] == [False, True]


def test_other_failures_and_those_of_long_ago_have_nothing_to_do_with_it() -> None:
    failures = LaunchFailures()
    failures.note("7", FULL, NOW)
    assert failures.note("8", "runner-1-8-1: no such mount", NOW) is None
    assert failures.note("8", FULL, NOW + KEPT + timedelta(seconds=1)) is None


def test_what_the_engine_calls_the_hosts_is_so_for_one_job_already() -> None:
    failures = LaunchFailures()
    found = [failures.note("7", FULL, NOW, of_host=True) for _ in range(3)]
    assert [(each.first, each.wait_s) for each in found if each is not None] == [
        ("7", FIRST_WAIT_S),
        ("7", FIRST_WAIT_S),
        ("7", 2 * FIRST_WAIT_S),
    ]


def test_the_wait_grows_up_to_ten_minutes_and_ends_with_a_launch_of_such_a_job_alone() -> None:
    failures = LaunchFailures()
    waits = [found.wait_s for number in range(20) if (found := failures.note(str(number), FULL, NOW))]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT_S
    failures.forget("99")  # it asks for no network, say, and nothing has ever been wrong with it
    assert failures.note("30", FULL, NOW) is not None
    failures.forget("12")
    assert failures.note("30", FULL, NOW) is None
