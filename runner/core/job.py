"""What a job is, what can happen to it, and what there is to do about it: values and nothing else.

Each state holds exactly the facts that are true in it.  What follows from what is said in
``lifecycle``; these are also what the store keeps, as JSON.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

from runner.core.retry import Ended, Ledger, RetryLimits


class StopReason(StrEnum):
    """Why we asked an attempt to stop."""

    CANCELLED = "cancelled"  # by its owner; final
    TIME_LIMIT = "time_limit"  # its running time is used up; final
    RESTART = "restart"  # somebody wants another attempt; costs none


class Outcome(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class From(StrEnum):
    """Where the next attempt begins."""

    CHECKPOINT = "checkpoint"  # the newest valid one of the lineage, or step 0 when there is none
    SCRATCH = "scratch"  # step 0 in a new lineage; the old one is kept
    STEP = "step"  # the checkpoint of a given step


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt begins; ``step`` is set for ``From.STEP`` alone."""

    source: From = From.CHECKPOINT
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices lent to one attempt, by UUID: indices move between boots."""

    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One container or process run of a job."""

    number: int
    lineage: int
    start: Start = field(default_factory=Start)


# States: each holds exactly the facts that are true in it.


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
    by: str | None = None  # who cancelled it, if that is the reason
    kind: Literal["stopping"] = "stopping"


@dataclass(frozen=True, slots=True)
class Held:
    """It waits for a person."""

    since: datetime
    why: str
    kind: Literal["held"] = "held"


@dataclass(frozen=True, slots=True)
class Finished:
    since: datetime
    outcome: Outcome
    why: str
    kind: Literal["finished"] = "finished"


State: TypeAlias = Preparing | Queued | Starting | Running | Stopping | Held | Finished
Lent: TypeAlias = Starting | Running | Stopping


# Events: what happened, in the past tense.


@dataclass(frozen=True, slots=True)
class ImageReady:
    at: datetime
    image: str
    kind: Literal["image_ready"] = "image_ready"


@dataclass(frozen=True, slots=True)
class ImageFailed:
    at: datetime
    why: str
    kind: Literal["image_failed"] = "image_failed"


@dataclass(frozen=True, slots=True)
class ImageMissing:
    """The image was there when it was resolved and is gone now."""

    at: datetime
    kind: Literal["image_missing"] = "image_missing"


@dataclass(frozen=True, slots=True)
class Placed:
    at: datetime
    allocation: Allocation
    kind: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True)
class Launched:
    at: datetime
    kind: Literal["launched"] = "launched"


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine answered, and the answer was no; an engine that does not answer is no event."""

    at: datetime
    why: str
    kind: Literal["launch_failed"] = "launch_failed"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    at: datetime
    by: str
    kind: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True)
class RestartRequested:
    at: datetime
    by: str
    start: Start
    kind: Literal["restart_requested"] = "restart_requested"


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    at: datetime
    kind: Literal["deadline_passed"] = "deadline_passed"


@dataclass(frozen=True, slots=True)
class GracePassed:
    at: datetime
    kind: Literal["grace_passed"] = "grace_passed"


@dataclass(frozen=True, slots=True)
class Exited:
    at: datetime
    attempt: int
    ended: Ended
    kind: Literal["exited"] = "exited"


Event: TypeAlias = (
    ImageReady
    | ImageFailed
    | ImageMissing
    | Placed
    | Launched
    | LaunchFailed
    | CancelRequested
    | RestartRequested
    | DeadlinePassed
    | GracePassed
    | Exited
)


# Commands: what the daemon must do, in the imperative.  All are idempotent.


@dataclass(frozen=True, slots=True)
class PrepareImage:
    pass


@dataclass(frozen=True, slots=True)
class Launch:
    attempt: Attempt
    image: str
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask politely: SIGTERM."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Do not ask: SIGKILL."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the ended container away; its evidence is recorded."""

    attempt: int


Command: TypeAlias = PrepareImage | Launch | Terminate | Kill | Remove


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides what may happen next; the job file itself is not needed here."""

    id: str
    state: State
    limits: RetryLimits = field(default_factory=RetryLimits)
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    time_limit: timedelta | None = None  # running time of all attempts together
    ran: timedelta = timedelta()  # used of it by attempts that have ended
    attempts: int = 0  # made so far, charged or not
    lineage: int = 1
    next_start: Start = field(default_factory=Start)
    ledger: Ledger = field(default_factory=Ledger)
