from runner.base.retry import RETRY_S, RetryState, RetryTable, delay_s


def test_mistakes_in_a_row_are_given_ever_more_time_up_to_a_minute() -> None:
    assert [delay_s(mistakes) for mistakes in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
    assert delay_s(10**6) == 60


def test_a_silent_world_is_asked_again_at_a_steady_pace() -> None:
    retries = RetryTable()
    for now in (0.0, 2.0, 4.0):
        retries.unanswered("1", now)
        assert retries.waits("1", now + RETRY_S - 0.1)
        assert not retries.waits("1", now + RETRY_S)


def test_silence_between_mistakes_does_not_make_up_for_them() -> None:
    retries = RetryTable()
    retries.mistaken("1", 0.0)
    retries.unanswered("1", 2.0)
    assert retries.mistaken("1", 4.0) == RetryState(8.0, 2)


def test_a_wait_is_over_once() -> None:
    retries = RetryTable()
    retries.mistaken("1", 0.0)
    assert [retries.begin("1", now) for now in (1.9, 2.0, 2.1)] == [False, True, False]
    assert "1" in retries


def test_what_works_again_is_forgiven_its_mistakes() -> None:
    retries = RetryTable()
    retries.mistaken("1", 0.0)
    retries.mistaken("1", 2.0)
    assert retries.begin("1", 6.0)
    assert retries.worked("1", 6.0)
    assert "1" not in retries
    assert retries.mistaken("1", 7.0).mistakes == 1


def test_one_success_does_not_end_the_wait_of_something_else() -> None:
    retries = RetryTable()
    retries.mistaken("1", 0.0)
    retries.mistaken("1", 0.0)
    assert not retries.worked("1", 1.0)
    assert retries.waits("1", 3.9)
    assert retries.begin("1", 4.0)
    assert retries.mistaken("1", 4.0).mistakes == 1


def test_a_job_that_has_moved_on_begins_anew() -> None:
    retries = RetryTable()
    retries.mistaken("1", 0.0)
    retries.forget("1")
    assert not retries.waits("1", 0.0)
    assert not retries.begin("1", 9.0)
