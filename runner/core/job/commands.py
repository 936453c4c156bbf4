"""Commands: what the control loop must do, each idempotent."""

from dataclasses import dataclass
from typing import TypeAlias

from runner.core.job.attempt import Allocation, Attempt


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
    """Send SIGTERM."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the ended container; its evidence is recorded."""

    attempt: int


Command: TypeAlias = PrepareImage | Launch | Terminate | Kill | Remove
