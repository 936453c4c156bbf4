"""All that this machine does for attempts, and all that it says of its devices.

The control loop and the services are given it; ``agent.attempts.service`` and ``agent.devices.inventory``
satisfy it, and the fakes of the tests do.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from runner.base.instant import Instant
from runner.core.job.attempt import Attempt, AttemptEnd, ProgramStart
from runner.core.policy.facts import Facts
from runner.core.policy.heartbeat import ProgressReport
from runner.core.policy.model import Policy
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.devices import Device
from runner.core.ports.executor import Gone, LaunchRequest
from runner.core.ports.network import NetworkState
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import Dependency, JobArray, ResourceRequest, SchedulableDevice
from runner.core.sweep import SweepTerms

if TYPE_CHECKING:  # the control loop knows neither the contract nor pydantic
    from jobs.contract import RunPaths
    from runner.agent.ports import RunDirectory

T = TypeVar("T")


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
    last_sign: datetime | None = None  # of its program; None: there is none


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
    """Requests of a revision to the queue, its resources apart."""

    team: str = ""
    priority_class: str = "normal"
    not_before: datetime | None = None
    after: tuple[Dependency, ...] = ()
    unmet_limit_s: float | None = None  # how long it stays once one of these cannot be met; None: for ever
    sweep: JobArray | None = None
    saves_when_asked: bool = True
    preemptible: bool = True  # it may be preempted for jobs with less attained service
    sweep_terms: SweepTerms | None = None  # of a candidate


class Agent(Protocol):
    """Work around attempts; what may block, the control loop does on its work queues."""

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
        """Return True if a process still writes to the lineage of an attempt."""

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
        """Return True if the copy exists, or the directory for it does not exist any more."""

    def lacks_room_to_save(self, row: JobRow, attempt: Attempt) -> str:
        """Return the reason why an attempt could not save now; empty: it probably could."""

    def tell_terminals(self, row: JobRow, attempt: Attempt, text: str) -> None:
        """Show a line on the terminals of an attempt, if it has any; what cannot be shown is left out."""

    def limit_log(self, row: JobRow, attempt: Attempt) -> None:
        """Keep the log of an attempt that runs or has just ended within its quota."""

    def clean_up(self, row: JobRow) -> None:
        """Remove what a job must not keep once it has ended."""

    def clean_up_files(self, row: JobRow) -> None:
        """Remove the files that a job must not keep once it has ended."""

    def directory(self, row: JobRow) -> "RunDirectory":
        """Return the run directory of a job."""

    def paths(self, row: JobRow, attempt: int, lineage: int) -> "RunPaths":
        """Return the paths of one attempt."""

    def metrics(self, row: JobRow, attempt: int, lineage: int, limit: int) -> bytes:
        """Return the end of the metrics that an attempt has written, at most ``limit`` bytes."""

    def network(self, row: JobRow) -> tuple[str, NetworkState]:
        """Return the network of a job, ``host``, ``none`` or ``outbound``, and its state."""

    def open_directory(self, root: Path, owner: Owner) -> "RunDirectory":
        """Return a run directory at a path of its own, for a job that has no id yet."""

    def saved(self, row: JobRow, lineage: int) -> SavedCheckpoints:
        """Return the checkpoints of a lineage of a job as far as they are known; may raise Unavailable."""

    def run_in_turn(self, row: JobRow, work: Callable[[], T]) -> T:
        """Return the result of work that may take minutes; the job's owner waits for his turn.

        May raise Unavailable: nobody waits for the answer any more.
        """

    def preview_launch(self, row: JobRow, attempt: Attempt, image: str) -> LaunchRequest:
        """Return the request that would be launched; nothing is made."""

    def spec_json(self, row: JobRow, attempt: Attempt) -> Any:  # noqa: ANN401  (JSON)
        """Return the spec of an attempt as JSON values."""

    def stop_verifying(self) -> None:
        """Break off every verification: the daemon leaves."""

    def close(self) -> None:
        """Break off work that may take minutes: the daemon leaves."""


class Devices(Protocol):
    """The devices of this machine.  No method blocks; what was read too long ago is unknown."""

    def schedulable(self, holders_by_device: Mapping[str, str]) -> tuple[SchedulableDevice, ...]:
        """Return all devices with their states, given the ids of the jobs on each, with commas."""

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        """Return the ``device.*`` facts of some devices since a moment; what is not known is left out."""

    def unfit(self) -> Mapping[str, str]:
        """Return the devices that must not be allocated, each with the reason."""

    def energy_j(self, uuid: str) -> float | None:
        """Return the energy counter of a device; None: it has none, or jobs have parts of it."""

    def record_launch(self, devices: Iterable[str], fault: str | None, now: Instant) -> None:
        """Record whether devices could be given to a container; ``fault``: why they could not."""


class VerificationQueue(Protocol):
    """Work that may take minutes, in turns between users."""

    def put(self, key: str, work: Callable[[], None]) -> None:
        """Do ``work`` when it is this user's turn."""

    def close(self) -> None:
        """Begin no further work; what has begun may end by itself."""
