"""Everything that the machine does at one moment: its devices, the jobs that live, the queue with reasons.

Made for screens that ask every second, several of them at once.  Nothing here waits for the loop, the
store or the engine: jobs are read as the loop left them, samples as the device threads left them, and of
each attempt the one small file that it replaces as it goes.  Screens that ask at once get one answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nsmallest
from threading import Lock
from typing import Any, Final, TypeAlias

from runner.base.errors import RunnerError
from runner.control.schedulable import as_started
from runner.core.job.states import Allocated, Queued
from runner.core.ports.devices import Device
from runner.core.ports.store import JobRow
from runner.server.api import views
from runner.services.jobs import JobService
from runner.services.monitor import UtilizationMonitor

Json: TypeAlias = dict[str, Any]

RECENT_S: Final = 10.0
"""How far back the utilisation of a screen looks: longer than two looks of the device threads."""

KEPT_S: Final = 0.2
"""For how long an answer is given again to whoever asks meanwhile."""

SHOWN: Final = 200
"""Waiting jobs whose reasons are worked out for one answer; of the others only the number is said."""

NOTHING: Final[Mapping[str, str]] = {}

DeviceRows: TypeAlias = Callable[[], Mapping[str, Mapping[str, Any]]]
"""More about devices than their vitals, by UUID: whatever is there goes over what is known here."""


Starts: TypeAlias = Callable[[JobRow], str | None]
"""When a waiting job will start, in ISO 8601; None: nobody knows."""


def no_extras() -> Mapping[str, Mapping[str, Any]]:
    """Return nothing: the vitals are all that is known about devices."""
    return {}


def unknown_load(row: JobRow) -> None:
    """Return that nobody knows when a job will start."""
    del row


@dataclass(slots=True)
class Overviews:
    """Makes overviews; a moment later the same one."""

    service: JobService
    more: DeviceRows = no_extras
    starts: Starts = unknown_load
    monitor: UtilizationMonitor | None = None  # who knows what is wrong with jobs
    _kept: tuple[float, Json] | None = None
    _lock: Lock = field(default_factory=Lock)

    def now(self) -> Json:
        """Return what is to be seen now, as JSON values."""
        with self._lock:
            at = self.service.clock.monotonic()
            if self._kept is None or at - self._kept[0] >= KEPT_S:
                alarms = dict(self.monitor.alarms) if self.monitor else {}
                self._kept = at, overview(self.service, self.more(), self.starts, alarms)
            return self._kept[1]


def overview(
    service: JobService,
    more: Mapping[str, Mapping[str, Any]],
    starts: Starts = unknown_load,
    alarms: Mapping[str, str] = NOTHING,
) -> Json:
    """Return the devices, the jobs that are being prepared, run or are held, and the queue."""
    context, now = service.daemon.context, service.clock.now()
    rows = [entry.row for entry in list(service.daemon.entries.values())]
    alive = [row for row in rows if not isinstance(row.job.state, Queued)]
    queued = [row for row in rows if isinstance(row.job.state, Queued)]
    waiting = nsmallest(SHOWN, queued, key=lambda row: (-row.priority, row.submitted_at))
    devices = device_rows(service, rows, more, now)
    load = {each["uuid"]: each for each in devices}
    lent = [_wants(service, row) for row in rows if isinstance(row.job.state, Allocated)]
    return {
        "at": views.moment(now),
        "executor": context.executor.kind,
        "cpus": {"lent": sum(each["cpus"] for each in lent), "total": context.capacity.cpus},
        "memory_bytes": {
            "lent": sum(each["memory_bytes"] for each in lent),
            "total": context.capacity.memory_bytes,
        },
        "devices": devices,
        "jobs": [{**_alive(service, row, load), "alarm": alarms.get(row.job.id)} for row in alive],
        "queue": sorted((_waiting(service, row, starts) for row in waiting), key=_next_first),
        "queue_length": len(queued),
    }


# --- devices


def device_rows(
    service: JobService, rows: Iterable[JobRow], more: Mapping[str, Mapping[str, Any]], now: datetime
) -> list[Json]:
    """Return one object per device: what it is, how busy it is, and who has it."""
    context = service.daemon.context
    unfit = context.vitals.unfit() if context.vitals else {}
    holders = {uuid: row for row in rows for uuid in _devices(row)}
    return [
        {
            **_device(device, number),
            **_load(service, device.uuid, now),
            **_state(holders.get(device.uuid), unfit.get(device.uuid, "")),
            **more.get(device.uuid, {}),
        }
        for number, device in enumerate(context.capacity.devices)
    ]


def _device(device: Device, number: int) -> Json:
    return {
        "uuid": device.uuid,
        "name": f"GPU-{number}",
        "vendor": device.vendor,
        "model": device.name,
        "memory_bytes": device.memory_bytes,
    }


def _load(service: JobService, uuid: str, now: datetime) -> Json:
    """Return how busy a device was lately, percent, and how full it is, as a share; None: nobody knows."""
    vitals = service.daemon.context.vitals
    known = vitals.facts((uuid,), now - timedelta(seconds=RECENT_S)) if vitals else {}
    return {"util": known.get("device.util"), "memory": known.get("device.memory")}


def _state(holder: JobRow | None, unfit: str) -> Json:
    state = "lent" if holder else "quarantined" if unfit else "free"
    return {
        "state": state,
        "reason": unfit,
        "jobs": [{"id": holder.job.id, "name": holder.name, "owner": holder.owner.name}] if holder else [],
    }


# --- jobs


def _alive(service: JobService, row: JobRow, load: Mapping[str, Json]) -> Json:
    state, held = row.job.state, [load[uuid] for uuid in _devices(row) if uuid in load]
    started = state.since if isinstance(state, Allocated) else None
    return {
        **views.summary(row, service.daemon.why(row.job.id), service.progress(row)),
        "wants": _wants(service, row),
        "started_at": views.moment(started),
        "util": _extreme(min, (each.get("util") for each in held)),
        "memory": _extreme(max, (each.get("memory") for each in held)),
    }


def _waiting(service: JobService, row: JobRow, starts: Starts) -> Json:
    return {
        **views.summary(row, service.daemon.why(row.job.id), None),
        "wants": _wants(service, row),
        "starts_at": starts(row),
    }


def _next_first(job: Json) -> tuple[bool, str]:
    """Return what puts the jobs first that will start first; the others stay as they were."""
    return job["starts_at"] is None, job["starts_at"] or ""


def _wants(service: JobService, row: JobRow) -> Json:
    """Return what an attempt takes, in the revision that it began with where that can be read."""
    context = service.daemon.context
    with suppress(RunnerError):
        row = as_started(context, row)
    needs = context.attempt_service.needs(row)
    return {"gpus": needs.gpus, "cpus": needs.cpus, "memory_bytes": needs.memory_bytes}


def _devices(row: JobRow) -> tuple[str, ...]:
    return row.job.state.allocation.devices if isinstance(row.job.state, Allocated) else ()


def _extreme(choose: Callable[[list[float]], float], values: Iterator[float | None]) -> float | None:
    """Return the least or the most of what is known; None if not all of it is."""
    each = list(values)
    known = [value for value in each if value is not None]
    return choose(known) if known and len(known) == len(each) else None
