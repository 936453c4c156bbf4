"""Every pair of state and event, and every order of events that chance comes up with."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from runner.core import story
from runner.core.job import (
    Allocation,
    Attempt,
    CancelRequested,
    DeadlinePassed,
    Event,
    Exited,
    Finished,
    From,
    GracePassed,
    Held,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Job,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Outcome,
    Placed,
    PrepareImage,
    Preparing,
    Queued,
    Remove,
    RestartRequested,
    Running,
    Start,
    Starting,
    State,
    Stopping,
    StopReason,
    Terminate,
)
from runner.core.lifecycle import IllegalTransition, advance, due, implied
from runner.core.retry import Ended, Ledger, RetryLimits

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
GPUS = Allocation(("GPU-a",))
FIRST = Attempt(1, 1)
JOB = Job("1", Preparing(NOW), attempts=1)
DIED = Ended(1, "exception", "boom")
DONE = Ended(0, "completed", completed=True)

STATES: tuple[State, ...] = (
    Preparing(NOW),
    Queued(NOW, "img"),
    Starting(NOW, "img", FIRST, GPUS),
    Running(NOW, "img", FIRST, GPUS, deadline=LATER),
    Stopping(NOW, "img", FIRST, GPUS, StopReason.CANCELLED, kill_at=LATER),
    Held(NOW, "why"),
    Finished(NOW, Outcome.FAILED, "why"),
)
EVENTS: tuple[Event, ...] = (
    ImageReady(LATER, "img"),
    ImageFailed(LATER, "no"),
    ImageMissing(LATER),
    Placed(LATER, GPUS),
    Launched(LATER),
    LaunchFailed(LATER, "no"),
    CancelRequested(LATER, "ann"),
    RestartRequested(LATER, "ann", Start(From.SCRATCH)),
    DeadlinePassed(LATER),
    GracePassed(LATER),
    Exited(LATER, 1, DIED),
)
LEGAL = {
    "preparing": {"image_ready", "image_failed", "cancel_requested"},
    "queued": {"placed", "cancel_requested"},
    "starting": {
        "launched",
        "launch_failed",
        "image_missing",
        "exited",
        "cancel_requested",
        "restart_requested",
    },
    "running": {"exited", "cancel_requested", "restart_requested", "deadline_passed"},
    "stopping": {"launched", "launch_failed", "image_missing", "exited", "cancel_requested", "grace_passed"},
    "held": {"cancel_requested", "restart_requested"},
    "finished": {"restart_requested"},
}


def running(job: Job = JOB, deadline: datetime | None = None) -> Job:
    return replace(job, state=Running(NOW, "img", FIRST, GPUS, deadline))


def stopping(reason: StopReason, job: Job = JOB) -> Job:
    return replace(job, state=Stopping(NOW, "img", FIRST, GPUS, reason, kill_at=LATER))


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_only_the_pairs_in_the_diagram_are_legal(state: State, event: Event) -> None:
    job = replace(JOB, state=state)
    if event.kind in LEGAL[state.kind]:
        after, _ = advance(job, event)
        assert story.tell(event, after)
    else:
        with pytest.raises(IllegalTransition, match=f"job 1: {type(event).__name__} while"):
            advance(job, event)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_survives_the_way_into_the_store_and_back(event: Event) -> None:
    adapter: TypeAdapter[Event] = TypeAdapter(Event)
    assert adapter.validate_json(adapter.dump_json(event)) == event


@pytest.mark.parametrize("state", STATES)
def test_every_state_survives_the_way_into_the_store_and_back(state: State) -> None:
    adapter, job = TypeAdapter(Job), replace(JOB, state=state)
    assert adapter.validate_json(adapter.dump_json(job)) == job


def test_the_way_of_a_job_that_goes_well() -> None:
    job = replace(JOB, attempts=0)
    job, commands = advance(job, ImageReady(NOW, "img"))
    assert (job.state, commands) == (Queued(NOW, "img"), ())
    job, commands = advance(job, Placed(NOW, GPUS))
    assert commands == (Launch(FIRST, "img", GPUS),)
    job, commands = advance(job, Launched(NOW))
    assert (job.state, commands) == (Running(NOW, "img", FIRST, GPUS), ())
    job, commands = advance(job, Exited(LATER, 1, DONE))
    assert (job.state, commands) == (Finished(LATER, Outcome.SUCCEEDED, "completed"), (Remove(1),))


def test_an_attempt_that_dies_is_resumed_after_a_backoff() -> None:
    job, commands = advance(running(), Exited(LATER, 1, replace(DIED, checkpoint_step=40)))
    assert job.state == Queued(
        LATER, "img", "exception: resuming from step 40", not_before=LATER + timedelta(seconds=5)
    )
    assert job.ledger == Ledger(charged=1, last_step=40, same_step=1)
    assert commands == (Remove(1),)


def test_a_job_without_any_valid_checkpoint_is_held_for_a_person() -> None:
    job, commands = advance(running(), Exited(LATER, 1, Ended(99, "no_valid_checkpoint")))
    assert job.state == Held(LATER, "checkpoints exist and none is valid")
    assert commands == (Remove(1),)


def test_news_about_an_older_attempt_is_refused() -> None:
    with pytest.raises(IllegalTransition):
        advance(running(), Exited(LATER, 7, DIED))


def test_the_running_time_of_all_attempts_counts_against_the_limit() -> None:
    job = replace(JOB, time_limit=timedelta(minutes=10), ran=timedelta(minutes=9))
    job, _ = advance(replace(job, state=STATES[2]), Launched(NOW))
    assert job.state == Running(NOW, "img", FIRST, GPUS, deadline=NOW + timedelta(minutes=1))
    assert due(job, NOW) is None
    assert due(job, LATER) == DeadlinePassed(LATER)
    job, commands = advance(job, DeadlinePassed(LATER))
    assert commands == (Terminate(1),)
    job, _ = advance(job, Exited(LATER, 1, Ended(75, "stopped")))
    assert job.state == Finished(LATER, Outcome.FAILED, "time limit of 0:10:00 reached")


def test_a_time_limit_that_is_used_up_leaves_a_deadline_in_the_past_of_nobody() -> None:
    job = replace(JOB, time_limit=timedelta(minutes=1), ran=timedelta(minutes=9), state=STATES[2])
    job, _ = advance(job, Launched(NOW))
    assert due(job, NOW) == DeadlinePassed(NOW)


def test_grace_ends_with_a_kill_and_only_once() -> None:
    job = stopping(StopReason.CANCELLED)
    assert due(job, NOW) is None
    assert due(job, LATER) == GracePassed(LATER)
    job, commands = advance(job, GracePassed(LATER))
    assert commands == (Kill(1),)
    assert due(job, LATER) is None
    assert implied(job) == (Kill(1),)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (StopReason.CANCELLED, Finished(LATER, Outcome.CANCELLED, "cancelled")),
        (StopReason.RESTART, Queued(LATER, "img", "restart, as asked")),
    ],
)
def test_a_job_that_we_stopped_ends_with_our_reason(reason: StopReason, state: State) -> None:
    job, commands = advance(stopping(reason), Exited(LATER, 1, DIED))
    assert (job.state, commands) == (state, (Remove(1),))


def test_a_job_that_completes_while_it_is_stopped_has_succeeded() -> None:
    job, _ = advance(stopping(StopReason.CANCELLED), Exited(LATER, 1, DONE))
    assert job.state == Finished(LATER, Outcome.SUCCEEDED, "completed while it was asked to stop")


def test_a_job_cancelled_while_it_starts_is_told_again_once_it_has_started() -> None:
    job, commands = advance(replace(JOB, state=STATES[2]), CancelRequested(NOW, "ann"))
    assert commands == (Terminate(1),)
    job, commands = advance(job, Launched(LATER))
    assert commands == (Terminate(1),)
    job, _ = advance(job, GracePassed(LATER))
    _, commands = advance(job, Launched(LATER))
    assert commands == (Kill(1),)


def test_cancelling_overrides_a_restart_that_is_under_way() -> None:
    job, commands = advance(stopping(StopReason.RESTART), CancelRequested(LATER, "ann"))
    assert isinstance(job.state, Stopping)
    assert (job.state.reason, job.state.by, commands) == (StopReason.CANCELLED, "ann", ())


@pytest.mark.parametrize("state", STATES[:6])
def test_whoever_cancels_a_job_is_named_once(state: State) -> None:
    job, _ = advance(replace(JOB, state=state), CancelRequested(NOW, "ann"))
    if isinstance(job.state, Stopping):
        job, _ = advance(job, Exited(LATER, 1, Ended(143, "terminated")))
    assert isinstance(job.state, Finished)
    assert (job.state.outcome, job.state.why) == (Outcome.CANCELLED, "cancelled by ann")
    assert story.verdict(job) == "cancelled by ann"


def test_a_time_of_day_that_was_set_back_gives_no_running_time_back() -> None:
    job, _ = advance(running(replace(JOB, ran=LATER - NOW)), Exited(NOW - timedelta(days=1), 1, DIED))
    assert job.ran == LATER - NOW


def test_a_restart_from_scratch_begins_a_new_lineage_and_keeps_the_old_one() -> None:
    job, _ = advance(running(), RestartRequested(NOW, "ann", Start(From.SCRATCH)))
    job, _ = advance(job, Exited(LATER, 1, DIED))
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(2, 2, Start(From.SCRATCH)), "img", GPUS),)
    job, _ = advance(job, Launched(LATER))
    job, _ = advance(job, Exited(LATER, 2, DIED))
    assert job.next_start == Start()  # and what follows resumes in the new lineage
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(3, 2), "img", GPUS),)


def test_a_finished_job_can_be_restarted_with_fresh_ledgers() -> None:
    job = replace(JOB, state=STATES[6], ledger=Ledger(5, 40, 3), ran=timedelta(hours=3))
    job, commands = advance(job, RestartRequested(NOW, "ann", Start(From.STEP, 40)))
    assert (job.state, commands) == (Preparing(NOW), (PrepareImage(),))
    assert (job.ledger, job.ran, job.next_start) == (Ledger(), timedelta(), Start(From.STEP, 40))


def test_an_image_that_vanished_is_prepared_again_without_costing_an_attempt() -> None:
    job, commands = advance(replace(JOB, state=STATES[2]), ImageMissing(LATER))
    assert (job.state, job.attempts, commands) == (Preparing(LATER), 0, (PrepareImage(),))


def test_a_launch_that_is_refused_again_and_again_ends_the_job() -> None:
    job = replace(JOB, limits=RetryLimits(no_progress=2))
    for _ in range(2):
        job, _ = advance(replace(job, state=STATES[2]), LaunchFailed(LATER, "no such device"))
    assert job.state == Finished(
        LATER,
        Outcome.FAILED,
        "no progress: 2 attempts in a row ended without any checkpoint; "
        "the last: launch_failed: no such device",
    )


def test_after_a_crash_each_state_implies_what_was_to_be_done() -> None:
    assert [implied(replace(JOB, state=state)) for state in STATES] == [
        (PrepareImage(),),
        (),
        (Launch(FIRST, "img", GPUS),),
        (),
        (Terminate(1),),
        (),
        (),
    ]


def test_the_story_names_where_an_attempt_begins() -> None:
    job = replace(JOB, state=STATES[2], next_start=Start(From.STEP, 40))
    assert story.tell(Placed(NOW, GPUS), job) == "attempt 1 placed on GPU-a, from step 40"
    job = replace(job, next_start=Start(From.SCRATCH))
    assert story.tell(Placed(NOW, Allocation()), job) == "attempt 1 placed on cpu, from scratch"
    assert story.verdict(replace(JOB, state=Preparing(NOW))) == "preparing"
    assert story.verdict(replace(JOB, state=Held(NOW, "all torn"))) == "held: all torn"
    assert story.verdict(replace(JOB, state=Queued(NOW, "img", "restart, as asked"))) == "restart, as asked"


JOB_EVENTS = st.sampled_from(EVENTS) | st.builds(
    Exited,
    st.just(LATER),
    st.integers(1, 4),
    st.sampled_from([DIED, DONE, Ended(99, "x"), Ended(None, "vanished")]),
)


@settings(max_examples=500)
@given(st.lists(JOB_EVENTS, max_size=60))
def test_no_order_of_events_leaks_a_device_or_starts_an_attempt_twice(events: list[Event]) -> None:
    """Devices are held in exactly three states; every launch has a number of its own; no job is lost."""
    job = replace(JOB, attempts=0)
    launched: list[int] = []
    for event in events:
        with suppress(IllegalTransition):
            job, commands = advance(job, event)
            launched += [c.attempt.number for c in commands if isinstance(c, Launch)]
            if isinstance(event, ImageMissing) and isinstance(job.state, Preparing):
                launched.pop()  # it never began
        holds = hasattr(job.state, "allocation")
        assert holds == isinstance(job.state, Starting | Running | Stopping)
        if isinstance(job.state, Starting | Running | Stopping):
            assert job.state.attempt.number == job.attempts
    assert launched == sorted(set(launched))
    assert len(launched) == job.attempts
