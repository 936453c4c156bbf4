"""A clock that goes faster than the world, the same one in every process that has its file.

It goes fast while it is wound, and hardly at all when nobody has wound it for a while: a day on it
waits for whoever lives it, however busy the machine is.  It never goes backwards, for to be wound
earlier never makes it show less.
"""

import mmap
import struct
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Final

MORNING: Final = datetime(2030, 1, 7, 8, tzinfo=UTC)
FIRST_S: Final = 1e6
"""What the clock that only goes on shows in the morning."""

TOGETHER_S: Final = 0.02
"""Both clocks, when one is read so soon after the other, are read at the same moment: a thread that lost
the processor between the two would else have seen somebody set the time."""

FAST_S: Final = 0.05
"""In real time: for so long it goes fast after it was wound."""

SLOWER: Final = 15.0
"""How much slower it goes then."""

WOUND: Final = struct.Struct("=qddq")
"""When it was last wound and what it showed, between two numbers that differ while that is written."""


def start(file: Path, at_s: float) -> None:
    """Make a clock that shows a moment of the day; not wound yet."""
    file.write_bytes(WOUND.pack(0, time.monotonic() - FAST_S, at_s, 0))


@dataclass(frozen=True)
class FastClock:
    """Satisfies ``runner.core.ports.clock.Clock``."""

    file: Path
    speed: float  # seconds that pass here while one passes there
    jumps: tuple[tuple[float, float], ...] = ()  # seconds since the morning, and by how many the time is set
    _read: threading.local = field(default_factory=threading.local, repr=False, compare=False)
    _wound: mmap.mmap = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        with self.file.open("r+b") as file:
            object.__setattr__(self, "_wound", mmap.mmap(file.fileno(), WOUND.size))

    def wind(self) -> None:
        """Let it go fast from now on; only one process and one thread may at a time."""
        number, at, passed_s, _ = WOUND.unpack_from(self._wound)
        now = time.monotonic()
        shows_s = passed_s + self._goes(now - at)
        struct.pack_into("=q", self._wound, 0, number + 1)
        struct.pack_into("=dd", self._wound, 8, now, shows_s)
        struct.pack_into("=q", self._wound, 24, number + 1)

    def _goes(self, real_s: float) -> float:
        fast_s = min(max(real_s, 0.0), FAST_S)
        return (fast_s + max(real_s - FAST_S, 0.0) / SLOWER) * self.speed

    def since_morning(self, at: float | None = None) -> float:
        """Return how much time has passed in the day, in its own seconds."""
        while True:
            first, wound, passed_s, last = WOUND.unpack_from(self._wound)
            if first == last:
                return float(passed_s) + self._goes((time.monotonic() if at is None else at) - wound)

    def real_s(self, at_s: float) -> float:
        """Return for how long the world has to wait for a moment of the day, at least."""
        return max(at_s - self.since_morning(), 0.0) / self.speed

    def now(self) -> datetime:
        at = time.monotonic()
        passed_s = self.since_morning(at)
        self._read.at, self._read.passed_s = at, passed_s
        return MORNING + timedelta(seconds=passed_s + sum(by for when, by in self.jumps if when <= passed_s))

    def monotonic(self) -> float:
        together = time.monotonic() - getattr(self._read, "at", -inf) < TOGETHER_S
        return FIRST_S + (self._read.passed_s if together else self.since_morning())
