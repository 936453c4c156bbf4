"""HTTP for devices: their state, and the operator's drain and resume."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import Field

from runner.agent.devices.inventory import Inventory
from runner.agent.devices.inventory_types import DeviceView
from runner.base.errors import Refused, Unavailable
from runner.core.devices.reading import ProcessOnDevice
from runner.core.ports.store import JobRow
from runner.server.api.deps import Body, CallerDep, ServiceDep, make_router
from runner.server.api.privacy import hide_holders
from runner.server.api.threads import run_in_share
from runner.server.api.views import moment
from runner.services.context import Caller
from runner.services.jobs import JobService

router: Final = make_router()


class DrainBody(Body):
    reason: str = Field(min_length=1, max_length=200)


class ResumeBody(Body):
    """An empty body."""


def inventory_of(service: JobService) -> Inventory:
    """Return the devices of a service.

    Raises:
        Unavailable: this daemon manages no devices.
    """
    vitals = service.daemon.context.inventory
    if not isinstance(vitals, Inventory):
        raise Unavailable("devices: this daemon looks at none")
    return vitals


@router.get("/devices")
async def list_devices(service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """Answer with all devices."""
    found = await run_in_share(_list, service)
    shown = await run_in_share(hide_holders, service, caller, found["devices"])
    return {**found, "devices": shown}


@router.post("/devices/{reference}/drain")
async def drain(reference: str, body: DrainBody, service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """Drain a device: no further job gets it."""
    return await run_in_share(
        _change_state, service, caller, lambda inventory, by: inventory.drain(reference, body.reason, by)
    )


@router.post("/devices/{reference}/resume")
async def resume(reference: str, body: ResumeBody, service: ServiceDep, caller: CallerDep) -> dict[str, Any]:
    """Return a device to service."""
    del body
    return await run_in_share(
        _change_state, service, caller, lambda inventory, by: inventory.resume(reference, by)
    )


def _list(service: JobService) -> dict[str, Any]:
    rows, capacity = _rows(service), service.daemon.context.capacity
    return {
        "devices": [device_json(shown, rows) for shown in inventory_of(service).views()],
        "cpus": capacity.cpus,
        "memory_bytes": capacity.memory_bytes,
    }


def by_uuid(service: JobService) -> Mapping[str, Mapping[str, Any]]:
    """Return every device as JSON, by UUID."""
    rows = _rows(service)
    return {shown.device.uuid: device_json(shown, rows) for shown in inventory_of(service).views()}


def _change_state(
    service: JobService, caller: Caller, change: Callable[[Inventory, str], DeviceView]
) -> dict[str, Any]:
    """Return a device as JSON after an operator has changed its state.

    Raises:
        Refused: the caller is neither root nor the daemon's own user.
    """
    if caller.uid not in {0, os.geteuid()}:
        raise Refused("devices: only root and the daemon's own user may drain and resume them")
    inventory, by = inventory_of(service), service.user(caller).name
    shown = service.daemon.run_exclusively(lambda: change(inventory, by))
    return {"device": device_json(shown, _rows(service))}


def _rows(service: JobService) -> Mapping[str, JobRow]:
    return {entry.row.job.id: entry.row for entry in list(service.daemon.tracked_jobs.values())}


def device_json(shown: DeviceView, rows: Mapping[str, JobRow]) -> dict[str, Any]:
    """Return a device as JSON; null is unknown."""
    device, health, status = shown.device, shown.health, shown.standing
    holders = [rows[job] for job in sorted(status.holders, key=int) if job in rows]
    return {
        "uuid": device.uuid,
        "name": device.label,
        "vendor": device.vendor,
        "model": device.name,
        "kind": device.kind,
        "parent": device.parent,
        "capability": None if device.capability is None else "{}.{}".format(*device.capability),
        "island": device.link_group,
        "numa": device.numa,
        "memory_bytes": device.memory_bytes,
        "used_bytes": health.used_bytes,
        "util": health.util,
        "temperature_c": health.temperature_c,
        "power_w": health.power_w,
        "ecc_uncorrectable": health.ecc_uncorrectable,
        "throttled": None if health.throttled is None else list(health.throttled),
        "state": status.state.value,
        "reason": status.reason,
        "since": moment(status.since),
        "jobs": [{"id": row.job.id, "name": row.name, "owner": row.owner.name} for row in holders],
        "processes": None if shown.occupants is None else [_process(each) for each in shown.occupants],
    }


def _process(occupant: ProcessOnDevice) -> dict[str, Any]:
    return {
        "pid": occupant.pid,
        "job": occupant.job,
        "foreign": occupant.foreign,
        "uid": occupant.uid,
        "user": occupant.user,
        "program": occupant.program,
        "used_bytes": occupant.used_bytes,
    }
