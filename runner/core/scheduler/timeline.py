"""Timelines: how much of one resource is free from when on.

A device, the CPUs of a host and the quota of a user are each a step function of time.  A job starts
only where all of its timelines stay high enough until it ends, so it cannot delay a reservation.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import inf, nextafter
from typing import Final

GUARD_S: Final = 3600.0
"""An estimate is no limit: so much more time must be left before a maintenance."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time for which resources are needed.

    With ``boundaries`` the span goes on from the end of ``duration_s`` to the next boundary, and past one of
    the ``guards`` that comes within ``GUARD_S``.
    """

    duration_s: float
    boundaries: tuple[float, ...] = ()  # times in ascending order; the last one is infinity
    guards: tuple[float, ...] = ()  # times in ascending order

    def end_s(self, begins_s: float) -> float:
        """Return the end of a span that begins at a time; a later begin never gives an earlier end."""
        ends_s = begins_s + self.duration_s
        near = bisect_left(self.guards, ends_s)
        if near < len(self.guards) and self.guards[near] < ends_s + GUARD_S:
            return nextafter(self.guards[near], inf)
        if not self.boundaries:
            return ends_s
        return self.boundaries[bisect_right(self.boundaries, ends_s, hi=len(self.boundaries) - 1)]


class Timeline:
    """The free amount of one resource from a time on, in whole units."""

    __slots__ = ("free", "times")

    def __init__(self, begins_s: float, amount: int) -> None:
        self.times = [begins_s]
        self.free = [amount]

    def copy(self) -> "Timeline":
        twin = Timeline(0.0, 0)
        twin.times, twin.free = self.times.copy(), self.free.copy()
        return twin

    def min_free(self, begins_s: float, ends_s: float) -> int:
        """Return the least free amount from ``begins_s`` to ``ends_s``; an empty time means ``begins_s``."""
        times = self.times
        if len(times) == 1:
            return self.free[0]
        first = max(bisect_right(times, begins_s) - 1, 0)
        last = bisect_left(times, ends_s, first + 1)
        return self.free[first] if last == first + 1 else min(self.free[first:last])

    def earliest(self, at_s: float, span: Span, amount: int) -> float:
        """Return the earliest time from ``at_s`` on at which ``amount`` stays free for a span; inf: never."""
        times = self.times
        if len(times) == 1:
            return at_s if self.free[0] >= amount else inf
        step = max(bisect_right(times, at_s) - 1, 0)
        while step < len(times):
            begins_s = max(at_s, times[step])
            short_step = self._first_short_step(step, span.end_s(begins_s), amount)
            if short_step is None:
                return begins_s
            step = short_step + 1
        return inf

    def _first_short_step(self, step: int, ends_s: float, amount: int) -> int | None:
        """Return the first step between ``step`` and ``ends_s`` at which too little is free."""
        first = step
        while step < len(self.times) and (step == first or self.times[step] < ends_s):
            if self.free[step] < amount:
                return step
            step += 1
        return None

    def take(self, begins_s: float, ends_s: float, amount: int) -> None:
        """Take an amount for a time; a negative amount gives it back."""
        first, last = self._step_at(begins_s), self._step_at(ends_s)
        for step in range(first, last):
            self.free[step] -= amount

    def _step_at(self, at_s: float) -> int:
        """Return the index of the step that begins at a time; insert the step if there is none."""
        if at_s == inf:
            return len(self.times)
        step = bisect_left(self.times, at_s)
        if step == len(self.times) or (step and self.times[step] != at_s):
            self.times.insert(step, at_s)
            self.free.insert(step, self.free[step - 1])
        return step
