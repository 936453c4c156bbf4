"""The slow work around an attempt, as the control loop asks for it."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from runner.core.job.attempt import Attempt, AttemptEnd, ProgramStart
from runner.core.policy.facts import Facts
from runner.core.policy.heartbeat import ProgressReport
from runner.core.policy.model import Policy
from runner.core.ports.devices import Device
from runner.core.ports.executor import Gone, LaunchRequest
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.scheduler.snapshot import Dependency, JobArray, ResourceRequest


@dataclass(frozen=True, slots=True)
class PinnedPolicy:
    """The policy of a job as it was when the job was submitted, under the ceilings of its job file."""

    policy: Policy
    digest: str


@dataclass(frozen=True, slots=True)
class ExitFindings:
    """The evidence about the end of an attempt."""

    ended: AttemptEnd
    pinned: PinnedPolicy
    facts: Facts = field(default_factory=dict)
    steps: tuple[int, ...] = ()  # of valid checkpoints, the newest first
    effective: str = ""  # digest of the spec as it really ran
    poisoned_at: int | None = None  # the step after which loss or gradient was not finite
    saves_when_asked: bool = False  # the program has reported that it does


@dataclass(frozen=True, slots=True)
class PreparedLaunch:
    """A launch request, and which of its own checkpoints a program resumes from; None: from none."""

    request: LaunchRequest
    resumed: ProgramStart | None = None


@dataclass(frozen=True, slots=True)
class ProgressProbe:
    """The progress of a running attempt, as its run directory shows it."""

    sign: ProgressReport | None = None  # its last heartbeat; None if none can be read
    facts: Facts = field(default_factory=dict)
    effective: str = ""  # digest of the spec as it really runs
    reports_expected: bool = False  # the workload writes a heartbeat soon after its start
    saves_when_asked: bool = False  # a workload that does, or a program that has reported it


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """What a revision requests of the queue, its resources apart."""

    team: str = ""
    priority_class: str = "normal"
    not_before: datetime | None = None
    after: tuple[Dependency, ...] = ()
    sweep: JobArray | None = None
    saves_when_asked: bool = True
    preemptible: bool = True  # it may give way to jobs with less attained service


@dataclass(frozen=True, slots=True)
class RoomToSave:
    """What a file system has left for unprivileged users, and what the newest checkpoint on it takes."""

    free_bytes: int
    newest_bytes: int


class Attempts(Protocol):
    """Work around an attempt that may block; the control loop does it on its work queues."""

    def needs(self, row: JobRow) -> ResourceRequest:
        """Return the resource request of a job; does not block."""

    def terms(self, row: JobRow) -> QueueTerms:
        """Return the queue terms of a job; does not block."""

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image, building it if need be; may raise BuildFailed, Unavailable."""

    def prepare_launch(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> PreparedLaunch:
        """Return the launch request, with the attempt's directory made; may raise Unavailable, Refused."""

    def highest_numbers(self, row: JobRow) -> tuple[int, int]:
        """Return the highest number of an attempt and of a lineage that is there, 0 if there is none."""

    def is_lineage_locked(self, row: JobRow, attempt: Attempt) -> bool:
        """Return whether a process still writes to the lineage of an attempt."""

    def release_launch(self, row: JobRow) -> None:
        """Release what is held for a launch only; the next try acquires it again."""

    def policy(self, row: JobRow) -> PinnedPolicy:
        """Return the policy of a job; does not block."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        """Return the evidence about an attempt that has ended."""

    def probe(self, row: JobRow, attempt: Attempt) -> ProgressProbe:
        """Return the progress of a running attempt; called every few seconds, on a thread of its own."""

    def save_decision(self, row: JobRow, decision: DecisionRow) -> None:
        """Write a copy of a decision beside its attempt."""

    def has_decision(self, row: JobRow, decision: DecisionRow) -> bool:
        """Return whether the copy exists, or the directory for it does not exist any more."""

    def lacks_room_to_save(self, row: JobRow, attempt: Attempt) -> str:
        """Return why an attempt that saves when it is asked could not do so now; empty: it probably could."""

    def tell_terminals(self, row: JobRow, attempt: Attempt, text: str) -> None:
        """Show a line on the terminals of an attempt, if it has any; what cannot be shown is left out."""

    def limit_log(self, row: JobRow, attempt: Attempt) -> None:
        """Keep the log of an attempt that runs or has just ended within its quota."""

    def clean_up(self, row: JobRow) -> None:
        """Remove what a job must not keep once it has ended."""

    def clean_up_files(self, row: JobRow) -> None:
        """Remove the files that a job must not keep once it has ended."""

    def close(self) -> None:
        """Break off work that may take minutes: the daemon leaves."""


class Verification(Enum):
    """How thoroughly checkpoints are verified."""

    SIZES = "sizes"  # manifests and sizes alone
    KNOWN = "known"  # the content of the newest as it was verified before; nothing is hashed
    CONTENT = "content"  # the content of the newest is compared with its SHA-256; this may take minutes


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """Which files of a program are its checkpoints."""

    pattern: str  # below the working directory, or below /job/home/
    keep: int  # copies of a checkpoint without a number in its name


@dataclass(frozen=True, slots=True)
class ProgramCheckpoint:
    """A checkpoint that a program has saved on its own."""

    step: int  # the number in its name, or the number of the kept version
    path: str  # below the working directory, or below the home directory
    in_home: bool = False
    set_aside: tuple[str, ...] = ()  # later ones, which were moved away for the attempt that begins here
    directory: str = ""  # below the run directory, where those are now


@dataclass(frozen=True, slots=True)
class SavedCheckpoints:
    """The checkpoints of one lineage."""

    steps: tuple[int, ...] = ()  # of the valid ones, the newest first
    rejected: tuple[str, ...] = ()  # the invalid ones, and what is wrong with them
    changed: datetime | None = None  # when the newest valid one was put there
    attempt: int | None = None  # that made it, as its manifest says
    unverified: tuple[str, ...] = ()  # neither valid nor invalid as far as is known, and why
    complete: bool = True  # False: there may be others, which could not be read
    set_aside: tuple[int, ...] = ()  # steps that an earlier restart has moved away; they can be put back
    pending: bool = False  # some are not verified only because nobody has verified them yet

    @property
    def newest(self) -> int | None:
        return next(iter(self.steps), None)
