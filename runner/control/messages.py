"""The messages on the queue of the control loop: what other threads report to it and ask of it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from runner.agent.interface import ExitFindings, PinnedPolicy
from runner.core.job.attempt import ProgramStart
from runner.core.job.events import Event
from runner.core.policy.facts import Facts
from runner.core.ports.executor import Observation


@dataclass(frozen=True, slots=True)
class Observed:
    """One observation of the executor, with the time when it began (monotonic)."""

    began: float
    found: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class EventReceived:
    job_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Examined:
    """The exit of an attempt has been examined; the policy decides what follows."""

    job_id: str
    attempt: int
    at: datetime
    findings: ExitFindings
    monotonic: float | None = None  # the same moment by the clock that nobody sets
    unasked: bool = False  # that was before the attempt was told to stop


@dataclass(frozen=True, slots=True)
class LaunchRefusal:
    """The executor has refused to start an attempt; the policy decides what follows unless it is held."""

    job_id: str
    attempt: int
    at: datetime
    why: str
    pinned: PinnedPolicy
    hold: bool = False  # a rule or a permission forbids it; a person must change something
    own: bool = False  # the image is wrong, so the host is not, however many jobs have it


@dataclass(frozen=True, slots=True)
class Probed:
    """A running attempt has been probed; the policy decides what follows."""

    job_id: str
    attempt: int
    at: datetime
    facts: Facts
    effective: str = ""
    monotonic: float | None = None  # the moment ``at`` by the clock that nobody sets
    start_s: float | None = None  # from its launch to its first step, where that has been seen
    saves_when_asked: bool = False  # as far as the attempt has reported


@dataclass(frozen=True, slots=True)
class LaunchAccepted:
    """The engine has put an attempt into a queue of its own; that it has begun is observed."""

    attempt: int
    resumed: ProgramStart | None  # of a program that saves on its own


JobMessage: TypeAlias = EventReceived | Examined | LaunchRefusal
"""Messages that may advance a job."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of another thread, to be done on the loop's."""

    work: Callable[[], None]


Message: TypeAlias = Observed | Probed | JobMessage | Call
