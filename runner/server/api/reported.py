"""Facts about the newest attempt of a job beyond its heartbeat, as JSON values."""

from jobs.contract import Effective, Status, TraceSummary
from runner.core.job.states import Running
from runner.core.ports.store import JobRow
from runner.server.api.views import Json
from runner.services.jobs import JobService


def reported(service: JobService, row: JobRow, status: Status | None) -> Json:
    """Return epochs, trace and disk rates of a job; null where they are not known."""
    return {
        "epochs": epochs(service.queries.effective(row), status),
        "trace": trace(service.queries.trace(row)),
        "disk": disk(service, row),
    }


def disk(service: JobService, row: JobRow) -> Json | None:
    """Return how fast a running job reads from disks and writes to them, in bytes and bytes per second."""
    context, state = service.daemon.context, row.job.state
    if not isinstance(state, Running):
        return None
    rates = context.disk.current.get(context.key(row.job.id, state.attempt.number))
    if rates is None:
        return None
    return {
        "read_per_s": rates.read_per_s,
        "written_per_s": rates.written_per_s,
        "read_bytes": rates.total.read_bytes,
        "written_bytes": rates.total.written_bytes,
    }


def trace(found: tuple[int, TraceSummary] | None) -> Json | None:
    """Return the operators of a trace that took the most time, with the attempt that has recorded it."""
    return None if found is None else {"attempt": found[0], **found[1].model_dump(mode="json")}


def epochs(effective: Effective | None, status: Status | None) -> Json | None:
    """Return the length of an epoch in steps and seconds, and how many are done."""
    length = None if effective is None else effective.steps_per_epoch
    if length is None or status is None or status.step is None:
        return None
    return {
        "steps_per_epoch": length,
        "done": status.step / length,
        "total": None if status.total_steps is None else status.total_steps / length,
        "epoch_s": None if status.step_s is None else status.step_s * length,
    }
