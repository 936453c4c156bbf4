"""The states of a job: each holds exactly what is true in it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from runner.core.job.attempt import Allocation, Attempt


class StopReason(StrEnum):
    """Why we asked an attempt to stop."""

    CANCELLED = "cancelled"  # by its owner; final
    TIME_LIMIT = "time_limit"  # its running time is used up
    RESTART = "restart"  # somebody wants another attempt; costs none
    CHANGE = "change"  # a new revision of its file; costs none
    HOLD = "hold"  # somebody wants to look first
    PREEMPTION = "preemption"  # its devices are needed elsewhere
    WATCH = "watch"  # a rule of the policy; its name stands beside this


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Preparing:
    """Its image is being found or built."""

    since: datetime
    kind: Literal["preparing"] = "preparing"


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits for devices, cpus and memory, or for its backoff to pass."""

    since: datetime
    image: str
    why: str = ""  # what brought it here, when an earlier attempt did
    not_before: datetime | None = None
    kind: Literal["queued"] = "queued"


@dataclass(frozen=True, slots=True)
class Starting:
    """Devices are lent; the container is being made."""

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
    by: str | None = None  # who asked for it; the rule, if that is the reason
    started: datetime | None = None  # None: it was asked to stop before it had started
    kind: Literal["stopping"] = "stopping"


@dataclass(frozen=True, slots=True)
class Held:
    """It waits for a person."""

    since: datetime
    why: str
    asked: bool = False  # somebody wanted that; else the policy did
    kind: Literal["held"] = "held"


@dataclass(frozen=True, slots=True)
class Finished:
    since: datetime
    outcome: Outcome
    why: str
    kind: Literal["finished"] = "finished"


State: TypeAlias = Preparing | Queued | Starting | Running | Stopping | Held | Finished


Allocated: TypeAlias = Starting | Running | Stopping
