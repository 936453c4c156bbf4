from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.contract import ExitCode
from runner.core import retry
from runner.core.retry import Ended, Finish, GiveUp, Hold, Ledger, Resume, RetryLimits, decide

LIMITS = RetryLimits(max_attempts=4, no_progress=3)
DIED = Ended(137, "killed", checkpoint_step=40)


def test_the_codes_are_those_of_the_contract() -> None:
    assert set(retry.POINTLESS) == {ExitCode.INVALID_SPEC, ExitCode.DO_NOT_RESTART, ExitCode.NON_FINITE}
    assert (retry.STOPPED, retry.NO_VALID_CHECKPOINT) == (ExitCode.STOPPED, ExitCode.NO_VALID_CHECKPOINT)


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        pytest.param(Ended(0, "completed", completed=True), Finish("completed"), id="done"),
        pytest.param(
            Ended(0, "completed", completed=True, oom_seen=True),
            Finish("completed, although a child process was killed for memory"),
            id="done-with-oom",
        ),
        pytest.param(
            Ended(78, "invalid_spec", "no such step"),
            GiveUp("the program refused its spec or the saved state: no such step"),
            id="spec",
        ),
        pytest.param(Ended(93, "x"), GiveUp("the program asked not to be restarted"), id="93"),
        pytest.param(
            Ended(97, "x"), GiveUp("the loss is not finite; the weights were not updated"), id="poisoned"
        ),
        pytest.param(Ended(99, "x"), Hold("checkpoints exist and none is valid"), id="99"),
        pytest.param(
            Ended(1, "x", checkpoints_rejected=("step-00000040: torn",)),
            Hold("checkpoints exist and none is valid: step-00000040: torn"),
            id="all-torn",
        ),
    ],
)
def test_the_first_matching_rule_answers(ended: Ended, verdict: object) -> None:
    assert decide(LIMITS, Ledger(), ended) == verdict


def test_anything_else_is_resumed_with_the_reason() -> None:
    verdict = decide(LIMITS, Ledger(), DIED)
    assert verdict == Resume(timedelta(seconds=5), "killed: resuming from step 40", Ledger(1, 40, 1))


def test_a_torn_checkpoint_is_mentioned() -> None:
    ended = replace(DIED, checkpoints_rejected=("step-00000050: torn",))
    verdict = decide(LIMITS, Ledger(), ended)
    assert isinstance(verdict, Resume)
    assert verdict.why == "killed: resuming from step 40, 1 invalid skipped"


def test_an_attempt_without_any_checkpoint_starts_over() -> None:
    verdict = decide(LIMITS, Ledger(), Ended(1, "exception"))
    assert isinstance(verdict, Resume)
    assert verdict.why == "exception: no checkpoint yet, starting from step 0"


def test_the_brake_stops_attempts_that_end_at_the_same_step() -> None:
    ledger = Ledger()
    for _ in range(2):
        verdict = decide(LIMITS, ledger, DIED)
        assert isinstance(verdict, Resume)
        ledger = verdict.ledger
    assert decide(LIMITS, ledger, DIED) == GiveUp(
        "no progress: 3 attempts in a row ended at checkpoint step 40; the last: killed"
    )


def test_progress_releases_the_brake_but_not_the_count() -> None:
    ledger = Ledger()
    for step in (10, 20, 30):
        verdict = decide(LIMITS, ledger, replace(DIED, checkpoint_step=step))
        assert isinstance(verdict, Resume)
        ledger = verdict.ledger
    assert ledger == Ledger(charged=3, last_step=30, same_step=1)
    assert decide(LIMITS, ledger, replace(DIED, checkpoint_step=40)) == GiveUp(
        "all 4 attempts are used; the last: killed"
    )


def test_a_stop_from_outside_that_saved_is_free_as_long_as_it_advances() -> None:
    stopped = Ended(75, "stopped", checkpoint_step=50)
    verdict = decide(LIMITS, Ledger(2, 40, 2), stopped)
    assert verdict == Resume(
        timedelta(seconds=5), "stopped from outside: resuming from step 50", Ledger(2, 50, 0)
    )
    again = decide(LIMITS, Ledger(2, 50, 0), stopped)
    assert isinstance(again, Resume)
    assert again.ledger.charged == 3


@given(st.integers(0, 10_000))
def test_the_backoff_doubles_up_to_its_limit(charged: int) -> None:
    delay = LIMITS.delay_after(charged)
    assert timedelta(seconds=5) <= delay <= timedelta(minutes=5)
    assert LIMITS.delay_after(charged + 1) in {delay, delay * 2, LIMITS.backoff_max}


@given(
    st.lists(
        st.builds(
            Ended,
            st.sampled_from([0, 1, 75, 137, None]),
            st.just("x"),
            checkpoint_step=st.none() | st.integers(0, 50),
        ),
        min_size=60,
        max_size=60,
    )
)
def test_no_history_is_tried_for_ever(history: list[Ended]) -> None:
    """Attempts that count are bounded, and free ones must each bring a newer checkpoint."""
    ledger, free = Ledger(), 0
    for ended in history:
        verdict = decide(LIMITS, ledger, ended)
        if not isinstance(verdict, Resume):
            break
        free += verdict.ledger.charged == ledger.charged
        ledger = verdict.ledger
        assert ledger.charged < LIMITS.max_attempts
    else:
        assert free > len(history) - LIMITS.max_attempts
