"""``runner why``: the pending reason of a job, or what it does, until when, and what can be done about it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from jobs.contract import Program
from runner.agent.attempts.checkpoints import program_files
from runner.control.context import TrackedJob
from runner.control.controller import Controller
from runner.core.job.attempt import StartFrom
from runner.core.job.describe import describe_start
from runner.core.job.states import Allocated, Finished, Held, Preparing, Queued, Running, Starting, Stopping
from runner.core.ports.store import JobRow
from runner.core.scheduler.displacement import describe_turn
from runner.core.scheduler.formatting import ESTIMATED_BY, format_time
from runner.core.scheduler.snapshot import EstimateSource, Snapshot
from runner.files.revision import parse_revision
from runner.server.api.views import Json, moment


def reason(daemon: Controller, row: JobRow, more: str = "", begin: str = "") -> Json:
    """Return the reason of a job's state as JSON.

    ``more`` is added to it, ``begin`` says where its next attempt begins.

    ``starts_at`` is the expected start of a job that waits, ``until`` the expected end of one that holds
    resources; null is unknown.  ``estimated_by`` is what the duration of the job is estimated by: its time
    limit, the steps that it reports, or earlier jobs.
    """
    entry, job_id = daemon.tracked_jobs.get(row.job.id), row.job.id
    wait = None if entry is None else daemon.scheduler.pending_reason(entry)
    running = daemon.scheduler.jobs.running.get(job_id)
    ends_s = None if running is None else running.ends_s
    estimated_by = _estimated_by(daemon, job_id)
    now = daemon.context.clock.now()
    at = Snapshot(now.timestamp(), (), utc_offset_s=daemon.context.site.utc_offset_s(now))
    if estimated_by in GUESSES and ends_s is not None and ends_s <= at.now_s:
        ends_s = None  # it has outlasted what earlier jobs suggest
    return {
        "job": job_id,
        "name": row.name,
        "state": row.job.state.kind,
        "outcome": str(row.job.state.outcome) if isinstance(row.job.state, Finished) else None,
        "why": _describe(
            row,
            daemon.why(job_id),
            _End(ends_s, estimated_by, at),
            waits=entry is not None and entry.waiting is not None,
            begin=begin,
        )
        + _turn(daemon, row, at.now_s)
        + more,
        "starts_at": _starts_at(entry) if wait is None else _moment(wait.starts_s),
        "never": wait is not None and wait.never,
        "until": _moment(ends_s),
        "estimated_by": None if estimated_by is None else str(estimated_by),
    }


GUESSES: Final = frozenset(set(EstimateSource) - {EstimateSource.PROGRESS, EstimateSource.TIME_LIMIT})
"""Estimates that follow from other jobs."""


@dataclass(frozen=True, slots=True)
class _End:
    """The expected end of a job."""

    at_s: float | None
    by: EstimateSource | None
    now: Snapshot


def _estimated_by(daemon: Controller, job_id: str) -> EstimateSource | None:
    jobs = daemon.scheduler.jobs
    running, pending = jobs.running.get(job_id), jobs.pending.get(job_id)
    if running is not None:
        return running.ends_by
    if pending is None or pending.time_limit_s is not None:
        return None if pending is None else EstimateSource.TIME_LIMIT
    return pending.estimated_by


def _moment(at_s: float | None) -> str | None:
    return None if at_s is None else moment(datetime.fromtimestamp(at_s, UTC))


def _starts_at(entry: TrackedJob | None) -> str | None:
    """Return the time at which the engine expects to begin an attempt that waits in its own queue."""
    waiting = None if entry is None else entry.waiting
    return None if waiting is None or waiting.starts_at is None else moment(waiting.starts_at)


def _describe(row: JobRow, why: str, end: _End, *, waits: bool = False, begin: str = "") -> str:
    match row.job.state:
        case Starting(attempt=attempt) if waits:
            return f"attempt {attempt.number} waits in the queue of the engine{_suffix(why)}"
        case Preparing():
            return f"its image is being found or built{_suffix(why)}"
        case Queued(why=before):
            first = why or "the queue is about to look at it"
            return f"{first}{f' (before that: {before})' if before else ''}"
        case Held(why=held, asked=asked):
            by = "" if asked or held.startswith("held") else "held by its policy: "
            return f"{by}{held}; runner release lets it go on{begin and f' {begin}'}, runner cancel ends it"
        case Finished(outcome=outcome, why=ended):
            return ended if ended.startswith(outcome) else f"{outcome}: {ended}"
        case Starting() | Running() | Stopping() as state:
            return f"{_activity(state)}{_expected_end(state, end)}{_suffix(why)}"


def begins(row: JobRow) -> str:
    """Return the start of a job's next attempt, and the reason why a program begins anew."""
    if row.job.next_start.source is StartFrom.CHECKPOINT and row.job.saved is None and row.job.attempts:
        revision = parse_revision(row.revision)
        if isinstance(revision.job.workload, Program) and program_files(revision) is None:
            kept = "in the files that it has left" if revision.keeps_files else "from the beginning"
            return f"{kept} (no checkpoint.files tell what it saves)"
    return describe_start(row.job)


def _turn(daemon: Controller, row: JobRow, now_s: float) -> str:
    """Return True if a job that runs is preempted for others, where this queue and its order decide that."""
    running, state = daemon.scheduler.jobs.running.get(row.job.id), row.job.state
    if running is None or not isinstance(state, Running) or state.attempt.host is not None:
        return ""
    turn = describe_turn(running, now_s, daemon.context.site.rules)
    return f"; {turn}" if turn else ""


def _activity(state: Allocated) -> str:
    devices = state.attempt.host_devices or state.allocation.devices
    where = ", ".join(devices) or state.attempt.host or "cpu"
    where += f" of {state.attempt.host}" if devices and state.attempt.host else ""
    begins = f"attempt {state.attempt.number}"
    match state:
        case Starting():
            return f"{begins} is being started on {where}"
        case Running():
            return f"{begins} runs on {where}"
        case Stopping(reason=reason, by=by):
            by_whom = f" by {by}" if by and not by.isdecimal() else f" for job {by}" if by else ""
            return f"{begins} on {where} was asked to stop ({reason}{by_whom})"


def _expected_end(state: Allocated, end: _End) -> str:
    if end.at_s is None:
        outlasted = ": it has outlasted what earlier jobs suggest" if end.by in GUESSES else ""
        return f"; nobody knows until when{outlasted}"
    until = format_time(end.at_s, end.now)
    match state:
        case Stopping():
            return f"; it is gone by about {until}"
        case Running(deadline=deadline) if deadline is not None:
            return f"; its time limit ends it at {until} at the latest"
        case _:
            return f"; probably until about {until}{f', {ESTIMATED_BY[end.by]}' if end.by else ''}"


def _suffix(why: str) -> str:
    return f": {why}" if why else ""
