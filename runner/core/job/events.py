"""Events: what has happened to a job, in the past tense."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from runner.core.job.attempt import (
    Allocation,
    AttemptEnd,
    ExitDecision,
    ExpectedSpeedup,
    ProgramStart,
    Start,
)
from runner.core.policy.adjustments import Overrides
from runner.core.policy.history import History
from runner.core.policy.model import Verb


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
class PreparationRefused:
    """A rule or a permission forbids the preparation; a person must change something."""

    at: datetime
    why: str
    kind: Literal["preparation_refused"] = "preparation_refused"


@dataclass(frozen=True, slots=True)
class ImageMissing:
    """The image was there when it was resolved and is gone now."""

    at: datetime
    kind: Literal["image_missing"] = "image_missing"


@dataclass(frozen=True, slots=True)
class HostFailed:
    """The host could not start the attempt: its devices, its driver, its engine or its disk.

    The attempt is not counted.
    """

    at: datetime
    why: str
    not_before: datetime | None = None  # of the next launch; None: as soon as there are devices
    kind: Literal["host_failed"] = "host_failed"


@dataclass(frozen=True, slots=True)
class Placed:
    at: datetime
    allocation: Allocation
    boot: str | None = None  # of the machine
    attempts: int = 0  # highest number of an attempt that has a directory; a restored store may not know it
    lineages: int = 0  # the same of lineages
    kind: Literal["placed"] = "placed"


@dataclass(frozen=True, slots=True)
class Launched:
    at: datetime
    boot: str | None = None
    monotonic_s: float | None = None  # the clock of that boot, which nobody sets
    resumed: ProgramStart | None = None  # of a program that saves on its own
    host: str | None = None  # where the engine has started it; None: the daemon's own
    devices: tuple[str, ...] = ()  # that the engine has chosen itself, as it names them
    kind: Literal["launched"] = "launched"


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The engine refused the launch.  An engine that does not answer is no event."""

    at: datetime
    why: str
    ruling: ExitDecision
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
    lineage: int | None = None  # an earlier one, to go back to
    saved: int | None = None  # its newest valid checkpoint
    has_versions: bool | None = None  # that number is the one of a version; None: as before
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
    """The job has a new revision; ``verb`` is the decision of the policy about the running attempt."""

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
    promise: ExpectedSpeedup | None = None
    turned: Overrides = field(default_factory=Overrides)  # adjustments of the policy that stay in force
    kind: Literal["revision_applied"] = "revision_applied"


@dataclass(frozen=True, slots=True)
class PreemptRequested:
    at: datetime
    for_job: str
    why: str
    spared_s: float | None = None  # the waiting of that job; of several victims each spares its part
    kind: Literal["preempt_requested"] = "preempt_requested"


@dataclass(frozen=True, slots=True)
class SwitchCalledOff:
    """An attempt that was to be preempted goes on; it was not told."""

    at: datetime
    attempt: int
    why: str
    could_save: bool = True
    kind: Literal["switch_called_off"] = "switch_called_off"


@dataclass(frozen=True, slots=True)
class LivenessFailed:
    """A rule of ``on_watch`` stops the attempt; without a rule it is the ceiling on running time."""

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
    ended: AttemptEnd
    ruling: ExitDecision
    unasked: bool = False  # it ended before it was told to stop
    kind: Literal["exited"] = "exited"


Event: TypeAlias = (
    ImageReady
    | ImageFailed
    | PreparationRefused
    | ImageMissing
    | HostFailed
    | Placed
    | Launched
    | LaunchFailed
    | CancelRequested
    | RestartRequested
    | HoldRequested
    | ReleaseRequested
    | RevisionApplied
    | PreemptRequested
    | SwitchCalledOff
    | LivenessFailed
    | DeadlinePassed
    | GracePassed
    | Exited
)
