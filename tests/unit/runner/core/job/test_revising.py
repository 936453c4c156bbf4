"""Effect of a new revision on a job, in every state, and on the way back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runner.core.job import describe as story
from runner.core.job.attempt import Allocation, Attempt, AttemptEnd, ExpectedSpeedup, Start, StartFrom
from runner.core.job.commands import Launch, PrepareImage, Remove, Terminate
from runner.core.job.events import DeadlinePassed, Exited, ImageReady, Placed, RevisionApplied
from runner.core.job.lifecycle import advance, due_event
from runner.core.job.model import Job
from runner.core.job.states import (
    Finished,
    Held,
    Outcome,
    Preparing,
    Queued,
    Running,
    State,
    Stopping,
    StopReason,
)
from runner.core.policy.adjustments import Overrides
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from tests.fakes.daemon.decisions import AGAIN

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
GPUS = Allocation(("GPU-a",))
SWAPPED = History(attempts=1, swaps=1)
PROMISE = ExpectedSpeedup(back_to=1, rate=2.0, faster=4.0)
HURRY = timedelta(seconds=7)
WAITING = Queued(NOW, "img")
RUNS = Running(NOW, "img", Attempt(1, 1), GPUS)


def job(state: State, **more: object) -> Job:
    return replace(Job("1", state, attempts=1, turned=Overrides(micro_batch=4)), **more)  # type: ignore[arg-type]


def revision(verb: Verb, **more: object) -> RevisionApplied:
    event = RevisionApplied(LATER, "ann", 2, "{}", verb, "why", SWAPPED, HURRY, HURRY * 2, 9)
    return replace(event, **more)  # type: ignore[arg-type]


def test_what_is_kept_goes_on_and_the_next_attempt_is_of_the_new_revision() -> None:
    kept, commands = advance(job(RUNS), revision(Verb.KEEP))
    assert (kept.state, commands) == (replace(RUNS, deadline=NOW + HURRY * 2), ())
    assert (kept.revision, kept.grace, kept.time_limit, kept.attempts_max) == (2, HURRY, HURRY * 2, 9)
    assert (kept.history, kept.turned) == (SWAPPED, Overrides())
    waits, _ = advance(kept, Exited(LATER, 1, AttemptEnd(1, "killed"), AGAIN))
    [launch] = advance(waits, Placed(LATER, GPUS))[1]
    assert isinstance(launch, Launch)
    assert launch.attempt.revision == 2


@pytest.mark.parametrize(
    ("limit", "deadline"),
    [
        (timedelta(hours=1), NOW + timedelta(minutes=40)),
        (timedelta(minutes=10), NOW),
        (None, None),
    ],
)
def test_a_new_time_limit_holds_at_once_also_for_what_runs(
    limit: timedelta | None, deadline: datetime | None
) -> None:
    history = replace(SWAPPED, ran=timedelta(minutes=20))
    before = job(replace(RUNS, deadline=NOW + timedelta(minutes=5)))
    kept, commands = advance(before, revision(Verb.KEEP, time_limit=limit, history=history))
    assert isinstance(kept.state, Running)
    assert (kept.state.deadline, commands) == (deadline, ())
    assert due_event(kept, LATER) == (DeadlinePassed(LATER) if deadline == NOW else None)


@pytest.mark.parametrize("saved", [None, 40])
def test_a_rollback_misses_no_checkpoint_that_its_lineage_never_had(saved: int | None) -> None:
    missed = replace(SWAPPED, had_checkpoint=True)
    back, _ = advance(job(WAITING), revision(Verb.KEEP, lineage=1, saved=saved, history=missed))
    assert back.history.had_checkpoint is (saved is not None)


@pytest.mark.parametrize(
    ("verb", "start", "lineage"), [(Verb.RESUME, Start(), 1), (Verb.RESTART, Start(StartFrom.SCRATCH), 2)]
)
def test_what_runs_is_stopped_for_its_change_and_begins_where_the_policy_says(
    verb: Verb, start: Start, lineage: int
) -> None:
    stopping, commands = advance(job(RUNS), revision(verb, start=start, promise=PROMISE))
    assert isinstance(stopping.state, Stopping)
    assert (stopping.state.reason, stopping.state.by) == (StopReason.CHANGE, "ann")
    assert stopping.state.kill_at == LATER + HURRY
    assert commands == (Terminate(1),)
    assert stopping.promise == PROMISE
    queued, commands = advance(
        stopping, Exited(LATER, 1, AttemptEnd(75, "stopped", checkpoint_step=40), AGAIN)
    )
    assert queued.state == Queued(LATER, "img", "change, as asked")
    assert commands == (Remove(1),)
    starting, _ = advance(queued, Placed(LATER, GPUS))
    assert (starting.lineage, starting.lineages) == (lineage, lineage)


def test_a_rollback_goes_on_in_the_lineage_of_then_and_a_new_one_is_still_new() -> None:
    runs = Running(NOW, "img", Attempt(3, 2), GPUS)
    back = revision(Verb.RESUME, number=3, lineage=1, saved=40)
    stopping, _ = advance(job(runs, attempts=3, lineage=2, lineages=2, saved=90), back)
    queued, _ = advance(stopping, Exited(LATER, 3, AttemptEnd(75, "stopped", checkpoint_step=95), AGAIN))
    assert queued.saved == 40
    starting, _ = advance(queued, Placed(LATER, GPUS))
    assert (starting.lineage, starting.lineages) == (1, 2)
    fresh, _ = advance(replace(queued, next_start=Start(StartFrom.SCRATCH)), Placed(LATER, GPUS))
    assert (fresh.lineage, fresh.lineages) == (3, 3)


@pytest.mark.parametrize("other_image", [True, False])
def test_a_job_that_waits_gets_another_image_if_its_revision_wants_one(*, other_image: bool) -> None:
    after, commands = advance(job(WAITING), revision(Verb.KEEP, other_image=other_image))
    assert after.state == (Preparing(NOW) if other_image else WAITING)
    assert commands == ((PrepareImage(),) if other_image else ())
    assert not after.stale


def test_an_image_that_was_being_found_for_the_revision_before_is_found_again() -> None:
    after, commands = advance(job(Preparing(NOW)), revision(Verb.KEEP, other_image=True))
    assert (after.stale, commands) == (True, ())
    after, commands = advance(after, ImageReady(LATER, "old"))
    assert (after.state, commands) == (Preparing(LATER), (PrepareImage(),))
    after, commands = advance(after, ImageReady(LATER, "new"))
    assert (after.state, commands) == (Queued(LATER, "new"), ())


def test_an_attempt_that_ends_after_its_image_was_changed_is_followed_by_one_with_the_new_image() -> None:
    kept, _ = advance(job(RUNS), revision(Verb.KEEP, other_image=True))
    after, commands = advance(kept, Exited(LATER, 1, AttemptEnd(1, "killed"), AGAIN))
    assert isinstance(after.state, Preparing)
    assert commands == (Remove(1), PrepareImage())


@pytest.mark.parametrize("state", [Held(NOW, "why"), Finished(NOW, Outcome.FAILED, "why")])
def test_a_job_that_is_at_rest_takes_its_revision_and_rests(state: State) -> None:
    after, commands = advance(job(state), revision(Verb.RESUME, other_image=True))
    assert (after.state, commands, after.stale) == (state, (), False)
    assert (after.revision, after.next_start) == (2, Start())


def test_a_wait_is_told_in_digits_that_matter() -> None:
    waits = job(Queued(NOW, "img", "again", NOW + timedelta(seconds=4.02009)))
    assert story.describe_decision(waits) == "again, in 4s"


def test_the_story_says_who_changed_what_and_what_follows() -> None:
    event = revision(Verb.RESUME, why="faster")
    after, _ = advance(job(RUNS), event)
    assert (
        story.describe_event(event, after)
        == "revision 2 by ann: resume: faster; sending SIGTERM, 7s of grace"
    )
    back = revision(Verb.RESUME, number=3, lineage=1, why="rolled back")
    assert (
        story.describe_event(back, job(WAITING))
        == "revision 3 by ann: back to lineage 1, resume: rolled back"
    )
