"""A clock that goes faster than the world, the same one in every process that is told how it goes."""

import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

MORNING: Final = datetime(2030, 1, 7, 8, tzinfo=UTC)
FIRST_S: Final = 1e6
"""What the clock that only goes on shows in the morning."""

TOGETHER_S: Final = 0.02
"""Both clocks, when one is read so soon after the other, are read at the same moment: a thread that lost
the processor between the two would else have seen somebody set the time."""


@dataclass(frozen=True)
class FastClock:
    """Satisfies ``runner.ports.Clock``."""

    began: float  # on the monotonic clock of the world
    speed: float  # seconds that pass here while one passes there
    jumps: tuple[tuple[float, float], ...] = ()  # seconds since the morning, and by how many the time is set
    _read: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    def since_morning(self, at: float | None = None) -> float:
        """Return how much time has passed in the day, in its own seconds."""
        return ((time.monotonic() if at is None else at) - self.began) * self.speed

    def real_s(self, at_s: float) -> float:
        """Return for how long the world has to wait for a moment of the day."""
        return max(at_s - self.since_morning(), 0.0) / self.speed

    def now(self) -> datetime:
        at = self._read.at = time.monotonic()
        passed_s = self.since_morning(at)
        return MORNING + timedelta(seconds=passed_s + sum(by for when, by in self.jumps if when <= passed_s))

    def monotonic(self) -> float:
        at, read = time.monotonic(), getattr(self._read, "at", -inf)
        return FIRST_S + self.since_morning(read if at - read < TOGETHER_S else at)
