"""What a job is, what can happen to it, and what there is to do about it: values and nothing else.

What follows from what is said in ``lifecycle``; these are also what the store keeps, as JSON.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

from runner.core.policy.decision import Verdict
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from runner.core.policy.turned import Turned


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
    turned: Turned = field(default_factory=Turned)
    began: int | None = None  # newest valid checkpoint then: whoever has a newer one has advanced
    boot: str | None = None  # of the machine, when it started; None: nobody knows
    revision: int = 1  # of the job file


@dataclass(frozen=True, slots=True)
class Ended:
    """The evidence about the end of one attempt, gathered by the daemon."""

    exit_code: int | None  # None: nobody knows (the container vanished)
    cause: str  # one word, see docs/lifecycle.md
    message: str = ""  # one line for people
    oom_seen: bool = False  # the kernel killed a process of this attempt for memory
    completed: bool = False  # exit 0, and the result says so where the workload writes one
    checkpoint_step: int | None = None  # newest valid checkpoint of the lineage
    checkpoints_rejected: tuple[str, ...] = ()  # present and not valid, with reasons


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy has said about an end, made concrete: nothing of it has to be looked up again."""

    verdict: Verdict
    history: History
    start: Start = field(default_factory=Start)
    turned: Turned = field(default_factory=Turned)


@dataclass(frozen=True, slots=True)
class Promise:
    """What a change was made for; one that does not keep it is taken back, once."""

    back_to: int  # the revision before
    rate: float  # steps per second before
    faster: float  # how many times faster it was measured to be, at the bounds against it


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
Lent: TypeAlias = Starting | Running | Stopping


@dataclass(frozen=True, slots=True)  # events: what happened, in the past tense
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
    boot: str | None = None  # of the machine
    kind: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True)
class Launched:
    at: datetime
    boot: str | None = None
    kind: Literal["launched"] = "launched"


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine answered, and the answer was no; an engine that does not answer is no event."""

    at: datetime
    why: str
    ruling: Ruling
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
class HoldRequested:
    at: datetime
    by: str
    kind: Literal["hold_requested"] = "hold_requested"


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    at: datetime
    by: str
    kind: Literal["release_requested"] = "release_requested"


@dataclass(frozen=True, slots=True)
class RevisionApplied:
    """The job has another revision; the policy was asked what that means for what runs."""

    at: datetime
    by: str
    number: int
    text: str  # the revision, resolved
    verb: Verb  # keep, resume or restart
    why: str
    history: History
    grace: timedelta
    time_limit: timedelta | None
    attempts_max: int
    start: Start = field(default_factory=Start)
    lineage: int | None = None  # an earlier one, to go back to
    saved: int | None = None  # newest valid checkpoint of that one
    other_image: bool = False
    promise: Promise | None = None
    kind: Literal["revision_applied"] = "revision_applied"


@dataclass(frozen=True, slots=True)
class PreemptRequested:
    at: datetime
    for_job: str
    why: str
    kind: Literal["preempt_requested"] = "preempt_requested"


@dataclass(frozen=True, slots=True)
class Condemned:
    """A rule of ``on_watch`` has said: stop; without a rule it is the ceiling on running time."""

    at: datetime
    attempt: int
    rule: str
    why: str
    kind: Literal["condemned"] = "condemned"


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
    ruling: Ruling
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
    | HoldRequested
    | ReleaseRequested
    | RevisionApplied
    | PreemptRequested
    | Condemned
    | DeadlinePassed
    | GracePassed
    | Exited
)


@dataclass(frozen=True, slots=True)  # commands: what the daemon must do, each idempotent
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
    grace: timedelta = timedelta(seconds=30)  # between SIGTERM and SIGKILL
    time_limit: timedelta | None = None  # running time of all attempts together
    attempts_max: int = 20  # the policy's ceiling, for people
    attempts: int = 0  # made so far, charged or not
    lineage: int = 1
    lineages: int = 1  # made so far; a rollback leads back to an earlier one
    saved: int | None = None  # newest valid checkpoint of the lineage, when an attempt ended last
    next_start: Start = field(default_factory=Start)
    turned: Turned = field(default_factory=Turned)
    history: History = field(default_factory=History)
    preempted: int = 0  # times it gave way to another job
    revision: int = 1  # of the job file
    stale: bool = False  # its image was found for an earlier revision
    promise: Promise | None = None  # of the last change, until it has been kept or broken
