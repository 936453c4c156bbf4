"""The slow work around an attempt, as the control loop asks for it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from runner.core.job.attempt import Attempt, AttemptEnd
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
    """What was found out about the end of an attempt."""

    ended: AttemptEnd
    pinned: PinnedPolicy
    facts: Facts = field(default_factory=dict)
    steps: tuple[int, ...] = ()  # of valid checkpoints, the newest first
    effective: str = ""  # digest of the spec as it really ran
    poisoned_at: int | None = None  # the step after which loss or gradient was not finite


@dataclass(frozen=True, slots=True)
class ProgressProbe:
    """What one look at the directory of a running attempt shows."""

    sign: ProgressReport | None = None  # what it said last; None: nothing that could be read
    facts: Facts = field(default_factory=dict)
    effective: str = ""  # digest of the spec as it really runs


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """What a revision asks of the queue beside what an attempt takes."""

    team: str = ""
    priority_class: str = "normal"
    not_before: datetime | None = None
    after: tuple[Dependency, ...] = ()
    sweep: JobArray | None = None
    saves_when_asked: bool = True


class Attempts(Protocol):
    """What the daemon asks others to do with a job: slow, blocking, in lanes of their own."""

    def needs(self, row: JobRow) -> ResourceRequest:
        """Return what an attempt takes; does not block."""

    def terms(self, row: JobRow) -> QueueTerms:
        """Return what the job asks of the queue; does not block."""

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image, building it if need be; may raise BuildFailed, Unavailable."""

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made; may raise Unavailable, Refused."""

    def let_go(self, row: JobRow) -> None:
        """Take back what was held for a launch alone; the next try holds it anew."""

    def policy(self, row: JobRow) -> PinnedPolicy:
        """Return the policy of a job; cheap, for it is asked for again and again."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        """Return the evidence about an attempt that has ended."""

    def glance(self, row: JobRow, attempt: Attempt) -> ProgressProbe:
        """Return what a running attempt shows of itself; asked every few seconds, on a thread of its own."""

    def keep(self, row: JobRow, decision: DecisionRow) -> None:
        """Leave a copy of a decision beside its attempt."""

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Look after an attempt that runs or has just ended: keep its log within the quota."""

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended."""

    def close(self) -> None:
        """End what may take minutes: the daemon leaves."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoints:
    """The checkpoints of one lineage."""

    steps: tuple[int, ...] = ()  # of the valid ones, the newest first
    rejected: tuple[str, ...] = ()  # the others, and what is wrong with them
    changed: datetime | None = None  # when the newest valid one was put there
    attempt: int | None = None  # that made it, as its manifest says

    @property
    def newest(self) -> int | None:
        return next(iter(self.steps), None)
