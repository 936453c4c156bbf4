"""Every pair of state and event, and every order of events that chance comes up with."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from runner.core.job import describe as story
from runner.core.job.attempt import (
    Allocation,
    Attempt,
    AttemptEnd,
    ExitDecision,
    ProgramStart,
    Start,
    StartFrom,
)
from runner.core.job.commands import Kill, Launch, PrepareImage, Remove, Terminate
from runner.core.job.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    Exited,
    GracePassed,
    HoldRequested,
    HostFailed,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Launched,
    LaunchFailed,
    LivenessFailed,
    Placed,
    PreemptRequested,
    PreparationRefused,
    ReleaseRequested,
    RestartRequested,
    RevisionApplied,
    SwitchCalledOff,
)
from runner.core.job.exit_cause import BEGAN_AGAIN
from runner.core.job.lifecycle import IllegalTransition, advance, due_event, implied_commands
from runner.core.job.model import Job
from runner.core.job.states import (
    Finished,
    Held,
    Outcome,
    Preparing,
    Queued,
    Running,
    Starting,
    State,
    Stopping,
    StopReason,
)
from runner.core.policy.adjustments import Overrides
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from tests.fakes.daemon.decisions import AGAIN, ENOUGH, ONCE, WAIT, ruling
from tests.fakes.daemon.decisions import DONE as FINISH
from tests.fakes.host.disk import examples

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
GPUS = Allocation(("GPU-a",))
FIRST = Attempt(1, 1)
JOB = Job("1", Preparing(NOW), attempts=1)
DIED = AttemptEnd(1, "exception", "boom")
DONE = AttemptEnd(0, "completed", completed=True)

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
    PreemptRequested(LATER, "9", "preempted for job 9"),
    SwitchCalledOff(LATER, 1, "job 9 has ended"),
    ImageReady(LATER, "img"),
    ImageFailed(LATER, "no"),
    PreparationRefused(LATER, "not yours"),
    ImageMissing(LATER),
    HostFailed(LATER, "no driver"),
    Placed(LATER, GPUS),
    Launched(LATER),
    LaunchFailed(LATER, "no", AGAIN),
    CancelRequested(LATER, "ann"),
    RestartRequested(LATER, "ann", Start(StartFrom.SCRATCH)),
    HoldRequested(LATER, "ann"),
    ReleaseRequested(LATER, "ann"),
    RevisionApplied(
        LATER,
        "ann",
        2,
        "{}",
        Verb.RESUME,
        "faster",
        History(),
        timedelta(seconds=9),
        None,
        20,
        other_image=True,
    ),
    LivenessFailed(LATER, 1, "stalled", "silent for too long"),
    DeadlinePassed(LATER),
    GracePassed(LATER),
    Exited(LATER, 1, DIED, AGAIN),
)
LEGAL = {
    "preparing": {
        "image_ready",
        "image_failed",
        "preparation_refused",
        "cancel_requested",
        "hold_requested",
        "revision_applied",
    },
    "queued": {"placed", "cancel_requested", "hold_requested", "revision_applied"},
    "starting": {
        "launched",
        "launch_failed",
        "image_missing",
        "host_failed",
        "exited",
        "cancel_requested",
        "restart_requested",
        "hold_requested",
        "preempt_requested",
    },
    "running": {
        "exited",
        "preempt_requested",
        "cancel_requested",
        "restart_requested",
        "hold_requested",
        "deadline_passed",
        "condemned",
        "revision_applied",
    },
    "stopping": {
        "launched",
        "launch_failed",
        "image_missing",
        "host_failed",
        "exited",
        "cancel_requested",
        "grace_passed",
    },
    "held": {"cancel_requested", "restart_requested", "release_requested", "revision_applied"},
    "finished": {"restart_requested", "revision_applied"},
}


def running(job: Job = JOB, deadline: datetime | None = None) -> Job:
    return replace(job, state=Running(NOW, "img", FIRST, GPUS, deadline))


def stopping(reason: StopReason, job: Job = JOB, by: str | None = None) -> Job:
    state = Stopping(NOW, "img", FIRST, GPUS, reason, kill_at=LATER, by=by, started=NOW)
    return replace(job, state=state)


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_only_the_pairs_in_the_diagram_are_legal(state: State, event: Event) -> None:
    job = replace(JOB, state=state)
    if event.kind in LEGAL[state.kind]:
        after, _ = advance(job, event)
        assert story.describe_event(event, after)
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
    job, commands = advance(job, Exited(LATER, 1, DONE, FINISH))
    assert (job.state, commands) == (Finished(LATER, Outcome.SUCCEEDED, "completed"), (Remove(1),))


def test_another_attempt_waits_as_long_as_the_policy_says() -> None:
    saved = replace(DIED, checkpoint_step=40)
    job, commands = advance(running(), Exited(LATER, 1, saved, AGAIN))
    assert job.state == Queued(
        LATER, "img", "resume from step 40: exception", not_before=LATER + timedelta(seconds=5)
    )
    assert (job.history, job.saved) == (ONCE, 40)
    assert commands == (Remove(1),)


@pytest.mark.parametrize(
    ("said", "ended", "state"),
    [
        (WAIT, AttemptEnd(99, "x"), Held(LATER, "no valid checkpoint")),
        (
            WAIT,
            AttemptEnd(99, "x", "torn", checkpoints_rejected=("step-1: torn", "step-2: gone")),
            Held(
                LATER,
                "checkpoints exist and none is valid: step-1: torn; step-2: gone; no valid checkpoint: torn",
            ),
        ),
        (ENOUGH, DIED, Finished(LATER, Outcome.FAILED, "exception: boom")),
        (
            FINISH,
            replace(DONE, message="a child process was killed for memory"),
            Finished(LATER, Outcome.SUCCEEDED, "completed, although a child process was killed for memory"),
        ),
        (
            FINISH,
            replace(DONE, message=f"{BEGAN_AGAIN}a"),
            Finished(LATER, Outcome.SUCCEEDED, f"completed, although {BEGAN_AGAIN}a"),
        ),
        (
            FINISH,
            replace(DONE, message="stopped early at step 4: loss has been no better"),
            Finished(LATER, Outcome.SUCCEEDED, "stopped early at step 4: loss has been no better"),
        ),
    ],
)
def test_what_the_policy_says_about_an_end_is_done(
    said: ExitDecision, ended: AttemptEnd, state: State
) -> None:
    job, commands = advance(running(), Exited(LATER, 1, ended, said))
    assert (job.state, commands) == (state, (Remove(1),))
    assert job.history == ONCE


@pytest.mark.parametrize(
    ("rejected", "words"),
    [(("a",), "; 1 invalid checkpoint skipped"), (("a", "b"), "; 2 invalid checkpoints skipped")],
)
def test_checkpoints_that_were_passed_over_are_counted(rejected: tuple[str, ...], words: str) -> None:
    ended = replace(DIED, checkpoint_step=40, checkpoints_rejected=rejected)
    job, _ = advance(running(), Exited(LATER, 1, ended, AGAIN))
    assert isinstance(job.state, Queued)
    assert job.state.why == f"resume from step 40: exception{words}"


def test_a_remedy_holds_for_all_attempts_that_follow() -> None:
    turned = Overrides(micro_batch=128)
    said = ruling(Verb.RESUME, turned=turned)
    job, _ = advance(running(), Exited(LATER, 1, DIED, said))
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(2, 1, turned=turned), "img", GPUS),)
    job, _ = advance(job, Launched(LATER))
    job, _ = advance(job, RestartRequested(LATER, "ann", Start()))
    assert job.turned == turned
    job, _ = advance(job, Exited(LATER, 2, DIED, AGAIN))
    job, _ = advance(job, Placed(LATER, GPUS))
    job, _ = advance(job, RestartRequested(LATER, "ann", Start(StartFrom.SCRATCH)))
    assert job.turned == Overrides()


def test_an_attempt_knows_the_checkpoint_that_it_could_begin_with() -> None:
    job, _ = advance(running(), Exited(LATER, 1, replace(DIED, checkpoint_step=40), AGAIN))
    placed, _ = advance(job, Placed(LATER, GPUS, "boot-1"))
    assert isinstance(placed.state, Starting)
    assert (placed.state.attempt.began, placed.state.attempt.boot) == (40, "boot-1")
    for start, began in ((Start(StartFrom.STEP, 30), 30), (Start(StartFrom.SCRATCH), None)):
        placed, _ = advance(replace(job, next_start=start), Placed(LATER, GPUS))
        assert isinstance(placed.state, Starting)
        assert (placed.state.attempt.began, placed.saved) == (began, began)


@pytest.mark.parametrize(("at_launch", "kept"), [("boot-1", "boot-1"), ("boot-2", None)])
def test_a_start_between_two_boots_is_of_neither(at_launch: str, kept: str | None) -> None:
    job = replace(JOB, state=Starting(NOW, "img", replace(FIRST, boot="boot-1"), GPUS))
    job, _ = advance(job, Launched(NOW, at_launch))
    assert isinstance(job.state, Running)
    assert job.state.attempt.boot == kept


@pytest.mark.parametrize("number", [0, 2])
def test_news_about_another_attempt_is_refused(number: int) -> None:
    for job, event in (
        (running(), Exited(LATER, number, DIED, AGAIN)),
        (stopping(StopReason.HOLD), Exited(LATER, number, DIED, AGAIN)),
        (running(), LivenessFailed(LATER, number, "stalled", "silent")),
    ):
        with pytest.raises(IllegalTransition, match=f"job 1: {type(event).__name__} while"):
            advance(job, event)


def test_the_running_time_of_all_attempts_counts_against_the_limit() -> None:
    history = History(ran=timedelta(minutes=9))
    job = replace(JOB, time_limit=timedelta(minutes=10), history=history, state=STATES[2])
    job, _ = advance(job, Launched(NOW))
    assert job.state == Running(NOW, "img", FIRST, GPUS, deadline=NOW + timedelta(minutes=1))
    assert due_event(job, NOW) is None
    assert due_event(job, LATER) == DeadlinePassed(LATER)
    job, commands = advance(job, DeadlinePassed(LATER))
    assert commands == (Terminate(1),)
    job, _ = advance(job, Exited(LATER, 1, AttemptEnd(75, "stopped"), ENOUGH))
    assert job.state == Finished(LATER, Outcome.FAILED, "time limit of 10m reached")


def test_a_ceiling_that_is_lower_than_the_time_limit_is_named_in_its_place() -> None:
    job = replace(running(), time_limit=timedelta(days=45))
    job, _ = advance(job, LivenessFailed(LATER, 1, "", "the running time of 30d is used"))
    job, _ = advance(job, Exited(LATER, 1, AttemptEnd(75, "stopped"), ENOUGH))
    assert job.state == Finished(LATER, Outcome.FAILED, "the running time of 30d is used")


def test_a_time_limit_that_is_used_up_leaves_a_deadline_in_the_past_of_nobody() -> None:
    history = History(ran=timedelta(minutes=9))
    job = replace(JOB, time_limit=timedelta(minutes=1), history=history, state=STATES[2])
    job, _ = advance(job, Launched(NOW))
    assert due_event(job, NOW) == DeadlinePassed(NOW)


def test_grace_ends_with_a_kill_and_only_once() -> None:
    job = stopping(StopReason.CANCELLED)
    assert due_event(job, NOW) is None
    assert due_event(job, LATER) == GracePassed(LATER)
    job, commands = advance(job, GracePassed(LATER))
    assert commands == (Kill(1),)
    assert due_event(job, LATER) is None
    assert implied_commands(job) == (Kill(1),)


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (StopReason.CANCELLED, Finished(LATER, Outcome.CANCELLED, "cancelled")),
        (StopReason.RESTART, Queued(LATER, "img", "restart, as asked")),
        (StopReason.CHANGE, Queued(LATER, "img", "change, as asked")),
    ],
)
def test_what_somebody_asked_for_settles_what_follows(reason: StopReason, state: State) -> None:
    job, commands = advance(stopping(reason), Exited(LATER, 1, DIED, ENOUGH))
    assert (job.state, commands) == (state, (Remove(1),))


@pytest.mark.parametrize("reason", [StopReason.WATCH, StopReason.PREEMPTION, StopReason.TIME_LIMIT])
def test_after_a_stop_that_no_person_asked_for_the_policy_says_what_follows(reason: StopReason) -> None:
    job, _ = advance(stopping(reason), Exited(LATER, 1, DIED, AGAIN))
    assert isinstance(job.state, Queued)
    assert job.state.why == "resume from step 40: exception"


@pytest.mark.parametrize("state", [STATES[2], STATES[3]])
def test_a_job_that_gives_way_is_asked_to_stop_and_remembers_how_often(state: State) -> None:
    job, commands = advance(replace(JOB, state=state), PreemptRequested(NOW, "9", "preempted for job 9"))
    assert isinstance(job.state, Stopping)
    assert (job.state.reason, job.state.by, commands) == (StopReason.PREEMPTION, "9", (Terminate(1),))
    assert story.describe_event(PreemptRequested(NOW, "9", "preempted for job 9"), job) == (
        "preempted for job 9; sending SIGTERM, 30s of grace"
    )
    job, _ = advance(job, Exited(LATER, 1, DIED, AGAIN))
    assert (isinstance(job.state, Queued), job.preempted) == (True, 1)
    job, _ = advance(replace(job, state=STATES[3]), Exited(LATER, 1, DIED, AGAIN))
    assert job.preempted == 1


def test_a_switch_that_is_called_off_leaves_the_attempt_as_it_was() -> None:
    before = replace(JOB, state=STATES[3], time_limit=LATER - NOW)
    asked, _ = advance(before, PreemptRequested(LATER, "9", "preempted for job 9"))
    called_off = SwitchCalledOff(LATER, 1, "job 9 has ended")
    job, commands = advance(asked, called_off)
    assert (job, commands) == (before, ())
    assert story.describe_event(called_off, job) == "attempt 1 goes on, it was not told: job 9 has ended"
    assert isinstance(asked.state, Stopping)
    for state in (STATES[3], replace(asked.state, killed=True), stopping(StopReason.HOLD).state):
        with pytest.raises(IllegalTransition):
            advance(replace(asked, state=state), called_off)
    with pytest.raises(IllegalTransition):
        advance(asked, replace(called_off, attempt=2))


def test_a_hold_that_somebody_asked_for_waits_for_its_release_and_forgives_nothing() -> None:
    job, commands = advance(running(), HoldRequested(NOW, "ann"))
    assert commands == (Terminate(1),)
    job, _ = advance(job, Exited(LATER, 1, DIED, WAIT))
    assert job.state == Held(LATER, "held by ann", asked=True)
    job, commands = advance(job, ReleaseRequested(LATER, "ann"))
    assert (job.state, commands) == (Preparing(LATER), (PrepareImage(),))
    assert job.history == replace(ONCE, wanted=True)


def test_a_job_that_its_policy_held_is_pardoned_when_a_person_releases_it() -> None:
    job, _ = advance(running(), Exited(LATER, 1, DIED, WAIT))
    assert job.history == ONCE
    job, commands = advance(job, ReleaseRequested(LATER, "ann"))
    assert (job.state, commands) == (Preparing(LATER), (PrepareImage(),))
    assert job.history == History(attempts=1, wanted=True)


def test_a_job_that_waits_is_held_at_once() -> None:
    job, commands = advance(replace(JOB, state=STATES[1]), HoldRequested(NOW, "ann"))
    assert (job.state, commands) == (Held(NOW, "held by ann", asked=True), ())


@pytest.mark.parametrize(
    ("rule", "reason", "by"),
    [("stalled", StopReason.WATCH, "stalled"), ("", StopReason.TIME_LIMIT, "silent")],
)
def test_an_attempt_that_a_rule_condemns_is_stopped_in_its_name(
    rule: str, reason: StopReason, by: str
) -> None:
    job, commands = advance(running(), LivenessFailed(LATER, 1, rule, "silent"))
    assert isinstance(job.state, Stopping)
    assert (job.state.reason, job.state.by, job.state.started, commands) == (
        reason,
        by,
        NOW,
        (Terminate(1),),
    )


def test_a_job_that_completes_while_it_is_stopped_has_succeeded() -> None:
    job, _ = advance(stopping(StopReason.CANCELLED), Exited(LATER, 1, DONE, FINISH))
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
        job, _ = advance(job, Exited(LATER, 1, AttemptEnd(143, "terminated"), AGAIN))
    assert isinstance(job.state, Finished)
    assert (job.state.outcome, job.state.why) == (Outcome.CANCELLED, "cancelled by ann")
    assert story.describe_decision(job) == "cancelled by ann"


def test_a_restart_from_scratch_begins_a_new_lineage_and_keeps_the_old_one() -> None:
    job, _ = advance(running(), RestartRequested(NOW, "ann", Start(StartFrom.SCRATCH)))
    job, _ = advance(job, Exited(LATER, 1, replace(DIED, checkpoint_step=40), ENOUGH))
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(2, 2, Start(StartFrom.SCRATCH)), "img", GPUS),)
    job, _ = advance(job, Launched(LATER))
    job, _ = advance(job, Exited(LATER, 2, DIED, AGAIN))
    assert job.next_start == Start()  # and what follows resumes in the new lineage
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(3, 2), "img", GPUS),)


def test_the_policy_can_say_where_the_next_attempt_begins() -> None:
    said = ruling(Verb.RESUME, start=Start(StartFrom.STEP, 30))
    job, _ = advance(running(), Exited(LATER, 1, replace(DIED, checkpoint_step=40), said))
    job, commands = advance(job, Placed(LATER, GPUS))
    assert commands == (Launch(Attempt(2, 1, Start(StartFrom.STEP, 30), began=30), "img", GPUS),)


STEP = Start(StartFrom.STEP, 30)


@pytest.mark.parametrize(
    ("ruled", "chosen", "start"),
    [
        (STEP, Start(), STEP),  # it had not loaded that step
        (Start(), Start(), Start()),
        (STEP, Start(StartFrom.SCRATCH), Start(StartFrom.SCRATCH)),
    ],
)
def test_a_change_of_an_attempt_that_has_not_loaded_its_step_keeps_the_step(
    ruled: Start, chosen: Start, start: Start
) -> None:
    state = Stopping(NOW, "img", Attempt(1, 1, STEP), GPUS, StopReason.CHANGE, kill_at=LATER, started=NOW)
    told = replace(JOB, state=state, next_start=chosen)
    after, _ = advance(told, Exited(LATER, 1, DIED, ruling(Verb.RESUME, start=ruled)))
    assert after.next_start == start


@pytest.mark.parametrize(("start", "missed"), [(Start(StartFrom.SCRATCH), False), (Start(), True)])
def test_a_new_lineage_misses_no_checkpoint_that_an_older_one_had(start: Start, *, missed: bool) -> None:
    """Else its first accident would hold the job, for checkpoints that are gone."""
    waits = replace(JOB, state=Queued(NOW, "img"), attempts=1, lineages=1, lineage=1, next_start=start)
    waits = replace(waits, history=History(attempts=1, had_checkpoint=True))
    assert advance(waits, Placed(LATER, GPUS))[0].history == History(attempts=1, had_checkpoint=missed)


def test_the_reason_of_a_wait_says_why_a_launch_was_refused() -> None:
    refused = AttemptEnd(None, "launch_failed", "/data: no such file or directory")
    job, _ = advance(running(), Exited(LATER, 1, refused, ruling(Verb.RESUME)))
    assert isinstance(job.state, Queued)
    assert job.state.why.endswith(": /data: no such file or directory")


def test_a_finished_job_can_be_restarted_and_is_pardoned() -> None:
    history = History(attempts=5, charged=5, ran=timedelta(hours=3), had_checkpoint=True)
    job = replace(JOB, state=STATES[6], history=history)
    job, commands = advance(job, RestartRequested(NOW, "ann", Start(StartFrom.STEP, 40)))
    assert (job.state, commands) == (Preparing(NOW), (PrepareImage(),))
    assert job.history == History(attempts=5, had_checkpoint=True, wanted=True)
    assert job.next_start == Start(StartFrom.STEP, 40)


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [(StopReason.RESTART, True), (StopReason.CHANGE, True), (StopReason.WATCH, False)],
)
def test_the_attempt_after_what_a_person_asked_for_is_known_to_be_wanted(
    reason: StopReason,
    wanted: bool,  # noqa: FBT001
) -> None:
    job, _ = advance(stopping(reason), Exited(LATER, 1, DIED, AGAIN))
    assert isinstance(job.state, Queued)
    assert job.history.wanted is wanted


@pytest.mark.parametrize(
    ("state", "event", "said"),
    [
        (STATES[6], CancelRequested(NOW, "ann"), "so it cannot be cancelled; runner restart begins another"),
        (Held(NOW, "x"), HoldRequested(NOW, "ann"), "is held, so it cannot be held; runner release lets it"),
        (STATES[3], ReleaseRequested(NOW, "ann"), "is running, so it cannot be released; runner hold, res"),
        (STATES[2], ReleaseRequested(NOW, "ann"), "is starting, so it cannot be released; runner hold, re"),
        (STATES[1], RestartRequested(NOW, "ann", Start()), "is queued, so it cannot be restarted; runner ho"),
        (STATES[1], GracePassed(NOW), "is queued, so it cannot take grace passed; "),
    ],
)
def test_a_refusal_says_what_can_be_done_instead(state: State, event: Event, said: str) -> None:
    assert said in story.describe_refusal(replace(JOB, state=state), event)


def test_a_job_that_is_being_cancelled_is_not_to_be_cancelled_again() -> None:
    said = story.describe_refusal(stopping(StopReason.CANCELLED), HoldRequested(NOW, "ann"))
    assert said == (
        "is being cancelled, so it cannot be held; runner restart begins another attempt once it has ended"
    )


def test_a_job_that_is_stopping_can_be_waited_for_or_cancelled() -> None:
    said = story.describe_refusal(stopping(StopReason.RESTART), HoldRequested(NOW, "ann"))
    assert said == (
        "is stopping (restart), so it cannot be held; wait until its attempt has ended, or runner cancel it"
    )


def test_an_image_that_vanished_is_prepared_again_without_costing_an_attempt() -> None:
    job, commands = advance(replace(JOB, state=STATES[2]), ImageMissing(LATER))
    assert (job.state, job.attempts, commands) == (Preparing(LATER), 0, (PrepareImage(),))


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (StopReason.CANCELLED, Finished(LATER, Outcome.CANCELLED, "cancelled by ann")),
        (StopReason.HOLD, Held(LATER, "held by ann", asked=True)),
        (StopReason.RESTART, Queued(LATER, "img", "restart, as asked")),
    ],
)
def test_an_attempt_that_was_stopped_before_its_image_was_missed_ends_as_asked(
    reason: StopReason, state: State
) -> None:
    for event in (ImageMissing(LATER), HostFailed(LATER, "no driver")):
        job, commands = advance(stopping(reason, by="ann"), event)
        assert (job.state, commands) == (state, (Remove(1),))


def test_a_fault_of_the_host_costs_no_attempt_and_the_job_waits() -> None:
    job, commands = advance(replace(JOB, state=STATES[2], saved=40), HostFailed(LATER, "no driver"))
    assert (job.state, job.attempts, job.saved, commands) == (Queued(LATER, "img", "no driver"), 0, 40, ())


def test_a_launch_that_is_refused_is_an_end_that_saved_nothing() -> None:
    job = replace(JOB, state=STATES[2], saved=40)
    job, commands = advance(job, LaunchFailed(LATER, "no such device", ENOUGH))
    assert job.state == Finished(LATER, Outcome.FAILED, "exception: no such device")
    assert (job.saved, commands) == (40, (Remove(1),))


def test_after_a_crash_each_state_implies_what_was_to_be_done() -> None:
    assert [implied_commands(replace(JOB, state=state)) for state in STATES] == [
        (PrepareImage(),),
        (),
        (Launch(FIRST, "img", GPUS),),
        (),
        (Terminate(1),),
        (),
        (),
    ]


def test_the_story_names_where_an_attempt_begins() -> None:
    job = replace(JOB, state=STATES[2], next_start=Start(StartFrom.STEP, 40))
    assert story.describe_event(Placed(NOW, GPUS), job) == "attempt 1 placed on GPU-a, from step 40"
    job = replace(job, next_start=Start(StartFrom.SCRATCH))
    assert story.describe_event(Placed(NOW, Allocation()), job) == "attempt 1 placed on cpu, from scratch"
    assert story.describe_decision(replace(JOB, state=Preparing(NOW))) == "preparing"
    assert story.describe_decision(replace(JOB, state=Held(NOW, "all torn"))) == "held: all torn"
    assert (
        story.describe_decision(replace(JOB, state=Queued(NOW, "img", "restart, as asked")))
        == "restart, as asked"
    )


RESTART = RestartRequested(LATER, "ann", Start())
NEWEST, NONE_VALID = "from the newest checkpoint", "with no valid checkpoint to begin from"
SIGTERM = "; sending SIGTERM, 30s of grace"


@pytest.mark.parametrize(
    ("state", "event", "attempts", "saved", "said"),
    [
        (1, Placed(NOW, GPUS), 0, None, "attempt 1 placed on GPU-a, from the beginning"),
        (1, Placed(NOW, GPUS), 1, None, f"attempt 2 placed on GPU-a, {NONE_VALID}"),
        (1, Placed(NOW, GPUS), 1, 40, f"attempt 2 placed on GPU-a, {NEWEST}"),
        (3, RESTART, 1, None, f"restart requested by ann, {NEWEST}, if there is one by then{SIGTERM}"),
        (3, RESTART, 2, 40, f"restart requested by ann, {NEWEST}{SIGTERM}"),
        (6, RESTART, 0, None, "restart requested by ann, from the beginning"),
        (6, RESTART, 1, None, f"restart requested by ann, {NONE_VALID}"),
        (6, RESTART, 1, 40, f"restart requested by ann, {NEWEST}"),
    ],
)
def test_the_story_speaks_of_a_checkpoint_where_there_may_be_one(
    state: int, event: Event, attempts: int, saved: int | None, said: str
) -> None:
    job, _ = advance(replace(JOB, state=STATES[state], attempts=attempts, saved=saved), event)
    assert story.describe_event(event, job) == said


RULINGS = st.sampled_from(
    [
        *(AGAIN, FINISH, ENOUGH, WAIT),
        ruling(Verb.RESTART, start=Start(StartFrom.SCRATCH)),
        ruling(Verb.RESUME, start=Start(StartFrom.STEP, 30)),
    ]
)
JOB_EVENTS = (
    st.sampled_from(EVENTS)
    | st.builds(
        Exited,
        st.just(LATER),
        st.integers(1, 4),
        st.sampled_from([DIED, DONE, AttemptEnd(99, "x"), AttemptEnd(None, "vanished")]),
        RULINGS,
    )
    | st.builds(LaunchFailed, st.just(LATER), st.just("no"), RULINGS)
)
ONWARDS = {"image_ready", "placed", "launched", "exited", "restart_requested", "release_requested"}
KEPT: TypeAdapter[Job] = TypeAdapter(Job)


def coming(job: Job, event: Event, pick: int) -> Event:
    """Return what happens to a job next; mostly what leads on, else hardly an attempt would ever begin."""
    if pick == 0:
        return event
    legal = [each for each in (event, *EVENTS) if each.kind in LEGAL[job.state.kind]]
    onwards = [each for each in legal if each.kind in ONWARDS]
    likely = onwards if pick < 8 and onwards else legal
    chosen = likely[pick % len(likely)]
    return replace(chosen, attempt=job.attempts) if isinstance(chosen, Exited | LivenessFailed) else chosen


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(JOB_EVENTS, st.integers(0, 15)), min_size=10, max_size=60))
def test_no_order_of_events_leaks_a_device_or_starts_an_attempt_twice(steps: list[tuple[Event, int]]) -> None:
    """Devices are held in exactly three states; every launch has a number of its own; no job is lost."""
    job = replace(JOB, attempts=0)
    launched: list[int] = []
    lineages = [job.lineage]
    for odd, pick in steps:
        event, before = coming(job, odd, pick), job.state
        with suppress(IllegalTransition):
            job, commands = advance(job, event)
            launched += [c.attempt.number for c in commands if isinstance(c, Launch)]
            lineages.append(job.lineage)
            if isinstance(event, ImageMissing | HostFailed) and isinstance(before, Starting):
                launched.pop()  # it never began
        holds = hasattr(job.state, "allocation")
        assert holds == isinstance(job.state, Starting | Running | Stopping)
        if isinstance(job.state, Starting | Running | Stopping):
            assert job.state.attempt.number == job.attempts
            assert job.state.attempt.lineage == job.lineage
    assert launched == sorted(set(launched))
    assert len(launched) == job.attempts
    assert lineages == sorted(lineages)
    assert KEPT.validate_json(KEPT.dump_json(job)) == job


def test_numbers_of_attempts_and_lineages_that_have_a_directory_are_skipped() -> None:
    queued = replace(JOB, state=Queued(NOW, "img"), attempts=2, lineage=1, lineages=1)
    placed, _ = advance(queued, Placed(LATER, GPUS, attempts=4, lineages=3))
    assert isinstance(placed.state, Starting)
    assert (placed.state.attempt.number, placed.state.attempt.skipped, placed.lineage) == (5, 2, 1)
    fresh = replace(queued, next_start=Start(StartFrom.SCRATCH))
    assert advance(fresh, Placed(LATER, GPUS, attempts=4, lineages=3))[0].lineage == 4
    assert advance(fresh, Placed(LATER, GPUS))[0].lineage == 2


def test_a_restart_goes_on_in_the_lineage_that_it_is_told_to() -> None:
    done = replace(
        JOB, state=Finished(NOW, Outcome.SUCCEEDED, ""), attempts=2, lineage=2, lineages=2, saved=9
    )
    job, _ = advance(done, RestartRequested(LATER, "ada", Start(), lineage=1, saved=40))
    assert (job.lineage, job.lineages, job.saved, job.history.had_checkpoint) == (1, 2, 40, True)
    job, _ = advance(done, RestartRequested(LATER, "ada", Start()))
    assert (job.lineage, job.saved) == (2, 9)


def test_the_number_of_a_version_stays_one_until_steps_are_seen() -> None:
    job = replace(JOB, state=STATES[2], saved=3, has_versions=True)
    refused, _ = advance(job, LaunchFailed(LATER, "no such device", ENOUGH))
    assert (refused.saved, refused.has_versions) == (3, True)
    asked, _ = advance(refused, RestartRequested(LATER, "ada", Start(StartFrom.STEP, 2)))
    assert "from version 2" in story.describe_event(RESTART, asked)
    asked, _ = advance(refused, RestartRequested(LATER, "ada", Start(StartFrom.STEP, 2), has_versions=False))
    assert "from step 2" in story.describe_event(RESTART, asked)
    for ended, known in (
        (AttemptEnd(1, "exception"), (None, True)),
        (AttemptEnd(1, "exception", checkpoint_step=4, has_versions=True), (4, True)),
        (AttemptEnd(1, "exception", checkpoint_step=40), (40, False)),
    ):
        after, _ = advance(running(replace(JOB, has_versions=True)), Exited(LATER, 1, ended, ENOUGH))
        assert (after.saved, after.has_versions) == known


def test_the_start_of_a_program_names_its_checkpoint_and_what_was_set_aside() -> None:
    job = replace(JOB, attempts=2)
    assert story.describe_event(Launched(NOW), job) == "attempt 2 started"
    start = ProgramStart(200, "out/c-200")
    told = "attempt 2 started, from out/c-200 (step 200)"
    assert story.describe_event(Launched(NOW, resumed=start), job) == told
    moved = tuple(f"c-{number}" for number in range(7))
    start = replace(start, set_aside=moved, directory="lineages/1/set-aside/2")
    assert story.describe_event(Launched(NOW, resumed=start), job) == (
        f"{told}; set aside in lineages/1/set-aside/2: c-0, c-1, c-2, c-3, c-4 and 2 more"
    )


@pytest.mark.parametrize("reason", [StopReason.PREEMPTION, StopReason.TIME_LIMIT, StopReason.WATCH])
def test_what_ended_before_the_runner_stopped_it_ended_by_itself(reason: StopReason) -> None:
    stopping = Stopping(LATER, "img", FIRST, GPUS, reason, kill_at=LATER, by="9", started=NOW)
    died = Exited(NOW, 1, DIED, ENOUGH, unasked=True)
    job, _ = advance(replace(JOB, state=stopping), died)
    assert job == advance(replace(JOB, state=Running(NOW, "img", FIRST, GPUS)), died)[0]
    assert job.preempted == 0


@pytest.mark.parametrize("reason", list(StopReason))
def test_what_completed_before_it_was_asked_has_completed(reason: StopReason) -> None:
    stopping = Stopping(LATER, "img", FIRST, GPUS, reason, kill_at=LATER, by="ann", started=NOW)
    job, _ = advance(replace(JOB, state=stopping), Exited(NOW, 1, DONE, FINISH, unasked=True))
    assert job.state == Finished(NOW, Outcome.SUCCEEDED, "completed")


def test_a_person_who_cancels_what_had_failed_gets_it() -> None:
    stopping = Stopping(LATER, "img", FIRST, GPUS, StopReason.CANCELLED, kill_at=LATER, by="ann", started=NOW)
    job, _ = advance(replace(JOB, state=stopping), Exited(NOW, 1, DIED, AGAIN, unasked=True))
    assert job.state == Finished(NOW, Outcome.CANCELLED, "cancelled by ann")
