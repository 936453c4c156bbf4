"""Rates at which running attempts read from disks and write to them.

The kernel counts bytes; a rate is the difference of two readings of some seconds ago and now.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from runner.base.errors import Unavailable
from runner.core.policy.facts import FactValue
from runner.core.ports.disk import DiskActivity, DiskCounters, DiskRates, NoDiskUse
from runner.core.ports.executor import Alive, Key, Observation

WINDOW_S: Final = 15.0
"""The period that a rate is averaged over, at most by one round longer."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DiskRateSampler:
    """Reads the counters of running attempts now and then, on one thread; ``current`` may be read on any."""

    use: DiskActivity = field(default_factory=NoDiskUse)
    observe: Callable[[], tuple[Observation, ...]] = (
        tuple  # of the executor; may block, may raise Unavailable
    )
    current: Mapping[Key, DiskRates] = field(default_factory=dict)
    _alive: dict[Key, Alive] = field(default_factory=dict)
    _readings: dict[Key, deque[tuple[float, DiskCounters]]] = field(default_factory=dict)

    def sample(self, running: Collection[Key], now: float) -> None:
        """Read the counters of the attempts that run; ``now`` is monotonic, in seconds."""
        self._alive = {key: alive for key, alive in self._alive.items() if key in running}
        if any(key not in self._alive for key in running):
            self._look_for(running)
        try:
            found = self.use.counters(self._alive.values())
        except Unavailable as error:
            log.info("disk_rates.unknown", problem=str(error))
            return
        self._readings = {key: readings for key, readings in self._readings.items() if key in found}
        for key, counters in found.items():
            readings = self._readings.setdefault(key, deque())
            readings.append((now, counters))
            while len(readings) > 2 and readings[1][0] <= now - WINDOW_S:
                readings.popleft()
        self.current = {
            key: rate for key, each in self._readings.items() if (rate := _rate(each)) is not None
        }

    def facts(self, key: Key) -> dict[str, FactValue]:
        """Return the rates of an attempt as facts; none if they are not known."""
        rates = self.current.get(key)
        if rates is None:
            return {}
        return {"disk.read_rate": rates.read_per_s, "disk.write_rate": rates.written_per_s}

    def _look_for(self, running: Collection[Key]) -> None:
        """Learn where the attempts are; who is not found is looked for again in the next round."""
        try:
            observed = self.observe()
        except Unavailable as error:
            log.info("disk_rates.unknown", problem=str(error))
            return
        here = (each for each in observed if isinstance(each, Alive) and each.host is None)
        self._alive |= {each.key: each for each in here if each.key in running}


def _rate(readings: deque[tuple[float, DiskCounters]]) -> DiskRates | None:
    (began, first), (ended, last) = readings[0], readings[-1]
    if ended <= began:
        return None
    seconds = ended - began
    return DiskRates(
        max(last.read_bytes - first.read_bytes, 0) / seconds,
        max(last.written_bytes - first.written_bytes, 0) / seconds,
        last,
        _grown(first.cpu_s, last.cpu_s, seconds),
        _grown(first.received_bytes, last.received_bytes, seconds),
        _grown(first.sent_bytes, last.sent_bytes, seconds),
    )


def _grown(first: float | None, last: float | None, seconds: float) -> float | None:
    """Return by how much a counter grew in a second; None if it is not known."""
    return None if first is None or last is None else max(last - first, 0.0) / seconds
