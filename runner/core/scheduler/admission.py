"""Admission: refuse a job at submission that could never start, instead of leaving it in the queue."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.base.readable import readable_count, readable_size
from runner.core.scheduler.calendar import Calendar
from runner.core.scheduler.config import Quota, Quotas
from runner.core.scheduler.device_selection import select_devices
from runner.core.scheduler.formatting import describe_request, format_cpus
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
        text = (
            f"no device matches the request for {describe_request(job.request)}; there {_inventory(devices)}"
        )
        yield Refusal(_unmatched_condition(job.request, devices), text)
    elif (most := max(_most_together(job.request, placements), default=0)) < job.request.gpus:
        yield Refusal(
            RefusalReason.COUNT,
            f"the request is for {describe_request(job.request)}; "
            f"at most {most} such devices are together on a host",
        )
    else:
        yield Refusal(RefusalReason.HOST, _no_host(job.request, snapshot))


def _no_host(request: ResourceRequest, snapshot: Snapshot) -> str:
    hosts = snapshot.hosts
    cpus = max((host.cpus for host in hosts), default=0)
    memory = readable_size(max((host.memory_bytes for host in hosts), default=0))
    beside = " with such devices" if request.gpus else ""
    return (
        f"the request is for {format_cpus(request.cpus)} and {readable_size(request.memory_bytes)} of"
        f" memory; no host{beside} has both; the most that one has is {format_cpus(cpus)} or {memory}"
    )


def _unmatched_condition(request: ResourceRequest, devices: Iterable[SchedulableDevice]) -> RefusalReason:
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
    for reason, step in steps:
        if not any(matches_request(step, device) for device in there):
            return reason
    return RefusalReason.CAPABILITY


def _most_together(request: ResourceRequest, placements: Placements) -> Iterator[int]:
    """Yield for each host the most matching devices that it has together, linked where they must be."""
    matching = placements.request_class(request).slots
    for host in placements.calendar.hosts:
        slots = matching[host.number]
        counts = range(len(slots), 0, -1)
        fitting = (n for n in counts if select_devices(replace(request, gpus=n), host, slots))
        yield next(fitting, 0)


def _inventory(devices: Iterable[SchedulableDevice]) -> str:
    """Return a description of some devices."""
    models = Counter((device.model or device.vendor, device.kind, device.memory_bytes) for device in devices)
    if not models:
        return "are none"
    return "are " + ", ".join(
        f"{count} {model} ({kind}, {readable_size(memory)})"
        for (model, kind, memory), count in models.items()
    )


def _quotas(job: PendingJob, snapshot: Snapshot, jobs: int) -> Iterator[Refusal]:
    queued: Counter[str] = Counter()
    for (name, owner, group), count in snapshot.queue_lengths.items():
        for holder, _ in snapshot.config.quotas_of(owner, group, name):
            queued[holder] += count
    for holder, quota in snapshot.config.quotas_of(job.owner, job.group, job.priority_class):
        yield from _quota(holder, quota, job.request.gpus, queued[holder], jobs)


def check_queued(
    owner: str, group: str, quotas: Quotas, queued: tuple[int, int], jobs: int
) -> tuple[str, ...]:
    """Return the queue quotas that further jobs exceed, as text; ``queued`` is what both have now."""
    user = _quota(f"user {owner}", Quota(queued=quotas.for_user(owner).queued), 0, queued[0], jobs)
    team = _quota(f"group {group}", Quota(queued=quotas.for_group(group).queued), 0, queued[1], jobs)
    return tuple(refusal.text for refusal in (*user, *team))


def _quota(holder: str, quota: Quota, gpus: int, queued: int, jobs: int) -> Iterator[Refusal]:
    if quota.devices is not None and gpus > quota.devices:
        maximum = readable_count(quota.devices, "device")
        text = f"{holder} may have {maximum} at a time, and this job asks for {gpus}"
        yield Refusal(RefusalReason.COUNT, text)
    if quota.jobs == 0:
        yield Refusal(RefusalReason.QUOTA, f"{holder} may have no job running")
    if quota.queued is not None and queued + jobs > quota.queued:
        more = f"; this submission has {jobs}" if jobs > 1 else ""
        yield Refusal(
            RefusalReason.QUOTA,
            f"{holder} may have {readable_count(quota.queued, 'job')} waiting, and has {queued}{more}",
        )
