"""What can be lent, as the queue sees it: the devices, and who has which.

There is no table of what is lent now: it is nothing but the states of the jobs.  The table
``lendings`` is about the past.
"""

from collections.abc import Mapping
from dataclasses import replace

from runner.core.job import Lent
from runner.core.queue import snapshot
from runner.core.queue.plan import plan
from runner.core.queue.snapshot import DeviceState, Snapshot, Waiting
from runner.ports import Device, JobRow
from runner.world import World


def fit(world: World) -> tuple[Device, ...]:
    """Return the devices that may be lent: a lost one, or one that must be reset, may not."""
    unfit = world.vitals.unfit() if world.vitals else {}
    return tuple(device for device in world.capacity.devices if device.uuid not in unfit)


def pictured(world: World, lent: Mapping[str, str]) -> tuple[snapshot.Device, ...]:
    """Return the devices with their states; ``lent`` is all that jobs hold, for an inventory remembers it.

    Without an inventory a device is fit or it is not: a lost one, or one that must be reset.
    """
    if world.inventory is not None:
        return world.inventory.pictured(lent)
    unfit = world.vitals.unfit() if world.vitals else {}
    return tuple(
        snapshot.Device(
            uuid=device.uuid,
            name=f"GPU-{number}",
            vendor=device.vendor,
            model=device.name,
            memory_bytes=device.memory_bytes or 0,
            state=_state(device.uuid, unfit, lent),
            reason=unfit.get(device.uuid, ""),
        )
        for number, device in enumerate(world.capacity.devices)
    )


def _state(uuid: str, unfit: Mapping[str, str], lent: Mapping[str, str]) -> DeviceState:
    if uuid in unfit:
        return DeviceState.QUARANTINED
    return DeviceState.LENT if uuid in lent else DeviceState.FREE


def lacks(picture: Snapshot, job: Waiting) -> str:
    """Return what a job would have to wait for, if nobody else waited; empty if it could start now."""
    alone = plan(replace(picture, waiting=(job,)))
    return "" if alone.starts else alone.waits[job.job_id].why


def as_begun(world: World, row: JobRow) -> JobRow:
    """Return a job in the revision that its attempt began with: the next one may have another."""
    state = row.job.state
    if isinstance(state, Lent) and state.attempt.revision != row.job.revision:
        text = world.store.revision(row.job.id, state.attempt.revision)
        return row if text is None else replace(row, revision=text)
    return row
