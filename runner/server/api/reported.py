"""What the newest attempt of a job has reported about itself, beyond its heartbeat, as JSON values."""

from jobs.contract import Effective, Status, TraceSummary
from runner.core.ports.store import JobRow
from runner.server.api.views import Json
from runner.services.jobs import JobService


def reported(service: JobService, row: JobRow, status: Status | None) -> Json:
    """Return the epochs and the trace of a training; null where it has reported none."""
    return {
        "epochs": epochs(service.queries.effective(row), status),
        "trace": trace(service.queries.trace(row)),
    }


def trace(found: tuple[int, TraceSummary] | None) -> Json | None:
    """Return the operators of a trace that took the most time, with the attempt that has recorded it."""
    return None if found is None else {"attempt": found[0], **found[1].model_dump(mode="json")}


def epochs(effective: Effective | None, status: Status | None) -> Json | None:
    """Return the length of an epoch in steps and seconds, and how many are done."""
    length = None if effective is None else effective.steps_per_epoch
    if length is None or status is None:
        return None
    return {
        "steps_per_epoch": length,
        "done": status.step / length,
        "total": None if status.total_steps is None else status.total_steps / length,
        "epoch_s": None if status.step_s is None else status.step_s * length,
    }
