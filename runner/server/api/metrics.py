"""What a monitoring system reads: gathered in a few milliseconds, without asking the loop or the engine.

The same text is given over the daemon's socket and, where the settings say so, over TCP.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from runner.core.job.states import Queued
from runner.core.ports.store import JobRow
from runner.core.scheduler.snapshot import DeviceState
from runner.server.api.exposition import Sample, text
from runner.server.api.overview import Overviews
from runner.services.monitor import UtilizationMonitor

STORE_FILES: Final = ("store.db", "store.db-wal")
STATES: Final = ("preparing", "queued", "starting", "running", "stopping", "held")
MOST_CLASSES: Final = 32
"""Priority classes that are told apart; a site has a handful."""


@dataclass(slots=True)
class MetricsPage:
    """Gathers figures."""

    overviews: Overviews
    monitor: UtilizationMonitor
    _classes: dict[tuple[str, int], str] = field(default_factory=dict)  # by job and revision

    def text(self) -> str:
        """Return all figures in the text format of Prometheus."""
        return text(self.samples())

    def samples(self) -> Iterator[Sample]:
        """Yield every figure that is known."""
        service, overview = self.monitor.service, self.overviews.now()
        yield Sample("runner_info", 1, (version("gpu-job-runner"), overview["executor"]))
        yield Sample("runner_started_seconds", service.started_at.timestamp())
        yield from _of_devices(overview["devices"])
        for name, metric in (("cpus", "runner_cpus"), ("memory_bytes", "runner_memory_bytes")):
            for part in ("lent", "total"):
                yield Sample(metric, overview[name][part], (part,))
        yield from self._of_jobs([entry.row for entry in list(service.daemon.entries.values())])
        yield from self._of_the_meter()
        for name in STORE_FILES:
            yield Sample("runner_store_bytes", _size(service.state_dir / name), (name,))

    def _of_jobs(self, rows: list[JobRow]) -> Iterator[Sample]:
        states = Counter(row.job.state.kind for row in rows)
        for state in STATES:
            yield Sample("runner_jobs", states[state], (state,))
        waiting = [row for row in rows if isinstance(row.job.state, Queued)]
        classes = Counter(self._class(row) for row in waiting)
        for name, count in classes.most_common(MOST_CLASSES):
            yield Sample("runner_queue_jobs", count, (name,))
        self._classes = {
            key: name for key, name in self._classes.items() if key in {_key(row) for row in waiting}
        }
        now = self.monitor.service.clock.now()
        ages = [(now - row.job.state.since).total_seconds() for row in waiting]
        yield Sample("runner_queue_oldest_seconds", max(ages, default=0.0))

    def _class(self, row: JobRow) -> str:
        """Return the priority class of a job; read once, and without looking at the rest of its file."""
        key = _key(row)
        if key not in self._classes:
            queue = json.loads(row.revision)["job"].get("queue") or {}
            self._classes[key] = str(queue.get("priority_class", "normal"))
        return self._classes[key]

    def _of_the_meter(self) -> Iterator[Sample]:
        monitor = self.monitor
        yield Sample("runner_alarms", len(monitor.alarms))
        for cause, count in sorted(monitor.counts.ended.items()):
            yield Sample("runner_attempts_ended_total", count, (cause,))
        for labels, count in sorted(monitor.counts.rulings.items()):
            yield Sample("runner_decisions_total", count, labels)
        lags = list(monitor.lags)
        yield Sample("runner_loop_lag_seconds", lags[-1])
        yield Sample("runner_loop_lag_longest_seconds", max(lags))


def _of_devices(devices: list[dict[str, Any]]) -> Iterator[Sample]:
    states = Counter(each["state"] for each in devices)
    for state in DeviceState:
        yield Sample("runner_devices", states[state.value], (state.value,))
    for each in devices:
        labels = (str(each["uuid"]), str(each["name"]))
        for name, value in _measured(each):
            if value is not None:
                yield Sample(name, value, labels)
        for state in DeviceState:
            yield Sample("runner_device_state", float(each["state"] == state.value), (*labels, state.value))


def _measured(device: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    util, used, memory = device.get("util"), device.get("used_bytes"), device.get("memory_bytes")
    yield "runner_device_utilisation_ratio", None if util is None else util / 100
    yield (
        "runner_device_memory_used_ratio",
        used / memory if used is not None and memory else device.get("memory"),
    )
    yield "runner_device_temperature_celsius", device.get("temperature_c")
    yield "runner_device_power_watts", device.get("power_w")


def _key(row: JobRow) -> tuple[str, int]:
    return row.job.id, row.job.revision


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  one call, no object
    except OSError:
        return 0
