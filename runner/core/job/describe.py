"""Descriptions of events: one line for people, which the store keeps with each event."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from runner.base.readable import readable_duration
from runner.core.job.attempt import AttemptEnd, ProgramStart, StartFrom
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
from runner.core.job.exit_cause import find_note
from runner.core.job.model import Job
from runner.core.job.states import Finished, Held, Queued, Running, Starting, Stopping, StopReason
from runner.core.policy.model import Verb


def describe_event(event: Event, after: Job) -> str:
    """Return one line about an event and what followed from it."""
    match event:
        case ImageReady(_, image):
            return f"image ready: {image[:19]}"
        case ImageFailed(_, why):
            return f"image failed: {why}"
        case PreparationRefused(_, why):
            return f"held: {why}"
        case ImageMissing():
            return "the image is gone from the engine; preparing it again"
        case HostFailed(_, why, not_before):
            again = "" if not_before is None else f"; tried again at {not_before:%H:%M:%S} UTC"
            return f"not started, and not counted: {why}{again}"
        case Placed(_, allocation):
            where = ", ".join(allocation.devices) or "cpu"
            return f"attempt {after.attempts} placed on {where}, {describe_start(after)}"
        case Launched(resumed=resumed):
            return f"attempt {after.attempts} started{_place(event)}{_resumed(resumed)}"
        case LaunchFailed(_, why, _):
            return f"attempt {after.attempts} could not start: {why}; {describe_decision(after)}"
        case CancelRequested(_, by):
            return f"cancel requested by {by}{_asked(after)}"
        case RestartRequested(_, by, _, lineage):
            where = "" if lineage is None else f" in lineage {lineage}"
            return f"restart requested by {by}, {describe_start(after)}{where}{_asked(after)}"
        case HoldRequested(_, by):
            return f"hold requested by {by}{_asked(after)}"
        case ReleaseRequested(_, by):
            return f"released by {by}"
        case RevisionApplied():
            return f"revision {event.number} by {event.by}: {_taken_up(event)}{_asked(after)}"
        case LivenessFailed(_, number, rule, why):
            by = f"rule {rule} of the policy" if rule else "the policy"
            return f"attempt {number} is stopped by {by}: {why}{_asked(after)}"
        case PreemptRequested(_, _, why):
            return f"{why}{_asked(after)}"
        case SwitchCalledOff(_, number, why):
            return f"attempt {number} goes on, it was not told: {why}"
        case DeadlinePassed():
            return (
                f"time limit of {readable_duration(after.time_limit or timedelta())} reached{_asked(after)}"
            )
        case GracePassed():
            return f"still alive after {readable_duration(after.grace)} of grace; sending SIGKILL"
        case Exited(_, number, ended, _):  # exhaustive
            decided = describe_decision(after)
            note = find_note(ended.message)
            told = f"; {note}" if note and note not in decided else ""
            return f"attempt {number} ended: {_ended(ended)}; {decided}{told}"


def _place(event: Launched) -> str:
    """Return the host on which an engine with a queue of its own has started an attempt."""
    if event.host is None:
        return ""
    return f" on {event.host}" + (f" ({', '.join(event.devices)})" if event.devices else "")


def _resumed(resumed: ProgramStart | None) -> str:
    """Return the checkpoint that a program resumes from, and the later ones set aside for it."""
    if resumed is None:
        return ""
    if not resumed.path:
        kept = f"what was written before is in {resumed.directory}"
        return (
            f", from the submitted code; {kept}"
            if resumed.directory
            else ", in the files of the attempt before"
        )
    name = f"step {resumed.step}" if resumed.known_as is None else resumed.known_as
    text = f", from {resumed.path}{f' ({name})' if name else ''}"
    text += _named("torn, so its newest whole version was put back", resumed.put_back)
    text += _named("torn, so renamed to .NAME.torn", resumed.torn)
    return text + _named(f"set aside in {resumed.directory}", resumed.set_aside)


def _named(what: str, paths: Sequence[str]) -> str:
    """Return what was done with some checkpoints; "" if there are none."""
    more = len(paths) - NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f"; {what}: {', '.join(paths[:NAMED])}{rest}" if paths else ""


NAMED: Final = 5
"""Checkpoints that are named in one line at most."""


def describe_decision(after: Job) -> str:
    """Return the decision about a job whose attempt has ended, and its reason."""
    match after.state:
        case Finished(outcome=outcome, why=why):
            return why if why.startswith(outcome) else f"{outcome}: {why}"
        case Held(why=why):
            return f"held: {why}"
        case Queued(since=since, why=why, not_before=not_before) if not_before and not_before > since:
            return f"{why}, in {readable_duration(not_before - since)}"
        case Queued(why=why):
            return why
        case _:
            return str(after.state.kind)


def describe_start(after: Job) -> str:
    """Return the start of the next attempt of a job, or of the one that was just placed."""
    match after.next_start.source:
        case StartFrom.CHECKPOINT:
            return _newest(after)
        case StartFrom.SCRATCH:
            return "from scratch"
        case StartFrom.STEP:  # exhaustive
            return f"from {'version' if after.has_versions else 'step'} {after.next_start.step}"


def _newest(after: Job) -> str:
    """Return the start from the newest checkpoint, which may not exist or not be saved yet."""
    if after.saved is not None:
        return "from the newest checkpoint"
    if isinstance(after.state, Stopping):
        return "from the newest checkpoint, if there is one by then"
    earlier = after.attempts - isinstance(after.state, Starting)
    return "with no valid checkpoint to begin from" if earlier else "from the beginning"


def describe_refusal(job: Job, event: Event) -> str:
    """Return the reason why a job in its state does not accept an event, and which commands it accepts."""
    what = _WISHES.get(event.kind, f"take {event.kind.replace('_', ' ')}")
    match job.state:
        case Finished(outcome=outcome):
            stands, instead = f"has ended ({outcome})", "runner restart begins another attempt"
        case Held():
            stands, instead = "is held", "runner release lets it go on, runner cancel ends it"
        case Stopping(reason=StopReason.CANCELLED):
            stands, instead = "is being cancelled", "runner restart begins another attempt once it has ended"
        case Stopping(reason=reason):
            stands = f"is stopping ({reason})"
            instead = "wait until its attempt has ended, or runner cancel it"
        case Running() | Starting() as state:
            stands, instead = f"is {state.kind}", "runner hold, restart and cancel stop its attempt"
        case state:
            stands, instead = (
                f"is {state.kind}",
                "runner hold and cancel work now; runner list says what it waits for",
            )
    return f"{stands}, so it cannot {what}; {instead}"


_WISHES: Final[Mapping[str, str]] = {
    "cancel_requested": "be cancelled",
    "restart_requested": "be restarted",
    "hold_requested": "be held",
    "release_requested": "be released",
    "revision_applied": "be changed",
}


def _asked(after: Job) -> str:
    return (
        f"; sending SIGTERM, {readable_duration(after.grace)} of grace"
        if isinstance(after.state, Stopping)
        else ""
    )


def _taken_up(event: RevisionApplied) -> str:
    back = "" if event.lineage is None else f"back to lineage {event.lineage}, "
    verb = "stored" if event.verb is Verb.KEEP else event.verb
    return f"{back}{verb}: {event.why}"


def _ended(ended: AttemptEnd) -> str:
    code = "" if ended.exit_code is None else f" (exit {ended.exit_code})"
    return f"{ended.cause}{code}"


ADVISED: Final = "advised"
"""Kind of the event of an advice about a running attempt."""


SIGNALLED: Final = "signal_requested"
"""Kind of the event of a signal that a user has sent to an attempt."""


def attempt_prefix(attempt: int) -> str:
    """Return the beginning of a line about one attempt of a job."""
    return f"attempt {attempt}: "
