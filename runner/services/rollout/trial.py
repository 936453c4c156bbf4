"""The job that a canary is: a short trial of a revision beside its parent."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event as Flag
from typing import Any, Final

from jobs.contract import (
    Program,
)
from runner.core.job.model import Job
from runner.core.ports.store import JobRow
from runner.files.job.model import Retry
from runner.services.rollout.throughput import Throughput
from runner.services.submission.revision import Revision

LABEL: Final = "canary-of"
"""Label of a canary; its value is the id of the job that it is for."""


LIMIT: Final = timedelta(minutes=15)
"""Running time of a canary, at most."""


LEAST_STEPS: Final = 25
"""Fewer steps give no rate that anything could be decided by."""


@dataclass(frozen=True, slots=True)
class TrialMeasurement:
    """What a canary has shown."""

    pace: Throughput | None
    start_s: float  # from the request to the first step
    stop_s: float
    steps: int
    why: str = ""  # why there is no rate


@dataclass(slots=True)
class Trial:
    """One canary, from its submission until somebody has decided."""

    parent: str
    job_id: str
    steps: int
    began: datetime
    first: int = 0  # the step that it begins with
    parked: datetime | None = None  # since when the job itself stands still for it
    over: datetime | None = None  # it has been stopped
    done: int = 0
    found: TrialMeasurement | None = None
    decided: Flag = field(default_factory=Flag)

    def json(self) -> dict[str, Any]:
        """Return how far it is, and what it has shown."""
        rate = self.found.pace.steps if self.found and self.found.pace else None
        return {
            "canary": self.job_id,
            "steps": self.steps,
            "done": self.done,
            "parked": self.parked is not None,
            "finished": self.found is not None,
            "why": self.found.why if self.found else "",
            "rate": None if rate is None else {"mean": rate.mean, "low": rate.low, "high": rate.high},
        }


def trial_of(revision: Revision, parent: Job) -> Revision:
    """Return the revision of a canary: the same program and profile; it tells more, and keeps nothing."""
    job = revision.job
    plan = job.workload
    if not isinstance(plan, Program):
        plan = plan.model_copy(update={"log_every": 1})
    saving = {"every_steps": None, "every": timedelta(days=1), "milestone_every": None}
    limit = min(job.resources.time_limit or LIMIT, LIMIT)
    changed = job.model_copy(
        update={
            "name": f"{job.name[:56]}-canary",
            "workload": plan,
            "labels": {**job.labels, LABEL: parent.id},
            "checkpoint": job.checkpoint.model_copy(update=saving),
            "retry": Retry(max_attempts=1),
            "resources": job.resources.model_copy(update={"time_limit": limit}),
            "queue": job.queue.model_copy(update={"after": (), "not_before": None}),
        }
    )
    # Measured beside the job, whatever that one waits for and however many of its matrix may run.
    return revision.model_copy(update={"job": changed, "after": (), "sweep": None})


def is_canary(row: JobRow) -> bool:
    return LABEL in row.labels


def saves_on_stop(revision: Revision) -> bool | None:
    """Return whether a job saves when it is asked to stop; None: only the author of the program knows."""
    if isinstance(revision.job.workload, Program):
        return None
    return bool(getattr(revision.job.checkpoint, "on_stop", True))
