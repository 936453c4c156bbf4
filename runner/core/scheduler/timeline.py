"""How much of one thing is free, and when: the calendar that every promise is written into.

A device, the processors of a host, a user's quota: each is a step function of time.  Because a
job only starts where all of its steps stay high enough until it ends, what has been promised
to another one cannot be delayed by it.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Span:
    """How long something is needed: so many seconds, and if there are stops, on to the next of them."""

    duration_s: float
    boundaries: tuple[float, ...] = ()  # times, in order; the last one is infinity

    def end_s(self, begins_s: float) -> float:
        """Return the end of a stay; one that begins later never ends earlier."""
        ends_s = begins_s + self.duration_s
        return (
            self.boundaries[bisect_right(self.boundaries, ends_s, hi=len(self.boundaries) - 1)]
            if self.boundaries
            else ends_s
        )


class Timeline:
    """Free amounts from a moment on, in whole units; before that moment nothing is known."""

    __slots__ = ("free", "times")

    def __init__(self, begins_s: float, amount: int) -> None:
        self.times = [begins_s]
        self.free = [amount]

    def copy(self) -> "Timeline":
        twin = Timeline(0.0, 0)
        twin.times, twin.free = self.times.copy(), self.free.copy()
        return twin

    def min_free(self, begins_s: float, ends_s: float) -> int:
        """Return what is free all the time from ``begins_s`` to ``ends_s``, and at ``begins_s`` at least."""
        times = self.times
        if len(times) == 1:
            return self.free[0]
        first = max(bisect_right(times, begins_s) - 1, 0)
        last = bisect_left(times, ends_s, first + 1)
        return self.free[first] if last == first + 1 else min(self.free[first:last])

    def earliest(self, at_s: float, stay: Span, amount: int) -> float:
        """Return the earliest time from ``at_s`` on when ``amount`` stays free for a stay; inf: never."""
        times = self.times
        if len(times) == 1:
            return at_s if self.free[0] >= amount else inf
        step = max(bisect_right(times, at_s) - 1, 0)
        while step < len(times):
            begins_s = max(at_s, times[step])
            blocked = self._blocked(step, stay.end_s(begins_s), amount)
            if blocked is None:
                return begins_s
            step = blocked + 1
        return inf

    def _blocked(self, step: int, ends_s: float, amount: int) -> int | None:
        """Return the first step from ``step`` to ``ends_s`` at which too little is free."""
        first = step
        while step < len(self.times) and (step == first or self.times[step] < ends_s):
            if self.free[step] < amount:
                return step
            step += 1
        return None

    def take(self, begins_s: float, ends_s: float, amount: int) -> None:
        """Take an amount for a time; a negative one gives it back."""
        first, last = self._step(begins_s), self._step(ends_s)
        for step in range(first, last):
            self.free[step] -= amount

    def _step(self, at_s: float) -> int:
        """Return the number of the step that begins at a time, made if need be."""
        if at_s == inf:
            return len(self.times)
        step = bisect_left(self.times, at_s)
        if step == len(self.times) or (step and self.times[step] != at_s):
            self.times.insert(step, at_s)
            self.free.insert(step, self.free[step - 1])
        return step
