"""The states of a job: each holds exactly what is true in it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from runner.core.job.attempt import Allocation, Attempt


class StopReason(StrEnum):
    """Reason for which an attempt was told to stop."""

    CANCELLED = "cancelled"  # by its owner; final
    TIME_LIMIT = "time_limit"  # its time limit has passed
    RESTART = "restart"  # a user wants another attempt; not charged
    CHANGE = "change"  # a new revision of its file; not charged
    HOLD = "hold"  # a user wants to inspect it first
    PREEMPTION = "preemption"  # for another job
    WATCH = "watch"  # by a rule of the policy; ``by`` is its name


class Outcome(StrEnum):
    """Final result of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Preparing:
    """The image is being found or built."""

    since: datetime
    kind: Literal["preparing"] = "preparing"


@dataclass(frozen=True, slots=True)
class Queued:
    """The job waits for resources or for its backoff."""

    since: datetime
    image: str
    why: str = ""  # the decision after an earlier attempt
    not_before: datetime | None = None
    kind: Literal["queued"] = "queued"


@dataclass(frozen=True, slots=True)
class Starting:
    """The devices are allocated; the container is being started."""

    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    kind: Literal["starting"] = "starting"


@dataclass(frozen=True, slots=True)
class Running:
    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    deadline: datetime | None = None
    kind: Literal["running"] = "running"


@dataclass(frozen=True, slots=True)
class Stopping:
    """SIGTERM was sent; SIGKILL follows at ``kill_at`` and is repeated until the attempt is gone."""

    since: datetime
    image: str
    attempt: Attempt
    allocation: Allocation
    reason: StopReason
    kill_at: datetime
    killed: bool = False
    by: str | None = None  # who requested it, or the rule
    started: datetime | None = None  # None: it had not started
    kind: Literal["stopping"] = "stopping"


@dataclass(frozen=True, slots=True)
class Held:
    """The job waits for a user."""

    since: datetime
    why: str
    asked: bool = False  # requested by a user; else by the policy
    kind: Literal["held"] = "held"


@dataclass(frozen=True, slots=True)
class Finished:
    since: datetime
    outcome: Outcome
    why: str
    kind: Literal["finished"] = "finished"


State: TypeAlias = Preparing | Queued | Starting | Running | Stopping | Held | Finished


Allocated: TypeAlias = Starting | Running | Stopping
