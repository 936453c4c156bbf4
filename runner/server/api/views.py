"""Jobs as JSON values; times are ISO 8601 in UTC."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeAlias

from jobs.contract import Result, Status
from runner.core.job.attempt import ProgramStart
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Finished, Held, Preparing, Queued, Running, Starting, Stopping
from runner.core.policy.adjustments import Overrides
from runner.core.ports.network import NetworkState
from runner.core.ports.store import AttemptRow, EventRow, JobRow

Json: TypeAlias = dict[str, Any]


def summary(row: JobRow, waiting: str, progress: Status | None) -> Json:
    """Return one job as a list shows it; ``waiting`` is its pending reason, by a plan of before perhaps."""
    state = row.job.state
    return {
        "id": row.job.id,
        "name": row.name,
        "owner": row.owner.name,
        "state": state.kind,
        "outcome": str(state.outcome) if isinstance(state, Finished) else None,
        "why": ("" if isinstance(state, Held | Finished) else waiting) or _why(row.job),
        "since": moment(state.since),
        "submitted_at": moment(row.submitted_at),
        "attempt": row.job.attempts,
        "attempts_max": row.job.attempts_max,
        "priority": row.priority,
        "gpus": list(_devices(row.job)),
        "host": row.job.state.attempt.host if isinstance(row.job.state, Allocated) else None,
        "progress": None if progress is None else progress.model_dump(mode="json"),
        **_saved(row, progress),
        "labels": dict(row.labels),
    }


def _saved(row: JobRow, progress: Status | None) -> Json:
    """Return the step of the newest checkpoint: as a running attempt reports it, else as it was verified.

    If no name has a number that grows, there is no step: what is known is which version it is.
    """
    told = None if progress is None else progress.checkpoint_step
    if told is None and row.job.saved is not None and row.job.has_versions:
        return {"saved_step": None, "saved_version": row.job.saved}
    return {"saved_step": row.job.saved if told is None else max(told, row.job.saved or 0)}


def network(access: str, state: NetworkState) -> Json:
    """Return what a job reaches; ``holds`` is whether all else is known to be closed, null if unknown."""
    return {"access": access, "holds": state.holds, "problem": state.problem}


def settings(turned: Overrides) -> Json:
    """Return the settings that policy adjustments have overridden."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(turned).items()
        if value not in {None, ()}
    }


def attempt(
    row: AttemptRow, result: Result | None, status: Status | None, start: ProgramStart | None = None
) -> Json:
    """Return one attempt; a killed one has no result, so its last heartbeat says where it started.

    Of a program that saves on its own, ``start`` says so.
    """
    report = result or status
    resumed_from = None if report is None else report.resumed_from
    if resumed_from is None and start is not None:
        resumed_from = start.step if start.known_as is None else None
    return {
        "number": row.number,
        "lineage": row.lineage,
        "placed_at": moment(row.placed_at),
        "launched_at": moment(row.launched_at),
        "ended_at": moment(row.ended_at),
        "exit_code": row.exit_code,
        "cause": row.cause,
        "message": row.message,
        "verdict": row.verdict,
        "resumed_from": resumed_from,
        "checkpoint_step": row.checkpoint_step,
        "set_aside": [f"{start.directory}/{path}" for path in start.set_aside] if start else [],
    }


def event(row: EventRow, name: str) -> Json:
    """Return one event of a job with a name."""
    at = moment(row.at)
    return {"seq": row.seq, "job": row.job_id, "name": name, "at": at, "kind": row.kind, "text": row.text}


def _why(job: Job) -> str:
    match job.state:
        case Preparing():
            return "preparing the image"
        case Queued(why=why):
            return why
        case Held(why=why) | Finished(why=why):
            return why
        case Stopping(reason=reason):
            return str(reason)
        case Starting() | Running():
            return ""


def _devices(job: Job) -> tuple[str, ...]:
    return job.state.allocation.devices if isinstance(job.state, Starting | Running | Stopping) else ()


def moment(at: datetime | None) -> str | None:
    """Return a time as text, None as None."""
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
