"""The life of one job, as a pure function.

``advance`` takes a job and something that happened, and returns the job's next form
together with the commands that the daemon must carry out.  Nothing here reads a clock,
touches the engine or writes to the store, so every transition is tested in microseconds
and replayed from the event log after a crash.

    preparing --ImageReady--> queued --Placed--> starting --Launched--> running
        |                      ^  ^                 |                     |
    ImageFailed             resume resume <---- LaunchFailed            Exited
        |                      |  +-----------------------------------(verdict)---> held
        v                      |                                          |          |
     finished <--- Exited -- stopping <-- cancel, time limit, restart ----+       restart

Devices are lent from ``starting`` to the end of ``stopping``: the allocation is part of
those states and of no other, so it cannot leak.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from runner.core.job import (
    Attempt,
    CancelRequested,
    Command,
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
from runner.core.retry import Ended, Finish, GiveUp, Hold, Ledger, Resume, decide

Step: TypeAlias = tuple[Job, tuple[Command, ...]]
"""A job as it is now, and what to do about it."""


class IllegalTransition(Exception):
    """The event cannot happen to a job in this state."""

    def __init__(self, job: Job, event: Event) -> None:
        super().__init__(f"job {job.id}: {type(event).__name__} while {type(job.state).__name__}")
        self.job = job
        self.event = event


def advance(job: Job, event: Event) -> Step:
    """Return the job after ``event``, and what to do about it.

    Raises:
        IllegalTransition: the pair (state, event) is not in the diagram above.
    """
    match job.state, event:
        case Preparing(), ImageReady(at, image):
            return _to(job, Queued(at, image)), ()
        case Preparing(), ImageFailed(at, why):
            return _to(job, Finished(at, Outcome.FAILED, why)), ()
        case Queued() as state, Placed():
            return _place(job, state, event)
        case Starting() as state, Launched(at):
            return _to(job, _running(job, state, at)), ()
        case Starting() as state, LaunchFailed():
            return _after_failed_launch(job, state, event)
        case Starting(), ImageMissing(at):
            return _to(replace(job, attempts=job.attempts - 1), Preparing(at)), (PrepareImage(),)
        case Stopping() as state, Launched():
            return job, (Kill(state.attempt.number) if state.killed else Terminate(state.attempt.number),)
        case Stopping() as state, LaunchFailed(at) | ImageMissing(at):
            return _after_asked_exit(job, state, at)
        case (Starting() | Running()) as state, Exited(_, number) if number == state.attempt.number:
            return _after_unasked_exit(job, state, event)
        case Stopping() as state, Exited(at, number) if number == state.attempt.number:
            job = replace(job, ran=job.ran + _spent(state, at))
            return _after_asked_exit(job, state, at, event.ended)
        case ((Preparing() | Queued() | Held()), CancelRequested(at, by)):
            return _to(job, Finished(at, Outcome.CANCELLED, f"cancelled by {by}")), ()
        case (Starting() | Running()) as state, CancelRequested(at, by):
            return _stop(job, state, StopReason.CANCELLED, at, by)
        case Stopping() as state, CancelRequested(_, by):
            return _to(job, replace(state, reason=StopReason.CANCELLED, by=by)), ()
        case Running() as state, DeadlinePassed(at):
            return _stop(job, state, StopReason.TIME_LIMIT, at)
        case Stopping() as state, GracePassed():
            return _to(job, replace(state, killed=True)), (Kill(state.attempt.number),)
        case (Starting() | Running()) as state, RestartRequested(at, _, start):
            return _stop(replace(job, next_start=start), state, StopReason.RESTART, at)
        case ((Held() | Finished()), RestartRequested(at, _, start)):
            job = replace(job, next_start=start, ledger=Ledger(), ran=timedelta())
            return _to(job, Preparing(at)), (PrepareImage(),)
        case _:
            raise IllegalTransition(job, event)


def implied(job: Job) -> tuple[Command, ...]:
    """Return the commands that the present state stands for, to be given again after a crash."""
    match job.state:
        case Preparing():
            return (PrepareImage(),)
        case Starting(image=image, attempt=attempt, allocation=allocation):
            return (Launch(attempt, image, allocation),)
        case Stopping(attempt=attempt, killed=killed):
            return (Kill(attempt.number) if killed else Terminate(attempt.number),)
        case Queued() | Running() | Held() | Finished():  # exhaustive
            return ()


def due(job: Job, now: datetime) -> Event | None:
    """Return the event that time alone has brought about, if any."""
    match job.state:
        case Running(deadline=deadline) if deadline is not None and now >= deadline:
            return DeadlinePassed(now)
        case Stopping(kill_at=kill_at, killed=False) if now >= kill_at:
            return GracePassed(now)
        case _:
            return None


def _place(job: Job, state: Queued, event: Placed) -> Step:
    fresh = job.next_start.source is From.SCRATCH
    lineage = job.lineage + 1 if fresh and job.attempts else job.lineage
    attempt = Attempt(job.attempts + 1, lineage, job.next_start)
    job = replace(job, attempts=attempt.number, lineage=lineage)
    starting = Starting(event.at, state.image, attempt, event.allocation)
    return _to(job, starting), (Launch(attempt, state.image, event.allocation),)


def _running(job: Job, state: Starting, at: datetime) -> Running:
    deadline = None if job.time_limit is None else at + max(job.time_limit - job.ran, timedelta())
    return Running(at, state.image, state.attempt, state.allocation, deadline)


def _stop(
    job: Job, state: Starting | Running, reason: StopReason, at: datetime, by: str | None = None
) -> Step:
    kill_at = at + job.grace
    stopping = Stopping(at, state.image, state.attempt, state.allocation, reason, kill_at, by=by)
    if isinstance(state, Running):
        job = replace(job, ran=job.ran + _spent(state, at))
    return _to(job, stopping), (Terminate(state.attempt.number),)


def _after_failed_launch(job: Job, state: Starting, event: LaunchFailed) -> Step:
    """A launch that was refused is an attempt that made no progress."""
    ended = Ended(None, "launch_failed", event.why, checkpoint_step=job.ledger.last_step)
    after, commands = _judge(job, state, event.at, ended)
    return replace(after, next_start=state.attempt.start), commands


def _after_unasked_exit(job: Job, state: Starting | Running, event: Exited) -> Step:
    if isinstance(state, Running):
        job = replace(job, ran=job.ran + _spent(state, event.at))
    return _judge(job, state, event.at, event.ended)


def _judge(job: Job, state: Starting | Running, at: datetime, ended: Ended) -> Step:
    remove = (Remove(state.attempt.number),)
    match decide(job.limits, job.ledger, ended):
        case Finish(why):
            return _to(job, Finished(at, Outcome.SUCCEEDED, why)), remove
        case GiveUp(why):
            return _to(job, Finished(at, Outcome.FAILED, why)), remove
        case Hold(why):
            return _to(job, Held(at, why)), remove
        case Resume(delay, why, ledger):  # exhaustive
            job = replace(job, ledger=ledger, next_start=Start())
            return _to(job, Queued(at, state.image, why, not_before=at + delay)), remove


def _after_asked_exit(job: Job, state: Stopping, at: datetime, ended: Ended | None = None) -> Step:
    """An exit is read in the light of what we had asked for."""
    remove = (Remove(state.attempt.number),)
    if ended is not None and ended.completed:
        return _to(job, Finished(at, Outcome.SUCCEEDED, "completed while it was asked to stop")), remove
    match state.reason:
        case StopReason.CANCELLED:
            why = "cancelled" if state.by is None else f"cancelled by {state.by}"
            return _to(job, Finished(at, Outcome.CANCELLED, why)), remove
        case StopReason.TIME_LIMIT:
            return _to(job, Finished(at, Outcome.FAILED, f"time limit of {job.time_limit} reached")), remove
        case StopReason.RESTART:  # exhaustive
            return _to(job, Queued(at, state.image, "restart, as asked")), remove


def _spent(state: State, at: datetime) -> timedelta:
    """Return the time spent in a state: none, when the time of day was set back meanwhile."""
    return max(at - state.since, timedelta())


def _to(job: Job, state: State) -> Job:
    return replace(job, state=state)
