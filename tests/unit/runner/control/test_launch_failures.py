"""A launch failure that several jobs have is the host's, whatever its words are."""

from runner.control.launch_failures import FIRST_WAIT_S, LONGEST_WAIT_S, LaunchFailures

FULL = "runner-1-7-1: failed to create shim: no space left on device"


def test_the_failure_of_one_job_is_its_own_however_often_it_comes() -> None:
    failures = LaunchFailures()
    assert [failures.note("7", FULL) for _ in range(5)] == [None] * 5


def test_a_second_job_that_fails_alike_makes_it_the_fault_of_the_host_for_all() -> None:
    failures = LaunchFailures()
    failures.note("7", FULL)
    found = failures.note("8", FULL.replace("-7-", "-8-"))
    assert found is not None
    assert (found.first, found.wait_s) == ("7", FIRST_WAIT_S)
    again = failures.note("7", FULL)
    assert again is not None
    assert again.wait_s == 2 * FIRST_WAIT_S


def test_other_failures_have_nothing_to_do_with_it() -> None:
    failures = LaunchFailures()
    failures.note("7", FULL)
    assert failures.note("8", "runner-1-8-1: no such mount") is None


def test_the_wait_grows_up_to_ten_minutes_and_ends_with_a_launch() -> None:
    failures = LaunchFailures()
    waits = [found.wait_s for number in range(20) if (found := failures.note(str(number), FULL))]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT_S
    failures.forget()
    assert failures.note("30", FULL) is None
