"""The metrics of the daemon for Prometheus, collected in a few milliseconds.

Nothing here waits for the control loop or for the engine.  The daemon's socket gives the text and, where the
settings say so, a TCP port (``metrics_port``).
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from runner.core.job.states import Allocated, Queued
from runner.core.ports.store import JobRow
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.snapshot import DeviceState
from runner.server.api.overview import OverviewCache
from runner.server.api.reported import disk
from runner.services.monitor.monitor import UtilizationMonitor

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

STORE_FILES: Final = ("store.db", "store.db-wal")
STATES: Final = ("preparing", "queued", "starting", "running", "stopping", "held")

MAX_CLASSES: Final = 32
"""Priority classes that have a label of their own; a site has a handful."""


OTHER_USERS: Final = "(others)"
"""The label of users beyond the limit; no account can have this name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of metrics; ``docs/reference/metrics.md`` is checked against this table."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    labels: tuple[str, ...] = ()

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        """Return the family without values."""
        family = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        return family(self.name, self.meaning, labels=self.labels)


class MetricSample(NamedTuple):
    """One value; ``labels`` are the values of the labels of its metric."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


METRICS: Final = (
    Metric("runner_info", "gauge", "1, with the version and the executor", ("version", "executor")),
    Metric("runner_started_seconds", "gauge", "when the daemon started, Unix time"),
    Metric("runner_devices", "gauge", "devices by state", ("state",)),
    Metric("runner_device_utilisation_ratio", "gauge", "share of the last ten seconds in which a kernel ran",
           ("device", "name")),
    Metric("runner_device_memory_used_ratio", "gauge", "share of its memory that is in use",
           ("device", "name")),
    Metric("runner_device_temperature_celsius", "gauge", "temperature, where it is known",
           ("device", "name")),
    Metric("runner_device_power_watts", "gauge", "power draw, where it is known", ("device", "name")),
    Metric("runner_device_state", "gauge", "1 for the state that the device is in, 0 for the others",
           ("device", "name", "state")),
    Metric("runner_cpus", "gauge", "cpus in total, and those that are allocated", ("part",)),
    Metric("runner_memory_bytes", "gauge", "memory in total, and what is allocated of it", ("part",)),
    Metric("runner_jobs", "gauge", "jobs that have not ended, by state", ("state",)),
    Metric("runner_queue_jobs", "gauge", "waiting jobs by priority class", ("priority_class",)),
    Metric("runner_queue_oldest_seconds", "gauge", "for how long the oldest waiting job has waited"),
    Metric("runner_queue_switching_budget_ratio", "gauge",
           "part of the device time that preemption may cost, in the order `attained`"),
    Metric("runner_queue_switching_left_device_seconds", "gauge",
           "what that budget leaves, decayed as usage is; below 0 nobody is preempted"),
    Metric("runner_queue_service_level_device_seconds", "gauge",
           "limits of the service levels, in the order `attained`", ("level",)),
    Metric("runner_alarms", "gauge", "running jobs with a utilisation alarm"),
    Metric("runner_disk_bytes_per_second", "gauge",
           "what running jobs read from disks and write to them, together", ("direction",)),
    Metric("runner_user_jobs", "gauge", "unfinished jobs by user and state, with `metrics.per_user`",
           ("user", "state")),
    Metric("runner_user_devices", "gauge", "devices that a user's jobs have, with `metrics.per_user`",
           ("user",)),
    Metric("runner_user_cpus", "gauge", "CPUs that a user's jobs have, with `metrics.per_user`", ("user",)),
    Metric("runner_user_disk_bytes_per_second", "gauge",
           "what a user's jobs read from disks and write to them, with `metrics.per_user`",
           ("user", "direction")),
    Metric("runner_attempts_ended_total", "counter", "attempts that ended since the daemon started, by cause",
           ("cause",)),
    Metric("runner_decisions_total", "counter",
           "policy decisions since the daemon started; rules that do not ship with the runner are `other`",
           ("moment", "rule")),
    Metric("runner_loop_lag_seconds", "gauge", "how long the control loop took to answer the last probe"),
    Metric("runner_loop_lag_longest_seconds", "gauge", "the longest answer to the last 60 probes"),
    Metric("runner_store_bytes", "gauge", "size of the store by file", ("file",)),
)  # fmt: skip


@dataclass(slots=True)
class MetricsCollector(Collector):
    """Collects the metrics; satisfies the collector protocol of ``prometheus_client``."""

    overviews: OverviewCache
    monitor: UtilizationMonitor
    trusted: bool = False  # whether the reader is root or the daemon's own user

    def text(self, *, trusted: bool = False) -> bytes:
        """Return the metrics in the text format of Prometheus; ``trusted`` as in the field."""
        return generate_latest(replace(self, trusted=trusted))

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Return the metrics that have a value."""
        families = {metric.name: metric.family() for metric in METRICS}
        for sample in self.samples():
            families[sample.metric].add_metric(sample.labels, sample.value)
        return [family for family in families.values() if family.samples]

    def samples(self) -> Iterator[MetricSample]:
        """Yield every value that is known."""
        service, overview = self.monitor.service, self.overviews.now()
        yield MetricSample("runner_info", 1, (version("gpu-job-runner"), overview["executor"]))
        yield MetricSample("runner_started_seconds", service.started_at.timestamp())
        yield from _device_samples(overview["devices"])
        for name, metric in (("cpus", "runner_cpus"), ("memory_bytes", "runner_memory_bytes")):
            for part, key in (("allocated", "lent"), ("total", "total")):
                if overview[name][key] is not None:
                    yield MetricSample(metric, overview[name][key], (part,))
        rows = [entry.row for entry in list(service.daemon.tracked_jobs.values())]
        yield from self._job_samples(rows)
        if service.settings.metrics.per_user and (self.trusted or not service.settings.private_jobs):
            yield from self._user_samples(rows, service.settings.metrics.most_users)
        yield from self._switching_samples()
        yield from self._monitor_samples()
        for name in STORE_FILES:
            yield MetricSample("runner_store_bytes", _size(service.state_dir / name), (name,))

    def _switching_samples(self) -> Iterator[MetricSample]:
        """Yield the limits of preemption, where jobs are preempted."""
        daemon = self.monitor.service.daemon
        rules = daemon.context.site.rules
        if rules.order is not SchedulingOrder.ATTAINED:
            return
        left_device_s = daemon.scheduler.jobs.switching_left_device_s()
        yield MetricSample("runner_queue_switching_budget_ratio", rules.switching.budget)
        yield MetricSample("runner_queue_switching_left_device_seconds", left_device_s)
        for number, limit in enumerate(rules.switching.levels_device_s, 1):
            yield MetricSample("runner_queue_service_level_device_seconds", limit, (str(number),))

    def _job_samples(self, rows: list[JobRow]) -> Iterator[MetricSample]:
        states = Counter(row.job.state.kind for row in rows)
        for state in STATES:
            yield MetricSample("runner_jobs", states[state], (state,))
        queued = [row for row in rows if isinstance(row.job.state, Queued)]
        views = self.monitor.service.daemon.scheduler.jobs.pending
        known = [view for row in queued if (view := views.get(row.job.id)) is not None]
        classes = Counter(view.priority_class for view in known)
        for name, count in classes.most_common(MAX_CLASSES):
            yield MetricSample("runner_queue_jobs", count, (name,))
        for direction, rate in self._disk(rows).items():
            yield MetricSample("runner_disk_bytes_per_second", rate, (direction,))
        now = self.monitor.service.clock.now()
        ages = [(now - row.job.state.since).total_seconds() for row in queued]
        yield MetricSample("runner_queue_oldest_seconds", max(ages, default=0.0))

    def _disk(self, rows: Iterable[JobRow]) -> dict[str, float]:
        """Return the sums of the rates of jobs by direction."""
        known = [rates for row in rows if (rates := disk(self.monitor.service, row)) is not None]
        return {
            "read": math.fsum(each["read_per_s"] for each in known),
            "write": math.fsum(each["written_per_s"] for each in known),
        }

    def _user_samples(self, rows: list[JobRow], most: int) -> Iterator[MetricSample]:
        """Yield the figures of users; those with the most jobs have a label of their own."""
        counts = Counter(row.owner.name for row in rows)
        named = {name for name, _ in counts.most_common(most)}
        jobs: Counter[tuple[str, str]] = Counter()
        devices: Counter[str] = Counter()
        cpus: defaultdict[str, float] = defaultdict(float)
        theirs: defaultdict[str, list[JobRow]] = defaultdict(list)
        context = self.monitor.service.daemon.context
        needs, queues = context.attempt_service.needs, context.executor.queues
        for row in rows:
            user, state = row.owner.name if row.owner.name in named else OTHER_USERS, row.job.state
            jobs[user, state.kind] += 1
            theirs[user].append(row)
            if isinstance(state, Allocated):
                asked = needs(row)
                devices[user] += len(state.allocation.devices) or (asked.gpus if queues else 0)
                cpus[user] += asked.cpus
        for user in sorted({user for user, _ in jobs}):
            for kind in STATES:
                yield MetricSample("runner_user_jobs", jobs[user, kind], (user, kind))
            yield MetricSample("runner_user_devices", devices[user], (user,))
            yield MetricSample("runner_user_cpus", cpus[user], (user,))
            for direction, rate in self._disk(theirs[user]).items():
                yield MetricSample("runner_user_disk_bytes_per_second", rate, (user, direction))

    def _monitor_samples(self) -> Iterator[MetricSample]:
        monitor = self.monitor
        yield MetricSample("runner_alarms", len(monitor.alarms))
        for cause, count in sorted(monitor.counts.ended.items()):
            yield MetricSample("runner_attempts_ended_total", count, (cause,))
        for labels, count in sorted(monitor.counts.decisions.items()):
            yield MetricSample("runner_decisions_total", count, labels)
        lags = list(monitor.lags)
        yield MetricSample("runner_loop_lag_seconds", lags[-1])
        yield MetricSample("runner_loop_lag_longest_seconds", max(lags))


def _device_samples(devices: list[dict[str, Any]]) -> Iterator[MetricSample]:
    states = Counter(each["state"] for each in devices)
    for state in DeviceState:
        yield MetricSample("runner_devices", states[state.value], (state.value,))
    for each in devices:
        labels = (str(each["uuid"]), str(each["name"]))
        for name, value in _readings(each):
            if value is not None:
                yield MetricSample(name, value, labels)
        for state in DeviceState:
            yield MetricSample(
                "runner_device_state", float(each["state"] == state.value), (*labels, state.value)
            )


def _readings(device: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield the readings of a device by metric; None is unknown."""
    util, used, memory = device.get("util"), device.get("used_bytes"), device.get("memory_bytes")
    used_share = used / memory if used is not None and memory else device.get("memory")
    yield "runner_device_utilisation_ratio", None if util is None else util / 100
    yield "runner_device_memory_used_ratio", used_share
    yield "runner_device_temperature_celsius", device.get("temperature_c")
    yield "runner_device_power_watts", device.get("power_w")


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116  one call, no object
    except OSError:
        return 0
