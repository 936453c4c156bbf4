"""The job: everything that ``lifecycle`` needs to decide about it.  The store keeps it as JSON."""

from dataclasses import dataclass, field
from datetime import timedelta

from runner.core.job.attempt import ExpectedSpeedup, Start
from runner.core.job.states import State
from runner.core.policy.adjustments import Overrides
from runner.core.policy.history import History


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides what may happen next; the job file itself is not needed here."""

    id: str
    state: State
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    time_limit: timedelta | None = None  # running time of all attempts together
    attempts_max: int = 20  # ceiling of the policy, for display
    attempts: int = 0  # so far, charged or not
    lineage: int = 1
    lineages: int = 1  # so far; a rollback returns to an earlier one
    saved: int | None = None  # newest valid checkpoint of the lineage at the last end of an attempt
    has_versions: bool = False  # that number is the one of a version, not a step
    next_start: Start = field(default_factory=Start)
    turned: Overrides = field(default_factory=Overrides)
    history: History = field(default_factory=History)
    preempted: int = 0  # how often it was preempted
    revision: int = 1  # of the job file
    stale: bool = False  # its image was found for an earlier revision
    promise: ExpectedSpeedup | None = None  # of the last change, until it is verified
