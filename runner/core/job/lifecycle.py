"""The life cycle of a job as a pure function.

``advance`` takes a job and an event, and returns the next state of the job
together with the commands that the control loop must execute.  Nothing here reads a clock,
touches the engine or writes to the store, so every transition is tested in microseconds
and replayed from the event log after a crash.

    preparing --ImageReady--> queued --Placed--> starting --Launched--> running
        |                      ^  ^                 |                     |
    ImageFailed             resume resume <---- LaunchFailed            Exited
        |                      |  +-----------------------------------(verdict)---> held
        v                      |                                          |          |
     finished <--- Exited -- stopping <-- cancel, hold, time limit, ... --+   restart, release

The decision of the policy is part of the event of an end.  So the event log can be replayed without the
policy.

Devices are allocated from ``starting`` to the end of ``stopping``.  The allocation is part of
those states and of no other, so it cannot leak.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from runner.base.readable import readable_duration
from runner.core.job.attempt import Attempt, AttemptEnd, ExitDecision, Start, StartFrom
from runner.core.job.commands import Command, Kill, Launch, PrepareImage, Remove, Terminate
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
from runner.core.job.exit_cause import STOPPED_EARLY
from runner.core.job.model import Job
from runner.core.job.states import (
    Allocated,
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
from runner.core.policy.model import STARTS, Verb

Step: TypeAlias = tuple[Job, tuple[Command, ...]]
"""The job after an event, and the commands to execute."""


class IllegalTransition(Exception):
    """The event cannot happen to a job in this state."""

    def __init__(self, job: Job, event: Event) -> None:
        super().__init__(f"job {job.id}: {type(event).__name__} while {type(job.state).__name__}")
        self.job = job
        self.event = event


def advance(job: Job, event: Event) -> Step:
    """Return the job after ``event`` and the commands to execute.

    Raises:
        IllegalTransition: the pair (state, event) is not in the diagram above.
    """
    match job.state, event:
        case Preparing(), ImageReady(at, image):
            return continue_job(_to(job, Queued(at, image)))
        case Preparing(), ImageFailed(at, why):
            return _to(job, Finished(at, Outcome.FAILED, why)), ()
        case Preparing(), PreparationRefused(at, why):
            return _to(job, Held(at, why)), ()
        case Queued() as state, Placed():
            return _place(job, state, event)
        case Starting() as state, Launched():
            return _to(job, _running(job, state, event)), ()
        case Starting() as state, LaunchFailed(at, why, ruling):
            return _after_exit(job, state, at, _unstarted(job, why), ruling)
        case Starting(), ImageMissing(at):
            return _to(replace(job, attempts=job.attempts - 1), Preparing(at)), (PrepareImage(),)
        case Starting(image=image), HostFailed(at, why, not_before):
            return _to(replace(job, attempts=job.attempts - 1), Queued(at, image, why, not_before)), ()
        case Stopping() as state, Launched():
            return job, (Kill(state.attempt.number) if state.killed else Terminate(state.attempt.number),)
        case Stopping() as state, LaunchFailed(at, why, ruling):
            return _after_asked_exit(job, state, at, _unstarted(job, why), ruling)
        case Stopping() as state, ImageMissing(at) | HostFailed(at):
            return _never_started(job, state, at)
        case (Starting() | Running()) as state, Exited(attempt=number) if number == state.attempt.number:
            return _after_exit(job, state, event.at, event.ended, event.ruling)
        case Stopping() as state, Exited(attempt=number) if number == state.attempt.number:
            ended_in = state_at_end(state, event.ended, unasked=event.unasked)
            if isinstance(ended_in, Stopping):
                return _after_asked_exit(job, ended_in, event.at, event.ended, event.ruling)
            return _after_exit(job, ended_in, event.at, event.ended, event.ruling)
        case ((Preparing() | Queued() | Held()), CancelRequested(at, by)):
            return _to(job, Finished(at, Outcome.CANCELLED, f"cancelled by {by}")), ()
        case (Starting() | Running()) as state, CancelRequested(at, by):
            return _stop(job, state, StopReason.CANCELLED, at, by)
        case Stopping() as state, CancelRequested(_, by):
            may_be_called_off = state.reason is StopReason.PREEMPTION and not state.killed  # and is not told
            told = (Terminate(state.attempt.number),) if may_be_called_off else ()
            return _to(job, replace(state, reason=StopReason.CANCELLED, by=by)), told
        case Running() as state, DeadlinePassed(at):
            return _stop(job, state, StopReason.TIME_LIMIT, at)
        case Running() as state, LivenessFailed(at, number, rule, why) if number == state.attempt.number:
            return _stop(job, state, StopReason.WATCH if rule else StopReason.TIME_LIMIT, at, rule or why)
        case (Starting() | Running()) as state, PreemptRequested(at, for_job):
            return _stop(job, state, StopReason.PREEMPTION, at, for_job)
        case Stopping(reason=StopReason.PREEMPTION, killed=False, started=datetime() as started) as state, (
            SwitchCalledOff(attempt=number)
        ) if number == state.attempt.number:
            return _to(job, _goes_on(job, state, started)), ()
        case Stopping() as state, GracePassed():
            return _to(job, replace(state, killed=True)), (Kill(state.attempt.number),)
        case (Starting() | Running()) as state, RestartRequested(at, by):
            return _stop(_restarted(job, event), state, StopReason.RESTART, at, by)
        case ((Held() | Finished()), RestartRequested(at)):
            return _pardoned(_restarted(job, event), at)
        case ((Preparing() | Queued() | Running() | Held() | Finished()), RevisionApplied()):
            return _changed(job, event)
        case ((Preparing() | Queued()), HoldRequested(at, by)):
            return _to(job, Held(at, f"held by {by}", asked=True)), ()
        case (Starting() | Running()) as state, HoldRequested(at, by):
            return _stop(job, state, StopReason.HOLD, at, by)
        case Held(asked=asked), ReleaseRequested(at):
            return _released(job, at) if asked else _pardoned(job, at)
        case _:
            raise IllegalTransition(job, event)


def state_at_end(state: Allocated, ended: AttemptEnd, *, unasked: bool) -> Allocated:
    """Return the state in which an attempt ended; ``unasked``: before it was told to stop.

    A person who has asked for something else than a completed job gets it all the same.
    """
    if unasked and isinstance(state, Stopping) and (ended.completed or state.reason not in _REQUESTS):
        return Running(state.started or state.since, state.image, state.attempt, state.allocation)
    return state


def implied_commands(job: Job) -> tuple[Command, ...]:
    """Return the commands that the state of a job implies; they are repeated after a crash."""
    match job.state:
        case Preparing():
            return (PrepareImage(),)
        case Starting(image=image, attempt=attempt, allocation=allocation):
            return (Launch(attempt, image, allocation),)
        case Stopping(attempt=attempt, killed=killed):
            return (Kill(attempt.number) if killed else Terminate(attempt.number),)
        case Queued() | Running() | Held() | Finished():  # exhaustive
            return ()


def due_event(job: Job, now: datetime) -> Event | None:
    """Return the event that is due by time, if any."""
    match job.state:
        case Running(deadline=deadline) if deadline is not None and now >= deadline:
            return DeadlinePassed(now)
        case Stopping(kill_at=kill_at, killed=False) if now >= kill_at:
            return GracePassed(now)
        case _:
            return None


def _place(job: Job, state: Queued, event: Placed) -> Step:
    start = job.next_start
    fresh = start.source is StartFrom.SCRATCH and job.attempts > 0
    lineage = max(job.lineages, event.lineages) + 1 if fresh else job.lineage
    began = None if fresh else start.step if start.source is StartFrom.STEP else job.saved
    number = max(job.attempts, event.attempts) + 1
    attempt = Attempt(number, lineage, start, job.turned, began, event.boot, job.revision)
    attempt = replace(attempt, skipped=number - job.attempts - 1)
    made = max(job.lineages, event.lineages, lineage)
    if fresh:  # the new lineage cannot lose checkpoints of the old one
        job = replace(job, history=replace(job.history, had_checkpoint=False))
    job = replace(job, attempts=attempt.number, lineage=lineage, lineages=made, saved=began)
    starting = Starting(event.at, state.image, attempt, event.allocation)
    return _to(job, starting), (Launch(attempt, state.image, event.allocation),)


def _running(job: Job, state: Starting, event: Launched) -> Running:
    """Return the state of a started attempt; its boot is unknown if the host was rebooted meanwhile."""
    boot = state.attempt.boot if state.attempt.boot == event.boot else None
    launched_s = None if boot is None else event.monotonic_s
    attempt = replace(
        state.attempt, boot=boot, launched_s=launched_s, host=event.host, host_devices=event.devices
    )
    return Running(event.at, state.image, attempt, state.allocation, deadline_of(job, event.at))


def _goes_on(job: Job, state: Stopping, started: datetime) -> Running:
    return Running(started, state.image, state.attempt, state.allocation, deadline_of(job, started))


def _stop(
    job: Job, state: Starting | Running, reason: StopReason, at: datetime, by: str | None = None
) -> Step:
    kill_at = at + job.grace
    started = state.since if isinstance(state, Running) else None
    stopping = Stopping(
        at, state.image, state.attempt, state.allocation, reason, kill_at, by=by, started=started
    )
    return _to(job, stopping), (Terminate(state.attempt.number),)


def _restarted(job: Job, event: RestartRequested) -> Job:
    """Return a job with the requested start; from scratch it loses the adjustments of its settings."""
    scratch = event.start.source is StartFrom.SCRATCH
    job = replace(job, next_start=event.start, turned=Overrides() if scratch else job.turned)
    if event.has_versions is not None:
        job = replace(job, has_versions=event.has_versions)
    return job if event.lineage is None else _in_lineage(job, event.lineage, event.saved)


def _in_lineage(job: Job, lineage: int, saved: int | None) -> Job:
    """Return a job that goes on in one of its lineages, whose newest valid checkpoint is known."""
    history = replace(job.history, had_checkpoint=saved is not None)
    return replace(job, lineage=lineage, saved=saved, history=history)


def _changed(job: Job, event: RevisionApplied) -> Step:
    """Apply a new revision; a running attempt is stopped only if the policy has decided so."""
    job, stops = apply_revision(job, event)
    if stops and isinstance(job.state, Running):
        return _stop(job, job.state, StopReason.CHANGE, event.at, event.by)
    return await_revision(job)


def _pardoned(job: Job, at: datetime) -> Step:
    """Let a job go on after a user's decision, with new counters."""
    return _to(replace(job, history=job.history.reset_counters()), Preparing(at)), (PrepareImage(),)


def _released(job: Job, at: datetime) -> Step:
    """Let a job go on that a user has held; its counters stay."""
    return _to(replace(job, history=job.history.request_next()), Preparing(at)), (PrepareImage(),)


# --- Ends ---------------------------------------------------------------------------------------------


def _after_exit(job: Job, state: Allocated, at: datetime, ended: AttemptEnd, ruling: ExitDecision) -> Step:
    """Apply the decision of the policy."""
    job = replace(_saved(job, state, ended), history=ruling.history)
    verdict = ruling.verdict
    if verdict.verb in STARTS:
        job = replace(job, next_start=ruling.start, turned=ruling.turned, preempted=_gave_way(job, state))
        why = verdict.reason + _refused(ended) + _skipped(ended)
        after: State = Queued(at, state.image, why, not_before=at + verdict.delay)
    elif verdict.verb is Verb.FINISH:
        after = Finished(at, Outcome.SUCCEEDED, _completed(state, ended))
    elif verdict.verb is Verb.GIVE_UP:
        after = Finished(at, Outcome.FAILED, _why_not(job, state, verdict.reason, ended))
    else:
        job = replace(job, next_start=ruling.start)
        asked = isinstance(state, Stopping) and state.reason is StopReason.HOLD
        after = Held(at, _why_not(job, state, verdict.reason, ended), asked)
    return _over(_to(job, after), state)


def _after_asked_exit(
    job: Job, state: Stopping, at: datetime, ended: AttemptEnd, ruling: ExitDecision
) -> Step:
    """Apply the end of an attempt that was told to stop: the request decides, or else the policy."""
    if ended.completed or state.reason not in _SETTLED:
        return _after_exit(job, state, at, ended, ruling)
    job, asked = replace(_saved(job, state, ended), history=ruling.history), state.attempt.start
    unloaded = (
        asked.source is StartFrom.STEP and ruling.start == asked and state.attempt.lineage == job.lineage
    )
    if unloaded and state.reason is StopReason.CHANGE and job.next_start == Start():
        job = replace(job, next_start=asked)
    return _as_asked(job, state, at)


_SETTLED: Final = frozenset({StopReason.CANCELLED, StopReason.RESTART, StopReason.CHANGE})
"""Requests that decide what follows, without the policy."""

_REQUESTS: Final = _SETTLED | {StopReason.HOLD}
"""Requests by people."""


def _as_asked(job: Job, state: Stopping, at: datetime) -> Step:
    if state.reason is StopReason.CANCELLED:
        why = "cancelled" if state.by is None else f"cancelled by {state.by}"
        return _over(_to(job, Finished(at, Outcome.CANCELLED, why)), state)
    job = replace(job, history=job.history.request_next())
    return _over(_to(job, Queued(at, state.image, f"{state.reason}, as asked")), state)


def _over(job: Job, state: Allocated) -> Step:
    """Remove an ended attempt; the next one may need another image."""
    job, more = continue_job(job)
    return job, (Remove(state.attempt.number), *more)


def _saved(job: Job, state: Allocated, ended: AttemptEnd) -> Job:
    """Return a job with the newest checkpoint of the lineage of its next attempt."""
    if state.attempt.lineage != job.lineage:
        return job
    has_versions = job.has_versions if ended.checkpoint_step is None else ended.has_versions
    return replace(job, saved=ended.checkpoint_step, has_versions=has_versions)


def _never_started(job: Job, state: Stopping, at: datetime) -> Step:
    """Apply the stop of an attempt that never started; the policy is not asked."""
    if state.reason is StopReason.HOLD:
        return _to(job, Held(at, f"held by {state.by}", asked=True)), (Remove(state.attempt.number),)
    return _as_asked(job, state, at)


def _unstarted(job: Job, why: str) -> AttemptEnd:
    """Return a refused launch as the end of an attempt that saved nothing."""
    saved, has_versions = job.saved, job.has_versions
    return AttemptEnd(None, "launch_failed", why, checkpoint_step=saved, has_versions=has_versions)


def _gave_way(job: Job, state: Allocated) -> int:
    """Return the number of preemptions of a job."""
    return job.preempted + (isinstance(state, Stopping) and state.reason is StopReason.PREEMPTION)


def _completed(state: Allocated, ended: AttemptEnd) -> str:
    if isinstance(state, Stopping):
        return "completed while it was asked to stop"
    if ended.message.startswith(STOPPED_EARLY):
        return ended.message
    return f"completed, although {ended.message}" if ended.message else "completed"


def _refused(ended: AttemptEnd) -> str:
    """Return the message of a refused launch for the reason of the next attempt."""
    return f": {ended.message}" if ended.cause == "launch_failed" and ended.message else ""


def _skipped(ended: AttemptEnd) -> str:
    count = len(ended.checkpoints_rejected)
    return f"; {count} invalid checkpoint{'s' if count > 1 else ''} skipped" if count else ""


def _why_not(job: Job, state: Allocated, reason: str, ended: AttemptEnd) -> str:
    """Return why no attempt follows: the decision, and the message of the program or of the checkpoints."""
    if isinstance(state, Stopping) and state.reason is StopReason.TIME_LIMIT:
        if job.time_limit is not None and (state.by is None or job.history.ran >= job.time_limit):
            return f"time limit of {readable_duration(job.time_limit)} reached"
        return state.by or reason  # the policy's ceiling on the running time, which may be lower
    if isinstance(state, Stopping) and state.reason is StopReason.HOLD:
        return f"held by {state.by}"
    plain = reason.removeprefix("give up: ").removeprefix("hold: ")
    said = (
        ended.message if ended.message.startswith(plain) else ": ".join(filter(None, (plain, ended.message)))
    )
    if ended.checkpoints_rejected and ended.checkpoint_step is None:
        return f"checkpoints exist and none is valid: {'; '.join(ended.checkpoints_rejected)}; {said}"
    return said


def _to(job: Job, state: State) -> Job:
    return replace(job, state=state)


def apply_revision(job: Job, event: RevisionApplied) -> tuple[Job, bool]:
    """Return the job with its new revision, and whether the running attempt must be stopped for it."""
    stops = event.verb in STARTS and isinstance(job.state, Running)
    after = replace(
        job,
        revision=event.number,
        grace=event.grace,
        time_limit=event.time_limit,
        attempts_max=event.attempts_max,
        history=event.history,
        turned=event.turned,
        promise=event.promise,
        stale=job.stale or event.other_image,
    )
    if event.verb in STARTS:
        after = replace(after, next_start=event.start)
    if event.lineage is not None:
        after = _in_lineage(after, event.lineage, event.saved)
    if isinstance(after.state, Running):
        after = replace(after, state=replace(after.state, deadline=deadline_of(after, after.state.since)))
    return after, stops


def deadline_of(job: Job, since: datetime) -> datetime | None:
    """Return the time at which an attempt that runs since another has used up its job's limit."""
    if job.time_limit is None:
        return None
    return since + max(job.time_limit - job.history.ran, timedelta())


def await_revision(job: Job) -> Step:
    """Return a job that is not stopped for its new revision."""
    if isinstance(job.state, Held | Finished):
        return replace(job, stale=False), ()  # its image is found when it begins
    return continue_job(job)


def continue_job(job: Job) -> Step:
    """Return a job that goes on; a queued job gets another image if its revision needs one."""
    if isinstance(job.state, Queued) and job.stale:
        return replace(job, state=Preparing(job.state.since), stale=False), (PrepareImage(),)
    return job, ()
