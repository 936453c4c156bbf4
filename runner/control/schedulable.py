"""What can be lent, as the queue sees it: the devices, and who has which.

There is no table of what is lent now: it is nothing but the states of the jobs.  The table
``usage_records`` is about the past.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from runner.base.textfile import quoted
from runner.control.context import Context
from runner.core.job.states import Allocated
from runner.core.ports.devices import Device
from runner.core.ports.store import JobRow
from runner.core.scheduler import snapshot
from runner.core.scheduler.backfill import plan
from runner.core.scheduler.priority import NumericId, numeric_id
from runner.core.scheduler.snapshot import DeviceState, Maintenance, PendingJob, Snapshot

log = structlog.get_logger()

SOON_S: Final = 2.0
"""After its submission, a job whose image is there is about to be ready."""


def fit_devices(context: Context) -> tuple[Device, ...]:
    """Return the devices that may be lent: a lost one, or one that must be reset, may not."""
    unfit = context.vitals.unfit() if context.vitals else {}
    return tuple(device for device in context.capacity.devices if device.uuid not in unfit)


def schedulable_devices(context: Context, lent: Mapping[str, str]) -> tuple[snapshot.SchedulableDevice, ...]:
    """Return the devices with their states; ``lent`` is all that jobs hold, for an inventory remembers it.

    Without an inventory a device is fit or it is not: a lost one, or one that must be reset.
    """
    if context.inventory is not None:
        return context.inventory.pictured(lent)
    unfit = context.vitals.unfit() if context.vitals else {}
    return tuple(
        snapshot.SchedulableDevice(
            uuid=device.uuid,
            name=f"GPU-{number}",
            vendor=device.vendor,
            model=device.name,
            memory_bytes=device.memory_bytes or 0,
            state=_state(device.uuid, unfit, lent),
            reason=unfit.get(device.uuid, ""),
        )
        for number, device in enumerate(context.capacity.devices)
    )


def _state(uuid: str, unfit: Mapping[str, str], lent: Mapping[str, str]) -> DeviceState:
    if uuid in unfit:
        return DeviceState.QUARANTINED
    return DeviceState.ALLOCATED if uuid in lent else DeviceState.FREE


def by_uuid(window: Maintenance, devices: Iterable[snapshot.SchedulableDevice]) -> Maintenance:
    """Return a maintenance with its devices by UUID; an operator may have named them as they are shown."""
    uuids = {each.name: each.uuid for each in devices}
    return replace(window, devices=frozenset(uuids.get(each, each) for each in window.devices))


def ordered(picture: Snapshot, preparing: Iterable[PendingJob]) -> Snapshot:
    """Return a picture without the jobs of a matrix before which one of it is about to be ready.

    Images are found side by side; who is found first by a moment must not start first.
    """
    first: dict[str, NumericId] = {}
    for job in preparing:
        if job.array is not None and picture.now_s - job.submitted_s < SOON_S:
            first[job.array.id] = min(numeric_id(job), first.get(job.array.id, numeric_id(job)))
    if not first:
        return picture
    ready = (job for job in picture.pending if job.array is None
             or job.array.id not in first or numeric_id(job) < first[job.array.id])  # fmt: skip
    return replace(picture, pending=tuple(ready))


def before(job: PendingJob | None, preparing: Iterable[PendingJob]) -> str:
    """Return what a job that ``ordered`` has left out waits for; empty if it cannot have been."""
    if job is None or job.array is None:
        return ""
    theirs = [each for each in preparing if each.array is not None and each.array.id == job.array.id]
    ahead = min((each for each in theirs if numeric_id(each) < numeric_id(job)), key=numeric_id, default=None)
    return "" if ahead is None else f"waits for job {ahead.job_id} of its matrix, which has no image yet"


@dataclass(slots=True)
class Names:
    """Compares the names that the operator wrote with those that there are, once for each set of devices."""

    _compared: frozenset[str] | None = None

    def compare(self, context: Context) -> None:
        """Tell the operator which devices of maintenance that is not over this machine does not have."""
        devices = enumerate(context.capacity.devices)
        known = frozenset(name for i, device in devices for name in (device.uuid, device.label or f"GPU-{i}"))
        if known == self._compared:
            return
        self._compared, now_s = known, context.clock.now().timestamp()
        for window in context.site.maintenance:
            for name in sorted(window.devices - known) if window.ends_s > now_s else ():
                fact = f"there is no device {quoted(name)}; see runner gpus"
                log.warning("settings.unknown_name", problem=f"queue.maintenance: {window.reason}: {fact}")


def lacks(picture: Snapshot, job: PendingJob) -> str:
    """Return what a job would have to wait for, if nobody else waited; empty if it could start now."""
    alone = plan(replace(picture, pending=(job,)))
    return "" if alone.starts else alone.pending_reasons[job.job_id].why


def as_started(context: Context, row: JobRow) -> JobRow:
    """Return a job in the revision that its attempt began with: the next one may have another."""
    state = row.job.state
    if isinstance(state, Allocated) and state.attempt.revision != row.job.revision:
        text = context.store.revision(row.job.id, state.attempt.revision)
        return row if text is None else replace(row, revision=text)
    return row
