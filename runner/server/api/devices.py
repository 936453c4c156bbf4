"""HTTP for devices: what they are and do, and what an operator says about them."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from runner.base.errors import Refused, Unavailable
from runner.control.inventory import Inventory
from runner.control.inventory_types import DeviceView
from runner.core.devices.state import ProcessOnDevice
from runner.core.ports.store import JobRow
from runner.server.api.deps import Body, C, S
from runner.server.api.views import moment
from runner.services.jobs import Caller, JobService

router: Final = APIRouter(prefix="/v1")


class DrainBody(Body):
    reason: str = Field(min_length=1, max_length=200)


class ResumeBody(Body):
    """Nothing: that somebody asks is what counts."""


def inventory_of(service: JobService) -> Inventory:
    """Return the devices of a service.

    Raises:
        Unavailable: this daemon does not look at any.
    """
    vitals = service.daemon.context.vitals
    if not isinstance(vitals, Inventory):
        raise Unavailable("devices: this daemon looks at none")
    return vitals


@router.get("/devices")
async def devices(service: S) -> dict[str, Any]:
    return await run_in_threadpool(_listed, service)


@router.post("/devices/{reference}/drain")
async def drain(reference: str, body: DrainBody, service: S, caller: C) -> dict[str, Any]:
    return await run_in_threadpool(
        _said, service, caller, lambda inventory, by: inventory.drain(reference, body.reason, by)
    )


@router.post("/devices/{reference}/resume")
async def resume(reference: str, body: ResumeBody, service: S, caller: C) -> dict[str, Any]:
    del body
    return await run_in_threadpool(
        _said, service, caller, lambda inventory, by: inventory.resume(reference, by)
    )


def _listed(service: JobService) -> dict[str, Any]:
    rows, capacity = _rows(service), service.daemon.context.capacity
    return {
        "devices": [facts(shown, rows) for shown in inventory_of(service).shown()],
        "cpus": capacity.cpus,
        "memory_bytes": capacity.memory_bytes,
    }


def by_uuid(service: JobService) -> Mapping[str, Mapping[str, Any]]:
    """Return every device as JSON."""
    rows = _rows(service)
    return {shown.device.uuid: facts(shown, rows) for shown in inventory_of(service).shown()}


def _said(service: JobService, caller: Caller, say: Callable[[Inventory, str], DeviceView]) -> dict[str, Any]:
    """Return a device after an operator said something about it; with the turn, for it is written down."""
    if caller.uid not in {0, os.geteuid()}:
        raise Refused("devices: only root and the daemon's own user may drain and resume them")
    inventory, by = inventory_of(service), service.user(caller).name
    shown = service.daemon.ask(lambda: say(inventory, by))
    return {"device": facts(shown, _rows(service))}


def _rows(service: JobService) -> Mapping[str, JobRow]:
    return {entry.row.job.id: entry.row for entry in list(service.daemon.entries.values())}


def facts(shown: DeviceView, rows: Mapping[str, JobRow]) -> dict[str, Any]:
    """Return a device as JSON; null is what nobody could find out."""
    device, health, standing = shown.device, shown.health, shown.standing
    holders = [rows[job] for job in sorted(standing.holders, key=int) if job in rows]
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
        "state": standing.state.value,
        "reason": standing.reason,
        "since": moment(standing.since),
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


def attach(app: FastAPI) -> None:
    """Let an application answer about devices."""
    app.include_router(router)
