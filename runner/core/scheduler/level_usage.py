"""Usage of the machine by owner in each service level: device-seconds that decay like usage.

A job counts in the level that it was in at the time: a job of days a little in the lowest level and most in
the highest.  Whoever has had more than a share of the machine in a level, and in those below it, is not
preferred there any more (see ``fairshare``): work that is cut into short jobs gets no more than its share.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from runner.core.scheduler.fairshare import accrue_usage, decay_usage

OwnerName: TypeAlias = tuple[str, str]
"""Group and user."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Devices that a job holds from a time on, and the device-seconds that its lineage had held before."""

    owner: OwnerName
    devices: float
    had_device_s: float
    since_s: float

    def parts(self, until_s: float, limits: Sequence[float]) -> Iterator[tuple[int, float, float]]:
        """Yield each level that the job was in, from when, and until when."""
        at_s, had_device_s = self.since_s, self.had_device_s
        level = bisect_right(limits, had_device_s)
        while at_s < until_s:
            ends_s = until_s
            if level < len(limits) and self.devices > 0:
                ends_s = min(until_s, at_s + (limits[level] - had_device_s) / self.devices)
                had_device_s = limits[level]
            yield level, at_s, ends_s
            at_s, level = ends_s, level + 1


@dataclass(slots=True)
class LevelUsage:
    """Decayed device-seconds by owner and level; ``limits`` are those of the levels at the time.

    If limits change, what was counted stays in the level of the same number: it fades.
    """

    half_life_s: float
    _ended: dict[OwnerName, list[float]] = field(default_factory=dict)
    _at_s: float = 0.0  # to which the ended ones have decayed
    _holdings: dict[str, Holding] = field(default_factory=dict)  # by job

    def has(self, job_id: str) -> bool:
        """Return True if a job is counted now."""
        return job_id in self._holdings

    def begin(self, job_id: str, holding: Holding) -> None:
        """Count what a job holds from now on."""
        self._holdings[job_id] = holding

    def end(self, job_id: str, now_s: float, limits: Sequence[float]) -> None:
        """Count no more for a job."""
        holding = self._holdings.pop(job_id, None)
        if holding is not None:
            self.add(holding, now_s, now_s, limits)

    def add(self, holding: Holding, until_s: float, now_s: float, limits: Sequence[float]) -> None:
        """Count a holding that ended at a time."""
        self._decay(now_s)
        self._count(self._ended, holding, until_s, now_s, limits)

    def read(self, now_s: float, limits: Sequence[float]) -> Mapping[OwnerName, tuple[float, ...]]:
        """Return the use of each owner in each level until now."""
        self._decay(now_s)
        found = {owner: levels.copy() for owner, levels in self._ended.items()}
        for holding in self._holdings.values():
            self._count(found, holding, now_s, now_s, limits)
        return {owner: tuple(levels) for owner, levels in found.items()}

    def _decay(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            for levels in self._ended.values():
                levels[:] = (decay_usage(each, elapsed_s, self.half_life_s) for each in levels)
            self._at_s = now_s

    def _count(
        self,
        into: dict[OwnerName, list[float]],
        holding: Holding,
        until_s: float,
        now_s: float,
        limits: Sequence[float],
    ) -> None:
        levels = into.setdefault(holding.owner, [])
        for level, begins_s, ends_s in holding.parts(until_s, limits):
            levels.extend(0.0 for _ in range(level + 1 - len(levels)))
            device_s = accrue_usage(holding.devices, ends_s - begins_s, self.half_life_s)
            levels[level] += decay_usage(device_s, now_s - ends_s, self.half_life_s)
