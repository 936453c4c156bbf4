"""What a job is, what can happen to it, and what there is to do about it: values and nothing else.

What follows from what is said in ``lifecycle``; these are also what the store keeps, as JSON.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from runner.core.job.attempt import ExpectedSpeedup, Start
from runner.core.job.states import State
from runner.core.policy.adjustments import Overrides
from runner.core.policy.history import History

# States: each holds exactly the facts that are true in it.


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides what may happen next; the job file itself is not needed here."""

    id: str
    state: State
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    time_limit: timedelta | None = None  # running time of all attempts together
    attempts_max: int = 20  # the policy's ceiling, for people
    attempts: int = 0  # made so far, charged or not
    lineage: int = 1
    lineages: int = 1  # made so far; a rollback leads back to an earlier one
    saved: int | None = None  # newest valid checkpoint of the lineage, when an attempt ended last
    next_start: Start = field(default_factory=Start)
    turned: Overrides = field(default_factory=Overrides)
    history: History = field(default_factory=History)
    preempted: int = 0  # times it gave way to another job
    revision: int = 1  # of the job file
    stale: bool = False  # its image was found for an earlier revision
    promise: ExpectedSpeedup | None = None  # of the last change, until it has been kept or broken
