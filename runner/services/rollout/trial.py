"""A trial: a canary, its measurement, and the revision that it runs."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event as Flag
from typing import Any, Final

from jobs.contract import Program
from runner.core.job.model import Job
from runner.core.ports.store import JobRow
from runner.files.job.model import Retry
from runner.files.revision import Revision
from runner.services.rollout.throughput import NEVER, Span, Throughput

LABEL: Final = "canary-of"
"""The label of a canary; its value is the id of its parent."""


TIME_LIMIT: Final = timedelta(minutes=15)
"""The longest running time of a canary."""

MIN_STEPS: Final = 25
"""Fewer steps give no rate that is certain enough for a decision."""


@dataclass(frozen=True, slots=True)
class TrialMeasurement:
    """The result of a canary."""

    pace: Throughput | None
    start_s: float  # from the launch to the first step
    stop_s: float
    steps: int
    why: str = ""  # reason of a missing throughput
    span: Span = NEVER  # from its first step to its last one


@dataclass(slots=True)
class Trial:
    """One canary, from its submission until the decision about the change."""

    parent: str
    job_id: str
    steps: int
    began: datetime
    first: int | None = 0  # the step that it starts from; None: its first step tells
    parked: datetime | None = None  # since when its parent is held for it
    over: datetime | None = None  # when it was stopped
    done: int = 0
    found: TrialMeasurement | None = None
    decided: Flag = field(default_factory=Flag)

    def json(self) -> dict[str, Any]:
        """Return its progress and its result as JSON values."""
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


def canary_revision(revision: Revision, parent: Job, steps: int = MIN_STEPS) -> Revision:
    """Return the revision of a canary: the same program and profile, metrics of each step, no saves.

    A training that evaluates does so in the middle of its canary: an evaluation may be most of the work.
    """
    job = revision.job
    plan = job.workload
    saving: dict[str, object] = {"every_steps": None, "every": timedelta(days=1), "milestone_every": None}
    if not isinstance(plan, Program):
        every = getattr(plan, "eval_every", None)
        evaluated = {"eval_every": min(every, max(steps // 2, 1))} if every else {}
        plan = plan.model_copy(update={"log_every": 1, **evaluated})
        saving["before_eval"] = False
    limit = min(job.resources.time_limit or TIME_LIMIT, TIME_LIMIT)
    changed = job.model_copy(
        update={
            "name": f"{job.name[:56]}-canary",
            "workload": plan,
            "labels": {**job.labels, LABEL: parent.id},
            "checkpoint": job.checkpoint.model_copy(update=saving),
            "retry": Retry(max_attempts=1),
            "resources": job.resources.model_copy(update={"time_limit": limit}),
            "queue": job.queue.model_copy(update={"after": (), "not_before": None}),
            "sweep": None,
        }
    )
    # A canary waits for no other job, does not count against the limit of a matrix, and pauses at no rung.
    return revision.model_copy(update={"job": changed, "after": (), "one_failed": (), "sweep": None})


def is_canary(row: JobRow) -> bool:
    """Return True if a job is a canary."""
    return LABEL in row.labels
