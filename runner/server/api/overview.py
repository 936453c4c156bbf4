"""The overview of the machine: its devices, the unfinished jobs, and the queue with pending reasons.

Several live screens ask for it every second.  So nothing here waits for the control loop, the store or the
engine: jobs are read as the loop left them, readings as the device threads left them, and of each attempt its
last heartbeat.  Requests that come within a moment get the same answer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nsmallest
from threading import Lock
from typing import Any, Final, TypeAlias

from runner.base.errors import RunnerError
from runner.control.context import as_started
from runner.core.job.states import Allocated, Queued
from runner.core.ports.store import JobRow
from runner.server.api import views
from runner.server.api.reported import disk
from runner.services.jobs import JobService
from runner.services.monitor.monitor import UtilizationMonitor

Json: TypeAlias = dict[str, Any]

RECENT_S: Final = 10.0
"""The period that the use of memory is averaged over: longer than two rounds of the device threads."""

CACHE_S: Final = 0.2
"""Time for which an overview is reused."""

MAX_QUEUED: Final = 200
"""Waiting jobs that an overview lists; the others are only counted."""

MAX_IDLE: Final = 200
"""Jobs that are prepared, and jobs that are held, that an overview lists: as many of each at most."""

DeviceFields: TypeAlias = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Returns all that is known of each device, by UUID."""

StartEstimate: TypeAlias = Callable[[JobRow], str | None]
"""Returns when a waiting job is expected to start, in ISO 8601; None if it is not known."""


@dataclass(slots=True)
class OverviewCache:
    """Makes overviews, and reuses each for a moment."""

    service: JobService
    devices: DeviceFields
    starts: StartEstimate
    monitor: UtilizationMonitor  # its alarms are part of the overview
    _cached: tuple[float, Json] | None = None
    _lock: Lock = field(default_factory=Lock)

    def now(self) -> Json:
        """Return the present overview as JSON values."""
        with self._lock:
            at = self.service.clock.monotonic()
            if self._cached is None or at - self._cached[0] >= CACHE_S:
                alarms = dict(self.monitor.alarms)
                self._cached = at, make_overview(self.service, self.devices(), self.starts, alarms)
            return self._cached[1]


def make_overview(
    service: JobService,
    known: Mapping[str, Mapping[str, Any]],
    starts: StartEstimate,
    alarms: Mapping[str, str],
) -> Json:
    """Return the devices, the jobs that are being prepared, run or are held, and the queue."""
    context, now = service.daemon.context, service.clock.now()
    rows = [entry.row for entry in list(service.daemon.tracked_jobs.values())]
    active = _listed(rows)
    queued = [row for row in rows if isinstance(row.job.state, Queued)]
    waiting = nsmallest(MAX_QUEUED, queued, key=lambda row: (-row.priority, row.submitted_at))
    devices = _device_rows(service, known, now)
    load = {each["uuid"]: each for each in devices}
    allocated = [_wants(service, row) for row in rows if isinstance(row.job.state, Allocated)]
    return {
        "at": views.moment(now),
        "executor": context.executor.kind,
        "cpus": {"lent": sum(each["cpus"] for each in allocated), "total": context.capacity.known_cpus},
        "memory_bytes": {
            "lent": sum(each["memory_bytes"] for each in allocated),
            "total": context.capacity.known_memory_bytes,
        },
        "devices": devices,
        "jobs": [{**_active(service, row, load), "alarm": alarms.get(row.job.id)} for row in active],
        "queue": sorted((_queued(service, row, starts) for row in waiting), key=_start_order),
        "queue_length": len(queued),
    }


def _listed(rows: Iterable[JobRow]) -> list[JobRow]:
    """Return the jobs that are listed beside the queue: all that have resources, and some others."""
    idle: Counter[str] = Counter()
    listed = []
    for row in rows:
        state = row.job.state
        if isinstance(state, Queued):
            continue
        if not isinstance(state, Allocated):
            idle[state.kind] += 1
            if idle[state.kind] > MAX_IDLE:
                continue
        listed.append(row)
    return listed


# --- devices


def _device_rows(service: JobService, known: Mapping[str, Mapping[str, Any]], now: datetime) -> list[Json]:
    """Return what is known of each device that jobs get, and the share of its memory used recently."""
    context, since = service.daemon.context, now - timedelta(seconds=RECENT_S)
    return [
        {**known[uuid], "memory": context.inventory.facts((uuid,), since).get("device.memory")}
        for uuid in (device.uuid for device in context.capacity.devices)
        if uuid in known
    ]


# --- jobs


def _active(service: JobService, row: JobRow, load: Mapping[str, Json]) -> Json:
    state, held = row.job.state, [load[uuid] for uuid in _devices(row) if uuid in load]
    started = state.since if isinstance(state, Allocated) else None
    return {
        **views.summary(row, service.daemon.why(row.job.id), service.queries.progress(row)),
        "wants": _wants(service, row),
        "started_at": views.moment(started),
        "util": _extreme(min, (each.get("util") for each in held)),
        "memory": _extreme(max, (each.get("memory") for each in held)),
        "disk": disk(service, row),
    }


def _queued(service: JobService, row: JobRow, starts: StartEstimate) -> Json:
    return {
        **views.summary(row, service.daemon.why(row.job.id), None),
        "wants": _wants(service, row),
        "starts_at": starts(row),
    }


def _start_order(job: Json) -> tuple[bool, str]:
    """Return the sort key that puts first the jobs that will start first; the others keep their order."""
    return job["starts_at"] is None, job["starts_at"] or ""


def _wants(service: JobService, row: JobRow) -> Json:
    """Return the resources of an attempt, as its own revision requests them if that can be read."""
    context = service.daemon.context
    with suppress(RunnerError):
        row = as_started(context, row)
    needs = context.attempt_service.needs(row)
    return {"gpus": needs.gpus, "cpus": needs.cpus, "memory_bytes": needs.memory_bytes}


def _devices(row: JobRow) -> tuple[str, ...]:
    return row.job.state.allocation.devices if isinstance(row.job.state, Allocated) else ()


def _extreme(choose: Callable[[list[float]], float], values: Iterator[float | None]) -> float | None:
    """Return the least or the largest of some values; None if one of them is unknown."""
    each = list(values)
    known = [value for value in each if value is not None]
    return choose(known) if known and len(known) == len(each) else None
