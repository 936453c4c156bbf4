from runner.base.retry import RETRY_S, RetryState, RetryTable, delay_s


def test_retries_after_errors_back_off_up_to_a_minute() -> None:
    assert [delay_s(errors) for errors in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
    assert delay_s(10**6) == 60


def test_what_is_unavailable_is_retried_at_most_a_tenth_later_than_it_could() -> None:
    retries = RetryTable()
    for now, wait_s in ((100.0, RETRY_S), (102.0, RETRY_S), (200.0, 10.0), (3600.0, 60.0)):
        retries.record_unavailable("1", now)
        assert retries.is_waiting("1", now + wait_s - 0.1)
        assert not retries.is_waiting("1", now + wait_s)
    assert retries.tried("1", 3700.0) == "4 tries in 1h"
    retries.forget("1")
    retries.record_unavailable("1", 4000.0)
    assert retries.is_waiting("1", 4000.0 + RETRY_S - 0.1)
    assert (retries.tried("1", 4001.0), retries.tried("2", 0.0)) == ("", "")


def test_unavailability_does_not_end_a_row_of_errors() -> None:
    retries = RetryTable()
    retries.record_error("1", 0.0)
    retries.record_unavailable("1", 2.0)
    assert retries.record_error("1", 4.0) == RetryState(8.0, 2)
    assert not retries.tried("1", 5.0)


def test_a_retry_begins_once() -> None:
    retries = RetryTable()
    retries.record_error("1", 0.0)
    assert [retries.begin("1", now) for now in (1.9, 2.0, 2.1)] == [False, True, False]
    assert "1" in retries


def test_a_success_ends_a_row_of_errors() -> None:
    retries = RetryTable()
    retries.record_error("1", 0.0)
    retries.record_error("1", 2.0)
    assert retries.begin("1", 6.0)
    assert retries.record_success("1", 6.0)
    assert "1" not in retries
    assert retries.record_error("1", 7.0).errors == 1


def test_a_success_does_not_end_the_wait_of_other_work_of_the_job() -> None:
    retries = RetryTable()
    retries.record_error("1", 0.0)
    retries.record_error("1", 0.0)
    assert not retries.record_success("1", 1.0)
    assert retries.is_waiting("1", 3.9)
    assert retries.begin("1", 4.0)
    assert retries.record_error("1", 4.0).errors == 1


def test_a_job_that_has_moved_on_has_no_retry() -> None:
    retries = RetryTable()
    retries.record_error("1", 0.0)
    retries.forget("1")
    assert not retries.is_waiting("1", 0.0)
    assert not retries.begin("1", 9.0)
