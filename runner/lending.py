"""What can be lent: what the machine has, less what jobs hold and what must not be used.

There is no table of what is lent: it is nothing but the states of the jobs.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from runner.core.job import Job, Lent
from runner.core.placement import Free, Needs, Wait, Waiting, place
from runner.ports import Device, JobRow
from runner.world import World


def fit(world: World) -> tuple[Device, ...]:
    """Return the devices that may be lent: a lost one, or one that must be reset, may not."""
    unfit = world.vitals.unfit() if world.vitals else {}
    return tuple(device for device in world.capacity.devices if device.uuid not in unfit)


def free(world: World, rows: Iterable[JobRow]) -> Free:
    """Return what is not lent to any of these jobs."""
    lent = [row for row in rows if isinstance(row.job.state, Lent)]
    needs = [world.workshop.needs(as_begun(world, row)) for row in lent]
    used = {uuid for row in lent for uuid in _devices(row.job)}
    return Free(
        cpus=world.capacity.cpus - sum(each.cpus for each in needs),
        memory_bytes=world.capacity.memory_bytes - sum(each.memory_bytes for each in needs),
        devices=tuple((device.uuid, device.vendor) for device in fit(world) if device.uuid not in used),
    )


def lacks(world: World, rows: Iterable[JobRow], needs: Needs, now: datetime) -> str:
    """Return what an attempt would have to wait for; empty if it could start now."""
    [answer] = place([Waiting("", needs, 0, now)], free(world, rows), now)
    return answer.why if isinstance(answer, Wait) else ""


def worded(world: World, why: str) -> str:
    """Return what a job waits for, with the devices that it could have if they were fit."""
    unfit = world.vitals.unfit() if world.vitals and " gpus " in why else {}
    return "; ".join((why, *(f"{uuid} is not lent: {fact}" for uuid, fact in unfit.items())))


def as_begun(world: World, row: JobRow) -> JobRow:
    """Return a job in the revision that its attempt began with: the next one may have another."""
    state = row.job.state
    if isinstance(state, Lent) and state.attempt.revision != row.job.revision:
        text = world.store.revision(row.job.id, state.attempt.revision)
        return row if text is None else replace(row, revision=text)
    return row


def _devices(job: Job) -> tuple[str, ...]:
    return job.state.allocation.devices if isinstance(job.state, Lent) else ()
