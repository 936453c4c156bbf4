"""What stands against a job from the start: said when it is submitted, not after a night in the queue."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.core.scheduler.calendar import Calendar
from runner.core.scheduler.config import Quota
from runner.core.scheduler.device_selection import select_devices
from runner.core.scheduler.placement import Placements, matches_request
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, SchedulableDevice, Snapshot
from runner.core.scheduler.words import describe_request, format_count, format_memory


class RefusalReason(StrEnum):
    """What of a job stands against it."""

    CLASS = "class"
    COUNT = "count"  # of devices
    KIND = "kind"
    MODEL = "model"
    MEMORY = "memory"  # of a device
    CAPABILITY = "capability"
    HOST = "host"  # processors and memory
    QUOTA = "turn"  # nothing of the job: its owner has too much already, or may have nothing


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot be accepted, and what there is instead."""

    reason: RefusalReason
    text: str


def check_admission(job: PendingJob, snapshot: Snapshot, jobs: int = 1) -> tuple[Refusal, ...]:
    """Return why a job could never start on these hosts under these rules, and what there is instead.

    Empty: it may wait.  Whether anything is free now does not matter; devices out of service count.
    ``jobs`` are submitted at once.
    """
    return (*_classes(job, snapshot), *_existing(job, snapshot), *_quotas(job, snapshot, jobs))


def _classes(job: PendingJob, snapshot: Snapshot) -> Iterator[Refusal]:
    names = [each.name for each in sorted(snapshot.config.classes, key=lambda each: each.rank)]
    if job.priority_class not in names:
        yield Refusal(
            RefusalReason.CLASS, f"there is no class {job.priority_class}; there are {', '.join(names)}"
        )


def _existing(job: PendingJob, snapshot: Snapshot) -> Iterator[Refusal]:
    places = Placements(Calendar(snapshot))
    if places.could_ever_run(places.request_class(job.request)):
        return
    devices = [device for host in snapshot.hosts for device in host.devices]
    if job.request.gpus and not any(matches_request(job.request, device) for device in devices):
        text = f"no device suits: {describe_request(job.request)} asked for; there {_inventory(devices)}"
        yield Refusal(_culprit(job.request, devices), text)
    elif job.request.gpus and not _together(job.request, places):
        most = max(_most(job.request, places))
        yield Refusal(
            RefusalReason.COUNT,
            f"{describe_request(job.request)} asked for; of such devices there are at most {most} together",
        )
    else:
        yield Refusal(RefusalReason.HOST, _no_host(job.request, snapshot))


def _no_host(needs: ResourceRequest, snapshot: Snapshot) -> str:
    hosts = snapshot.hosts
    cpus = max((host.cpus for host in hosts), default=0)
    memory = format_memory(max((host.memory_bytes for host in hosts), default=0))
    beside = " where such devices are" if needs.gpus else ""
    return (
        f"{needs.cpus:g} cpus and {format_memory(needs.memory_bytes)} of memory asked for; "
        f"no host has both{beside}, and the largest has {cpus:g} cpus, the largest {memory}"
    )


def _culprit(needs: ResourceRequest, devices: Iterable[SchedulableDevice]) -> RefusalReason:
    """Return the condition with which the last suitable device is out, in the order of the job file."""
    there = [device for device in devices if needs.vendor in {None, device.vendor}]
    of_kind = ResourceRequest(gpus=1, kind=needs.kind)
    of_model = replace(of_kind, models=needs.models)
    large = replace(of_model, device_bytes=needs.device_bytes)
    steps = (
        (RefusalReason.KIND, of_kind),
        (RefusalReason.MODEL, of_model),
        (RefusalReason.MEMORY, large),
    )
    if not there:
        return RefusalReason.COUNT
    out = (about for about, step in steps if not any(matches_request(step, device) for device in there))
    return next(out, RefusalReason.CAPABILITY)


def _together(needs: ResourceRequest, places: Placements) -> bool:
    pool = places.request_class(needs).pool
    return any(select_devices(needs, host, pool.slots[host.number]) for host in places.calendar.hosts)


def _most(needs: ResourceRequest, places: Placements) -> Iterator[int]:
    """Yield for each host how many suitable devices it could give at most, linked if they must be."""
    pool = places.request_class(needs).pool
    for host in places.calendar.hosts:
        slots = pool.slots[host.number]
        fitting = (
            count
            for count in range(len(slots), 0, -1)
            if select_devices(replace(needs, gpus=count), host, slots)
        )
        yield next(fitting, 0)


def _inventory(devices: Iterable[SchedulableDevice]) -> str:
    """Return what devices there are, in words."""
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
