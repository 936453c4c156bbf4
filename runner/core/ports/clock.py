"""Time, as everything that waits or measures asks for it."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the time of day, UTC, for people and for the store."""

    def monotonic(self) -> float:
        """Return seconds that never jump, for intervals."""
