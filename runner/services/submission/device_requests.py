"""Devices in a dry run: those that the job would get now, and how the engine is asked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from runner.base.errors import Unavailable
from runner.control.controller import Controller
from runner.core.ports.executor import LaunchRequest
from runner.core.ports.store import JobRow
from runner.core.scheduler.device_preview import preview_devices
from runner.core.scheduler.snapshot import ResourceRequest

NOW: Final = "those that the job would get now; the start decides"
LATER: Final = "those of an idle machine, as an example: the job would wait; the start decides"
NONE: Final = "none fits now; the start decides"


def plan_with_devices(
    daemon: Controller, row: JobRow, needs: ResourceRequest, request: LaunchRequest
) -> tuple[Mapping[str, object], Mapping[str, Any] | None]:
    """Return the arguments of the executor, and what to say about the devices among them.

    A job without GPUs, or one whose devices another scheduler chooses, has nothing to say about devices.
    """
    executor = daemon.context.executor
    if not needs.gpus or executor.queues:
        return executor.plan(request), None
    queue, job = daemon.run_exclusively(lambda: daemon.scheduler.preview(row, needs))
    found = preview_devices(queue, job)
    present = {device.uuid: device for device in daemon.context.capacity.devices}
    devices = tuple(present[uuid] for uuid in found.devices if uuid in present)
    note = NONE if not devices else LATER if found.waits_for else NOW
    said: dict[str, Any] = {
        "note": note,
        "devices": [{"uuid": each.uuid, "name": each.label, "model": each.name} for each in devices],
        "waits_for": found.waits_for or None,
        "problem": None,
    }
    try:
        return executor.plan(replace(request, devices=devices)), said
    except Unavailable as error:
        return executor.plan(request), {**said, "problem": f"not in the arguments: {error}"}
