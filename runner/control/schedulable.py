"""Small rules around a snapshot of the queue: what is held back, what is unmet, which devices are meant."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from runner.base.textfile import quoted
from runner.control.context import Context
from runner.core.scheduler.backfill import plan
from runner.core.scheduler.ready import NumericId, numeric_id
from runner.core.scheduler.snapshot import Maintenance, PendingJob, SchedulableDevice, Snapshot

log = structlog.get_logger()

SOON_S: Final = 2.0
"""After its submission, a job whose image exists is about to be ready."""


def with_device_uuids(window: Maintenance, devices: Iterable[SchedulableDevice]) -> Maintenance:
    """Return a maintenance with its devices by UUID; an operator may have written their names."""
    uuids = {each.name: each.uuid for each in devices}
    return replace(window, devices=frozenset(uuids.get(each, each) for each in window.devices))


def hold_back_array_members(queue: Snapshot, preparing: Iterable[PendingJob]) -> Snapshot:
    """Return a snapshot without the jobs of an array before which another one is about to be ready.

    The images of an array are found concurrently; the job that is ready first must not start first by chance.
    """
    first: dict[str, NumericId] = {}
    for job in preparing:
        if job.array is not None and queue.now_s - job.submitted_s < SOON_S:
            first[job.array.id] = min(numeric_id(job), first.get(job.array.id, numeric_id(job)))
    if not first:
        return queue
    ready = (
        job
        for job in queue.pending
        if job.array is None or job.array.id not in first or numeric_id(job) < first[job.array.id]
    )
    return replace(queue, pending=tuple(ready), ready=None)


def held_back_reason(job: PendingJob | None, first: Mapping[str, PendingJob]) -> str:
    """Return the wait of a job that ``hold_back_array_members`` left out; empty if it cannot have been.

    ``first`` is the job of each array with the smallest id whose image is still made.
    """
    if job is None or job.array is None:
        return ""
    ahead = first.get(job.array.id)
    if ahead is None or numeric_id(ahead) >= numeric_id(job):
        return ""
    return f"waits for job {ahead.job_id} of its matrix, which has no image yet"


def unmet_reason(queue: Snapshot, job: PendingJob) -> str:
    """Return the wait of a job if no other was pending; empty if it could start now."""
    alone = plan(replace(queue, pending=(job,), ready=None))
    return "" if alone.starts else alone.pending_reasons[job.job_id].why


@dataclass(slots=True)
class MaintenanceNames:
    """Compares the devices that maintenance windows name with those present, once for each set of devices."""

    _checked: frozenset[str] | None = None

    def check(self, context: Context) -> None:
        """Warn of devices in maintenance windows that are not over and that this host does not have."""
        devices = enumerate(context.capacity.devices)
        known = frozenset(name for i, device in devices for name in (device.uuid, device.label or f"GPU-{i}"))
        if known == self._checked:
            return
        self._checked, now_s = known, context.clock.now().timestamp()
        for window in context.site.maintenance:
            for name in sorted(window.devices - known) if window.ends_s > now_s else ():
                fact = f"there is no device {quoted(name)}; see runner gpus"
                log.warning("settings.unknown_name", problem=f"queue.maintenance: {window.reason}: {fact}")
