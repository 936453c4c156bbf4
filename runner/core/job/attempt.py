"""An attempt of a job: where it starts, what it holds, how it ended, and what was decided about its end."""

from dataclasses import dataclass, field
from enum import StrEnum

from runner.core.policy.adjustments import Overrides
from runner.core.policy.decision import Action
from runner.core.policy.history import History


class StartFrom(StrEnum):
    """The start of the next attempt."""

    CHECKPOINT = "checkpoint"  # the newest valid one of the lineage, or step 0 when there is none
    SCRATCH = "scratch"  # step 0 in a new lineage; the old one is kept
    STEP = "step"  # the checkpoint of a given step


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an attempt; ``step`` is set for ``StartFrom.STEP`` only."""

    source: StartFrom = StartFrom.CHECKPOINT
    step: int | None = None


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """Checkpoint of the program's own, or files, from which an attempt resumes.

    Without a path it has no checkpoint: it begins in the files of the attempt before, or, with a directory,
    afresh.
    """

    step: int  # the number by which it is chosen: its step, or the number of the version
    path: str  # as the program knows it
    set_aside: tuple[str, ...] = ()  # later ones, which were moved away before the attempt
    directory: str = ""  # below the run directory or the mount, where those are now
    known_as: str | None = None  # such as "version 3"; empty: by its path alone; None: by its step
    put_back: tuple[str, ...] = ()  # torn ones, in whose place a kept version is now
    torn: tuple[str, ...] = ()  # others, which were renamed


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of an attempt by UUID, because indices change between boots."""

    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One container or process run of a job."""

    number: int
    lineage: int
    start: Start = field(default_factory=Start)
    turned: Overrides = field(default_factory=Overrides)
    began: int | None = None  # newest valid checkpoint at the start
    boot: str | None = None  # of the host at the start; None: unknown
    revision: int = 1  # of the job file
    launched_s: float | None = None  # monotonic clock of that boot at the launch; None: unknown
    host: str | None = None  # where the engine has started it; None: the daemon's own, or not started yet
    host_devices: tuple[str, ...] = ()  # that the engine has chosen there, as it names them
    skipped: int = 0  # numbers before this one that the store does not know: it is older than the directory


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The evidence about the end of an attempt."""

    exit_code: int | None  # None: unknown, because the container has vanished
    cause: str  # one word, see docs/explanation/causes.md
    message: str = ""  # one line for people
    oom_seen: bool = False  # the kernel killed a process of this attempt for memory
    completed: bool = False  # exit 0, and the result says so where the workload writes one
    checkpoint_step: int | None = None  # newest valid checkpoint of the lineage
    checkpoints_rejected: tuple[str, ...] = ()  # present and not valid, with reasons
    has_versions: bool = False  # that number is the one of a version, not a step


@dataclass(frozen=True, slots=True)
class ExitDecision:
    """The decision of the policy about an end, complete: applying it needs no policy."""

    verdict: Action
    history: History
    start: Start = field(default_factory=Start)
    turned: Overrides = field(default_factory=Overrides)


@dataclass(frozen=True, slots=True)
class ExpectedSpeedup:
    """The expected speed-up of a change; a change that misses it is reverted once."""

    back_to: int  # the revision before
    rate: float  # steps per second before
    faster: float  # how many times faster it was measured to be, at the bounds against it
    back_s: float = 0.0  # what the stop and the start of going back cost
