"""Commands: what the control loop must do, each idempotent."""

from dataclasses import dataclass
from typing import TypeAlias

from runner.core.job.attempt import Allocation, Attempt


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
