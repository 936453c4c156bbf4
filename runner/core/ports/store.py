"""Port to the state that survives a crash: jobs, attempts, events, decisions, revisions and usage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

from runner.core.job.events import Event
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.ports.users import Owner


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """Row of one attempt in the store."""

    job_id: str
    number: int
    lineage: int
    image: str
    placed_at: datetime
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: str | None = None
    message: str | None = None
    verdict: str | None = None
    checkpoint_step: int | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with everything that is not needed to decide about it."""

    job: Job
    name: str
    owner: Owner
    submitted_at: datetime
    priority: int
    text: RevisionText  # the resolved job file
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def revision(self) -> str:
        """The resolved job file as JSON, put together at each access."""
        return self.text.whole


@dataclass(frozen=True, slots=True)
class EventRow:
    seq: int
    job_id: str
    at: datetime
    kind: str
    text: str  # one line for people
    body: str  # JSON


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """The decision of a policy about an attempt, with everything that led to it."""

    job_id: str
    attempt: int
    moment: str
    at: datetime
    body: str  # JSON, see runner.core.policy.explain


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One version of a job's file."""

    number: int
    at: datetime
    by: str
    why: str
    lineage: int | None = None  # of its last attempt, once another revision has taken its place


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The allocation of one attempt and its times."""

    job_id: str
    attempt: int
    owner: str
    team: str
    gpus: int
    cpus: float
    devices: tuple[str, ...]
    placed_at: datetime
    ended_at: datetime | None = None  # None: it holds it now


@dataclass(frozen=True, slots=True)
class UsageHour:
    """Use of devices and processors by the attempts of a user in a team within one hour."""

    begins_at: datetime
    owner: str
    team: str
    device_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """An attempt that was preempted: what it held, when it was told, and when it had left."""

    gpus: int
    cpus: float
    told_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class RecordedTransition:
    """A change to a job as it is written down: the event, and the state before and after it."""

    before: Job
    after: Job
    event: Event
    decision: DecisionRow | None = None  # from which the event follows
    usage: UsageRecord | None = None  # what an attempt that is placed gets


SimilarBy: TypeAlias = Literal["name", "matrix", "schedule"]
"""Attributes that jobs share: a name, the first job of a matrix, the id of a schedule, or only the owner."""


class UsageHistory(Protocol):
    """Usage of earlier jobs, by which the queue decides."""

    def since(self, at: datetime) -> Iterable[UsageRecord]:
        """Return the usage records that end after ``at``."""

    def hours_since(self, at: datetime) -> Iterable[UsageHour]:
        """Return the sums of the hours from a time on."""

    def unsummed(self) -> Iterable[UsageRecord]:
        """Return the usage records that are in no sum yet."""

    def lasted_s(self, owner: str, alike: SimilarBy, which: str) -> tuple[float, ...]:
        """Return the running times of the latest similar jobs that succeeded, the newest first, in seconds.

        Of the owner's there are two at most.
        """

    def held_device_s(self, jobs: int, cpu_weight: float) -> tuple[float, ...]:
        """Return the device-seconds that the latest finished jobs held; a CPU counts as ``cpu_weight``."""

    def switches_since(self, at: datetime) -> tuple[SwitchRecord, ...]:
        """Return the preempted attempts that have left their devices after ``at``, the earliest first."""

    def starts_s(self) -> Mapping[str, tuple[int, float]]:
        """Return of each unfinished job its latest attempt with a first step, and the seconds to that."""

    def add_start(self, job_id: str, attempt: int, start_s: float) -> None:
        """Note the seconds from launch to first step; only the thread that writes the store may call this."""


class Store(Protocol):
    """State that survives a crash.  One thread at a time writes; each call is one transaction."""

    @property
    def instance(self) -> str: ...

    def add_all(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Write new jobs with the events of their submission, all in one transaction."""

    def record_all(self, changes: Sequence[RecordedTransition]) -> None:
        """Write changes to different jobs, and what they say about attempts, durably, or nothing of them."""

    def decided(self, decision: DecisionRow) -> None:
        """Write a decision that changes no state."""

    def decisions(self, job_id: str, attempt: int | None = None) -> tuple[DecisionRow, ...]:
        """Return the decisions about a job, or about one attempt of it, the oldest first."""

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        """Write something that users care about and that changes no state."""

    def noted(self, job_id: str, kind: str) -> tuple[str, ...]:
        """Return the lines of one kind that were written about a job, the oldest first."""

    def unfinished(self) -> tuple[JobRow, ...]: ...

    def last_seq(self) -> int:
        """Return the number of the newest event."""

    def changed_after(self, seq: int) -> tuple[str, ...]:
        """Return the ids of the jobs with an event after a number."""

    def cleaned_up_to(self) -> int:
        """Return the number of the event up to which all clean-ups are known to be done."""

    def record_cleaned_up(self, seq: int) -> None:
        """Write that all clean-ups up to an event are done."""

    def revision(self, job_id: str, number: int) -> RevisionText | None:
        """Return one version of a job's file."""

    def get(self, job_id: str) -> JobRow | None: ...


@dataclass(frozen=True, slots=True)
class AttemptEndRow:
    """An event, as far as counting the ends of attempts needs it."""

    seq: int
    kind: str
    cause: str | None


@dataclass(frozen=True, slots=True)
class RuleUseRow:
    """A decision, as far as counting the uses of policy rules needs it."""

    seq: int
    moment: str
    rule: str


class JobStore(Store, Protocol):
    """The store as the services read it; any thread may read."""

    def next_id(self) -> str:
        """Return the id of the next job."""

    def find(self, reference: str, owner: str | None = None) -> JobRow | None:
        """Return a job by its id or its name; of several with a name the owner's newest.

        Raises:
            Refused: several users have jobs of that name, and the owner is none of them.
        """

    def newest_of(self, owner: str, name: str) -> JobRow | None:
        """Return the newest job of a user with a name."""

    def following(self, first: str, count: int) -> tuple[JobRow, ...]:
        """Return ``count`` jobs from one on, in the order of their ids."""

    def submitted_as(self, token: str) -> JobRow | None:
        """Return the job that was submitted with a token."""

    def recent(
        self,
        since: datetime | None,
        uid: int | None,
        limit: int,
        before: int | None = None,
        ended: bool | None = None,  # noqa: FBT001
    ) -> tuple[JobRow, ...]:
        """Return unfinished jobs and those that ended after ``since``, the newest first.

        ``before`` is the id from which on jobs are left out, for the next page.  With ``ended`` only those
        that have ended, or only the others.
        """

    def labelled(  # noqa: PLR0913, PLR0917  (one per condition)
        self,
        since: datetime,
        uid: int | None,
        limit: int,
        key: str,
        value: str | None,
        before: int | None = None,
    ) -> tuple[JobRow, ...]:
        """Return the jobs of ``recent`` that have a label; a value of None matches every value."""

    def attempts(self, job_id: str) -> tuple[AttemptRow, ...]:
        """Return the attempts of a job."""

    def events(self, after: int, job_id: str | None, limit: int) -> tuple[tuple[EventRow, str], ...]:
        """Return the events behind ``after``, each with the name of its job, in order of ``seq``."""

    def revisions(self, job_id: str) -> tuple[RevisionRow, ...]:
        """Return every version of a job's file, the first one first; their texts may be large together."""

    def unreadable(self, job_id: str) -> tuple[str, ...]:
        """Return the rows of a job that could not be read, each with its fault."""

    def interruptions(self) -> tuple[float, int]:
        """Return for how many seconds the latest attempts ran, and how many of them were interrupted."""

    def last_seq(self) -> int:
        """Return the ``seq`` of the newest event."""

    def last_decision(self) -> int:
        """Return the ``seq`` of the newest decision."""

    def attempt_ends(self, after: int, limit: int) -> tuple[AttemptEndRow, ...]:
        """Return the events behind ``after``, in order of ``seq``."""

    def rule_uses(self, after: int, limit: int) -> tuple[RuleUseRow, ...]:
        """Return the decisions behind ``after``, in order of ``seq``."""

    def count_states(self) -> dict[str, int]:
        """Return the number of jobs by state."""
