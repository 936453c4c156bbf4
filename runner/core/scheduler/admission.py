"""Admission: refuse a job at submission that could never start, instead of leaving it in the queue."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.core.scheduler.calendar import Calendar
from runner.core.scheduler.config import Quota
from runner.core.scheduler.device_selection import select_devices
from runner.core.scheduler.formatting import describe_request, format_count, format_memory
from runner.core.scheduler.placement import Placements, matches_request
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, SchedulableDevice, Snapshot


class RefusalReason(StrEnum):
    """The part of a job that it is refused for."""

    CLASS = "class"
    COUNT = "count"  # of devices
    KIND = "kind"
    MODEL = "model"
    MEMORY = "memory"  # of a device
    CAPABILITY = "capability"
    HOST = "host"  # processors and memory
    QUOTA = "turn"  # of the owner, whatever the job asks for


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason and the message of a refusal."""

    reason: RefusalReason
    text: str


def check_admission(job: PendingJob, snapshot: Snapshot, jobs: int = 1) -> tuple[Refusal, ...]:
    """Return why a job could never start on these hosts with this configuration; empty: it is admitted.

    It does not matter what is free now, and devices that are out of service count.  ``jobs`` is the number
    of jobs like this one that are submitted together.
    """
    return (*_classes(job, snapshot), *_existing(job, snapshot), *_quotas(job, snapshot, jobs))


def _classes(job: PendingJob, snapshot: Snapshot) -> Iterator[Refusal]:
    names = [each.name for each in sorted(snapshot.config.classes, key=lambda each: each.rank)]
    if job.priority_class not in names:
        yield Refusal(
            RefusalReason.CLASS, f"there is no class {job.priority_class}; there are {', '.join(names)}"
        )


def _existing(job: PendingJob, snapshot: Snapshot) -> Iterator[Refusal]:
    placements = Placements(Calendar(snapshot))
    if placements.could_ever_run(placements.request_class(job.request)):
        return
    devices = [device for host in snapshot.hosts for device in host.devices]
    if job.request.gpus and not any(matches_request(job.request, device) for device in devices):
        text = f"no device suits: {describe_request(job.request)} asked for; there {_inventory(devices)}"
        yield Refusal(_culprit(job.request, devices), text)
    elif job.request.gpus and not _together(job.request, placements):
        most = max(_most(job.request, placements))
        yield Refusal(
            RefusalReason.COUNT,
            f"{describe_request(job.request)} asked for; of such devices there are at most {most} together",
        )
    else:
        yield Refusal(RefusalReason.HOST, _no_host(job.request, snapshot))


def _no_host(request: ResourceRequest, snapshot: Snapshot) -> str:
    hosts = snapshot.hosts
    cpus = max((host.cpus for host in hosts), default=0)
    memory = format_memory(max((host.memory_bytes for host in hosts), default=0))
    beside = " where such devices are" if request.gpus else ""
    return (
        f"{request.cpus:g} cpus and {format_memory(request.memory_bytes)} of memory asked for; "
        f"no host has both{beside}, and the largest has {cpus:g} cpus, the largest {memory}"
    )


def _culprit(request: ResourceRequest, devices: Iterable[SchedulableDevice]) -> RefusalReason:
    """Return the first condition of the job file that leaves no device."""
    there = [device for device in devices if request.vendor in {None, device.vendor}]
    of_kind = ResourceRequest(gpus=1, kind=request.kind)
    of_model = replace(of_kind, models=request.models)
    large = replace(of_model, device_bytes=request.device_bytes)
    steps = (
        (RefusalReason.KIND, of_kind),
        (RefusalReason.MODEL, of_model),
        (RefusalReason.MEMORY, large),
    )
    if not there:
        return RefusalReason.COUNT
    out = (about for about, step in steps if not any(matches_request(step, device) for device in there))
    return next(out, RefusalReason.CAPABILITY)


def _together(request: ResourceRequest, placements: Placements) -> bool:
    pool = placements.request_class(request).pool
    return any(select_devices(request, host, pool.slots[host.number]) for host in placements.calendar.hosts)


def _most(request: ResourceRequest, placements: Placements) -> Iterator[int]:
    """Yield for each host the most matching devices that it has together, linked where they must be."""
    pool = placements.request_class(request).pool
    for host in placements.calendar.hosts:
        slots = pool.slots[host.number]
        fitting = (
            count
            for count in range(len(slots), 0, -1)
            if select_devices(replace(request, gpus=count), host, slots)
        )
        yield next(fitting, 0)


def _inventory(devices: Iterable[SchedulableDevice]) -> str:
    """Return a description of some devices."""
    models = Counter((device.model or device.vendor, device.kind, device.memory_bytes) for device in devices)
    if not models:
        return "are none"
    return "are " + ", ".join(
        f"{count} {model} ({kind}, {format_memory(memory)})"
        for (model, kind, memory), count in models.items()
    )


def _quotas(job: PendingJob, snapshot: Snapshot, jobs: int) -> Iterator[Refusal]:
    quotas = snapshot.config.quotas
    waiting = snapshot.pending
    own = sum(each.owner == job.owner for each in waiting)
    yield from _quota(f"user {job.owner}", quotas.for_user(job.owner), job.request.gpus, own, jobs)
    group = sum(each.group == job.group for each in waiting)
    yield from _quota(f"group {job.group}", quotas.for_group(job.group), job.request.gpus, group, jobs)


def _quota(whose: str, quota: Quota, gpus: int, queued: int, jobs: int) -> Iterator[Refusal]:
    if quota.devices is not None and gpus > quota.devices:
        text = f"{whose} may have {format_count(quota.devices, 'device')} at a time, and this asks for {gpus}"
        yield Refusal(RefusalReason.COUNT, text)
    if quota.jobs == 0:
        yield Refusal(RefusalReason.QUOTA, f"{whose} may have no job running")
    if quota.queued is not None and queued + jobs > quota.queued:
        more = f"; these are {jobs}" if jobs > 1 else ""
        yield Refusal(
            RefusalReason.QUOTA,
            f"{whose} may have {format_count(quota.queued, 'job')} waiting, and has {queued}{more}",
        )
