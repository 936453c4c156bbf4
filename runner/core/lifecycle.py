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

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

from runner.core.retry import Ended, Finish, GiveUp, Hold, Ledger, Resume, RetryLimits, decide


class StopReason(StrEnum):
    """Why we asked an attempt to stop."""

    CANCELLED = "cancelled"  # by its owner; final
    TIME_LIMIT = "time_limit"  # its running time is used up; final
    RESTART = "restart"  # somebody wants another attempt; costs none


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class From(StrEnum):
    """Where the next attempt begins."""

    CHECKPOINT = "checkpoint"  # the newest valid one of the lineage, or step 0 when there is none
    SCRATCH = "scratch"  # step 0 in a new lineage; the old one is kept
    STEP = "step"  # the checkpoint of a given step


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins; ``step`` is set for ``From.STEP`` alone."""

    source: From = From.CHECKPOINT
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices lent to one attempt, by UUID: indices move between boots."""

    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One container or process run of a job."""

    number: int
    lineage: int
    start: Start = field(default_factory=Start)


# States: each holds exactly the facts that are true in it.


@dataclass(frozen=True, slots=True)
class Preparing:
    """Its image is being found or built."""

    since: datetime
    kind: Literal["preparing"] = "preparing"


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits for devices, cpus and memory, or for its backoff to pass."""

    since: datetime
    image: str
    why: str = ""  # what brought it here, when an earlier attempt did
    not_before: datetime | None = None
    kind: Literal["queued"] = "queued"


@dataclass(frozen=True, slots=True)
class Starting:
    """Devices are lent; the container is being made."""

    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    kind: Literal["starting"] = "starting"


@dataclass(frozen=True, slots=True)
class Running:
    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    deadline: datetime | None = None
    kind: Literal["running"] = "running"


@dataclass(frozen=True, slots=True)
class Stopping:
    """SIGTERM was sent; SIGKILL follows at ``kill_at`` and is repeated until the attempt is gone."""

    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    reason: StopReason
    kill_at: datetime
    killed: bool = False
    kind: Literal["stopping"] = "stopping"


@dataclass(frozen=True, slots=True)
class Held:
    """It waits for a person."""

    since: datetime
    why: str
    kind: Literal["held"] = "held"


@dataclass(frozen=True, slots=True)
class Finished:
    since: datetime
    outcome: Outcome
    why: str
    kind: Literal["finished"] = "finished"


State: TypeAlias = Preparing | Queued | Starting | Running | Stopping | Held | Finished
Lent: TypeAlias = Starting | Running | Stopping


# Events: what happened, in the past tense.


@dataclass(frozen=True, slots=True)
class ImageReady:
    at: datetime
    image: str
    kind: Literal["image_ready"] = "image_ready"


@dataclass(frozen=True, slots=True)
class ImageFailed:
    at: datetime
    why: str
    kind: Literal["image_failed"] = "image_failed"


@dataclass(frozen=True, slots=True)
class ImageMissing:
    """The image was there when it was resolved and is gone now."""

    at: datetime
    kind: Literal["image_missing"] = "image_missing"


@dataclass(frozen=True, slots=True)
class Placed:
    at: datetime
    allocation: Allocation
    kind: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True)
class Launched:
    at: datetime
    kind: Literal["launched"] = "launched"


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine answered, and the answer was no; an engine that does not answer is no event."""

    at: datetime
    why: str
    kind: Literal["launch_failed"] = "launch_failed"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    at: datetime
    by: str
    kind: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True)
class RestartRequested:
    at: datetime
    by: str
    start: Start
    kind: Literal["restart_requested"] = "restart_requested"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    at: datetime
    kind: Literal["deadline_passed"] = "deadline_passed"


@dataclass(frozen=True, slots=True)
class GracePassed:
    at: datetime
    kind: Literal["grace_passed"] = "grace_passed"


@dataclass(frozen=True, slots=True)
class Exited:
    at: datetime
    attempt: int
    ended: Ended
    kind: Literal["exited"] = "exited"


Event: TypeAlias = (
    ImageReady
    | ImageFailed
    | ImageMissing
    | Placed
    | Launched
    | LaunchFailed
    | CancelRequested
    | RestartRequested
    | DeadlinePassed
    | GracePassed
    | Exited
)


# Commands: what the daemon must do, in the imperative.  All are idempotent.


@dataclass(frozen=True, slots=True)
class PrepareImage:
    pass


@dataclass(frozen=True, slots=True)
class Launch:
    attempt: Attempt
    image: str
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask politely: SIGTERM."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Do not ask: SIGKILL."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the ended container away; its evidence is recorded."""

    attempt: int


Command: TypeAlias = PrepareImage | Launch | Terminate | Kill | Remove


Step: TypeAlias = "tuple[Job, tuple[Command, ...]]"
"""A job as it is now, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides what may happen next; the job file itself is not needed here."""

    id: str
    state: State
    limits: RetryLimits = field(default_factory=RetryLimits)
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    time_limit: timedelta | None = None  # running time of all attempts together
    ran: timedelta = timedelta()  # used of it by attempts that have ended
    attempts: int = 0  # made so far, charged or not
    lineage: int = 1
    next_start: Start = field(default_factory=Start)
    ledger: Ledger = field(default_factory=Ledger)


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
            job = replace(job, ran=job.ran + (at - state.since))
            return _after_asked_exit(job, state, at, event.ended)
        case ((Preparing() | Queued() | Held()), CancelRequested(at, by)):
            return _to(job, Finished(at, Outcome.CANCELLED, f"cancelled by {by}")), ()
        case (Starting() | Running()) as state, CancelRequested(at):
            return _stop(job, state, StopReason.CANCELLED, at)
        case Stopping() as state, CancelRequested():
            return _to(job, replace(state, reason=StopReason.CANCELLED)), ()
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


def _stop(job: Job, state: Starting | Running, reason: StopReason, at: datetime) -> Step:
    stopping = Stopping(at, state.image, state.attempt, state.allocation, reason, kill_at=at + job.grace)
    if isinstance(state, Running):
        job = replace(job, ran=job.ran + (at - state.since))
    return _to(job, stopping), (Terminate(state.attempt.number),)


def _after_failed_launch(job: Job, state: Starting, event: LaunchFailed) -> Step:
    """A launch that was refused is an attempt that made no progress."""
    ended = Ended(None, "launch_failed", event.why, checkpoint_step=job.ledger.last_step)
    after, commands = _judge(job, state, event.at, ended)
    return replace(after, next_start=state.attempt.start), commands


def _after_unasked_exit(job: Job, state: Starting | Running, event: Exited) -> Step:
    if isinstance(state, Running):
        job = replace(job, ran=job.ran + (event.at - state.since))
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
            return _to(job, Finished(at, Outcome.CANCELLED, "cancelled")), remove
        case StopReason.TIME_LIMIT:
            return _to(job, Finished(at, Outcome.FAILED, f"time limit of {job.time_limit} reached")), remove
        case StopReason.RESTART:  # exhaustive
            return _to(job, Queued(at, state.image, "restart, as asked")), remove


def _to(job: Job, state: State) -> Job:
    return replace(job, state=state)
