"""The heartbeat of an attempt: how long it has been silent, and how long it may be silent.

A probe reads the last report of the attempt.  Only a change of the report counts, by the clock of the runner;
the clock of the container is not trusted.  Time without probes, because the daemon was down or the host
slept, is no silence.  The limit is learned for phases in which steps are taken.  Until then, and in other
phases such as compilation, a generous limit for the phase applies, which the operator sets.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from runner.core.policy.economics import Rate

FLOOR_S: Final = 300.0
"""The least limit of silence."""

FACTOR: Final = 5.0
"""The limit is this many times the longest silence so far (NVRx learns its timeouts alike)."""

WARM_UP_STEPS: Final = 5
"""First steps that are not used for learning: caches are cold, kernels are chosen, allocators grow."""

MAX_PROBE_GAP_S: Final = 60.0
"""The most time between two probes that counts as silence."""

UNTIMED_PHASES: Final = frozenset({"init", "compile", "eval", "save", "drain"})
"""Phases whose length says nothing about the next one: a limit is set, and not learned."""

NO_LIMITS: Final[Mapping[str, float | None]] = {}
"""No limit in any phase before one is learned."""

SAMPLES: Final = 64
"""The number of points in the window of a rate."""

MIN_RATE_SPAN_S: Final = 10.0
"""The least time for a rate."""


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The last report of an attempt, as one probe has found it."""

    phase: str
    step: int
    written: float  # by the clock of the container; only compared for changes
    items: int | None = None  # rows, tokens or windows since the attempt began
    begun: int = 0  # step that the attempt began from
    step_s: float | None = None  # of a step, as the program measures it


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """The number of items done at a time (monotonic seconds)."""

    at: float
    items: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The result of all probes of an attempt so far; ``observe`` returns the next one."""

    window_s: float = 300.0  # of the recent rate
    sign: ProgressReport | None = None
    told: int | None = None  # the step that the log of a program without reports tells
    born: float | None = None  # when the attempt started, monotonic seconds; None: nobody knows
    start_s: float | None = None  # from there to its first step; None: not yet, or nobody looked on
    looked: float = 0.0  # when
    spoke: float = 0.0  # when it was first seen to have said the last thing
    age_s: float = 0.0  # since it last said anything new
    idle_s: float = 0.0  # since its step last grew
    steps: int = 0  # taken while somebody looked on
    longest: tuple[tuple[str, float], ...] = ()  # silence by phase, after the warm-up
    first: ProgressPoint | None = None
    points: tuple[ProgressPoint, ...] = ()

    def observe(self, sign: ProgressReport | None, now: float, told: int | None = None) -> "Heartbeat":
        """Return the heartbeat after another probe; ``sign`` is None if no report could be read.

        Args:
            sign: the report.
            now: monotonic seconds.
            told: the step that the log tells.  A log is no heartbeat: only the time without a step counts.
        """
        passed = min(max(now - self.looked, 0.0), MAX_PROBE_GAP_S)
        if sign is None or self.sign is None:
            spoke = now if sign else self.spoke
            waited_s = self.idle_s + passed if told is not None and told == self.told else 0.0
            after = replace(
                self,
                sign=sign or self.sign,
                told=told,
                looked=now,
                spoke=spoke,
                idle_s=self.idle_s if self.sign else waited_s,
                start_s=self._start(sign, now),
            )
            return _counted(after, sign, now)
        age = self.age_s + passed
        spoke, grown = sign != self.sign, max(sign.step - self.sign.step, 0)
        learnt = self._learnt(self.sign.phase, age) if spoke and self.steps >= WARM_UP_STEPS else self.longest
        after = replace(
            self,
            sign=sign,
            looked=now,
            spoke=now if spoke else self.spoke,
            age_s=0.0 if spoke else age,
            idle_s=0.0 if grown else self.idle_s + passed,
            steps=self.steps + grown,
            longest=learnt,
            start_s=self._start(sign, now),
        )
        return _counted(after, sign, now)

    def _start(self, sign: ProgressReport | None, now: float) -> float | None:
        """Return the time from launch to the first step; None if no probe was near that step.

        A probe sees the first step some steps late; those took ``step_s`` each.
        """
        before = self.sign
        if self.start_s is not None or self.born is None or sign is None or sign.step <= sign.begun:
            return self.start_s
        missed = before is not None and before.step > before.begun
        looked = max(self.looked, self.born)
        if missed or now - looked > MAX_PROBE_GAP_S:
            return None
        after_first_s = (sign.step - sign.begun - 1) * (sign.step_s or 0.0)
        return max(max(now - after_first_s, looked) - self.born, 0.0)

    def _learnt(self, phase: str, silence_s: float) -> tuple[tuple[str, float], ...]:
        known = dict(self.longest)
        return tuple({**known, phase: max(known.get(phase, 0.0), silence_s)}.items())

    def limit_s(
        self, floor_s: float = FLOOR_S, phases: Mapping[str, float | None] = NO_LIMITS
    ) -> float | None:
        """Return the limit of silence in the present phase; None if there is none.

        Before a silence has been seen to end, no silence can have been longer than all the time until it
        spoke last.

        Args:
            floor_s: the least limit.
            phases: the limits of phases in which none is learned yet, or never.
        """
        if self.sign is None:
            return None
        if self.sign.phase in UNTIMED_PHASES or self.sign.step - self.sign.begun < WARM_UP_STEPS:
            limit, known = phases.get(self.sign.phase), dict(self.longest).get(self.sign.phase, 0.0)
            return None if limit is None else max(floor_s, limit, FACTOR * known)
        longest = dict(self.longest).get(self.sign.phase)
        if longest is None and self.born is not None:
            longest = self.spoke - self.born
        return None if longest is None else max(floor_s, FACTOR * longest)

    def is_over_limit(
        self, floor_s: float = FLOOR_S, phases: Mapping[str, float | None] = NO_LIMITS
    ) -> bool | None:
        """Return True if the silence is longer than the limit; None without a limit."""
        limit = self.limit_s(floor_s, phases)
        return None if limit is None else self.age_s > limit

    @property
    def rate(self) -> float | None:
        """The rate since the first step in items per second, with pauses."""
        return _between(self.first, self.points[-1]) if self.points else None

    @property
    def recent(self) -> Rate | None:
        """The rate over the window in items per second, with pauses."""
        if not self.points:
            return None
        mean = _between(self.points[0], self.points[-1])
        parts = [(b.items - a.items) / (b.at - a.at) for a, b in pairwise(self.points)]
        if mean is None:
            return None
        return Rate(mean, statistics.stdev(parts) if len(parts) > 1 else 0.0, len(parts))


def _between(first: ProgressPoint | None, last: ProgressPoint) -> float | None:
    if first is None or last.at - first.at < MIN_RATE_SPAN_S:
        return None
    return max(last.items - first.items, 0) / (last.at - first.at)


def _counted(heartbeat: Heartbeat, sign: ProgressReport | None, now: float) -> Heartbeat:
    """Return the heartbeat with another point for the rates, if one is due."""
    points = heartbeat.points
    if sign is None or not sign.items or (points and now - points[-1].at < heartbeat.window_s / SAMPLES):
        return heartbeat
    kept = (*points, point := ProgressPoint(now, sign.items))
    while len(kept) > 2 and kept[1].at <= now - heartbeat.window_s:
        kept = kept[1:]
    return replace(heartbeat, first=heartbeat.first or point, points=kept)
