"""The resource calendar: what is free on each host and under each limit, as timelines.

It is made anew for every plan from the running jobs and the maintenance windows.  Starts and
reservations are booked in it as they are decided.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.core.scheduler.config import Quota, SchedulerConfig
from runner.core.scheduler.snapshot import (
    DeviceKind,
    DeviceState,
    Host,
    Maintenance,
    PendingJob,
    ResourceRequest,
    RunningJob,
    SchedulableDevice,
    Snapshot,
)
from runner.core.scheduler.timeline import Timeline

OVERRUN_SHARE = 0.1
"""A job past its expected end is assumed to need this share of its running time so far in addition."""

OVERRUN_S = 60.0
"""The least that such a job is assumed to need in addition."""


@dataclass(slots=True)
class DeviceSlot:
    """A device in the calendar.  One unit is free while nobody has it; a shared device counts bytes."""

    device: SchedulableDevice
    number: int  # place among the devices of its host
    capacity: int
    timeline: Timeline


@dataclass(slots=True)
class HostCalendar:
    """A host in the calendar."""

    number: int
    host: Host
    millicpus: Timeline
    memory: Timeline
    slots: list[DeviceSlot]
    link_groups: dict[str | None, int]  # number of devices in each

    def copy(self) -> "HostCalendar":
        """Return a copy to try something out on."""
        slots = [
            DeviceSlot(each.device, each.number, each.capacity, each.timeline.copy()) for each in self.slots
        ]
        cpus, memory = self.millicpus.copy(), self.memory.copy()
        return HostCalendar(self.number, self.host, cpus, memory, slots, self.link_groups)

    def book(
        self, request: ResourceRequest, devices: Iterable[str], begins_s: float, ends_s: float, sign: int = 1
    ) -> None:
        """Book the resources of a job for a time; with a sign of -1 take that back."""
        self.millicpus.take(begins_s, ends_s, sign * millicpus(request))
        self.memory.take(begins_s, ends_s, sign * request.memory_bytes)
        booked = frozenset(devices)
        for slot in self.slots if booked else ():
            if slot.device.uuid in booked:
                slot.timeline.take(begins_s, ends_s, sign * device_units(request))

    def close(self, window: Maintenance, now_s: float) -> None:
        """Book a maintenance window that covers the host or some of its devices."""
        whole_host = window.covers_host(self.host.name)
        begins_s, ends_s = max(window.begins_s, now_s), window.ends_s
        closed = [slot for slot in self.slots if whole_host or slot.device.uuid in window.devices]
        for slot in closed:
            slot.timeline.take(begins_s, ends_s, slot.capacity)
        if whole_host:
            self.millicpus.take(begins_s, ends_s, round(self.host.cpus * 1000))
            self.memory.take(begins_s, ends_s, self.host.memory_bytes)


def millicpus(request: ResourceRequest) -> int:
    return round(request.cpus * 1000)


def device_units(request: ResourceRequest) -> int:
    """Return the part of each device that a request takes: the whole device, or bytes of a shared one."""
    return request.device_bytes if request.kind is DeviceKind.SHARED else 1


def expected_end(job: RunningJob, now_s: float, config: SchedulerConfig) -> float:
    """Return the time by which a running job is expected to release its resources."""
    ends_s = job.started_s + config.default_duration_s if job.ends_s is None else job.ends_s
    if ends_s > now_s:
        return ends_s
    return now_s + max(OVERRUN_SHARE * (now_s - job.started_s), OVERRUN_S)


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota or array limit that a job falls under, and how much of it the job would use."""

    holder: str
    resource: str
    maximum: int
    amount: int
    timeline: Timeline

    @property
    def label(self) -> str:
        """The name of the limit: ``user ann: devices``."""
        return f"{self.holder}: {self.resource}"


@dataclass(slots=True)
class Calendar:
    """All hosts and all limits from ``now_s`` on."""

    snapshot: Snapshot
    hosts: list[HostCalendar] = field(default_factory=list)
    by_name: dict[str, HostCalendar] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)  # expected ends of running jobs
    running_by_host: dict[str, list[RunningJob]] = field(default_factory=dict)
    _limits: dict[tuple[str, str], tuple[int, Timeline]] = field(default_factory=dict)
    _quotas: dict[tuple[str, str, str], tuple[tuple[str, Quota], ...]] = field(default_factory=dict)
    """Those that limit what runs, by owner, group and class."""

    def __post_init__(self) -> None:
        snapshot = self.snapshot
        for job in snapshot.running:
            self.running_by_host.setdefault(job.host, []).append(job)
            self.ends_s[job.job_id] = expected_end(job, snapshot.now_s, snapshot.config)
            for limit in self.limits(job):
                limit.timeline.take(snapshot.now_s, self.ends_s[job.job_id], limit.amount)
        held = {uuid for job in snapshot.running for uuid in job.devices}
        self.hosts = [self._host(number, host, held) for number, host in enumerate(snapshot.hosts)]
        self.by_name = {host.host.name: host for host in self.hosts}

    def _host(self, number: int, host: Host, held: set[str]) -> HostCalendar:
        """Return the calendar of a host with its maintenance and its running jobs."""
        snapshot = self.snapshot
        made = _make_host(number, host, held, snapshot.now_s)
        for window in snapshot.maintenance:
            if window.ends_s > snapshot.now_s:
                made.close(window, snapshot.now_s)
        for job in self.running_by_host.get(host.name, ()):
            made.book(job.request, job.devices, snapshot.now_s, self.ends_s[job.job_id])
        return made

    def book(  # noqa: PLR0913  (a booking has these parts)
        self,
        job: PendingJob,
        host: HostCalendar,
        devices: Iterable[str],
        at_s: float,
        duration_s: float,
        *,
        overdue: bool = False,
    ) -> None:
        """Book a job that starts at a time.

        Other jobs may use the limits of the job until it starts.  They may not if the job is overdue: if
        its devices become free early, no job of the same owner must be in its way.
        """
        host.book(job.request, devices, at_s, at_s + duration_s)
        for limit in self.limits(job):
            limit.timeline.take(self.snapshot.now_s if overdue else at_s, at_s + duration_s, limit.amount)

    def limits(self, job: PendingJob | RunningJob) -> Iterator[Limit]:
        """Return the limits that a job falls under."""
        name = job.owner, job.group, job.priority_class
        if name not in self._quotas:
            quotas = self.snapshot.config.quotas_of(*name)
            self._quotas[name] = tuple(
                (holder, each) for holder, each in quotas if each.jobs is not None or each.devices is not None
            )
        held = self._quotas[name]
        return self._find_limits(job, held) if held or job.array is not None else iter(())

    def _find_limits(
        self, job: PendingJob | RunningJob, quotas: Iterable[tuple[str, Quota]]
    ) -> Iterator[Limit]:
        for holder, quota in quotas:
            if quota.jobs is not None:
                yield self._limit(holder, "jobs", quota.jobs, 1)
            if quota.devices is not None and job.request.gpus:
                yield self._limit(holder, "devices", quota.devices, job.request.gpus)
        if job.array and job.array.max_parallel is not None:
            yield self._limit(str(job.array), "jobs", job.array.max_parallel, 1)

    def _limit(self, holder: str, resource: str, maximum: int, amount: int) -> Limit:
        known = self._limits.get((holder, resource))
        if known is None:
            known = self._limits[holder, resource] = (maximum, Timeline(self.snapshot.now_s, maximum))
        return Limit(holder, resource, known[0], amount, known[1])


def _make_host(number: int, host: Host, held: set[str], now_s: float) -> HostCalendar:
    slots = [_make_slot(i, device, held, now_s) for i, device in enumerate(host.devices)]
    link_groups: dict[str | None, int] = {}
    for device in host.devices:
        link_groups[device.link_group] = link_groups.get(device.link_group, 0) + 1
    cpus, memory = Timeline(now_s, round(host.cpus * 1000)), Timeline(now_s, host.memory_bytes)
    return HostCalendar(number, host, cpus, memory, slots, link_groups)


def _make_slot(number: int, device: SchedulableDevice, held: set[str], now_s: float) -> DeviceSlot:
    """Return a device as free as if its running jobs were gone; the calendar books them afterwards."""
    shared = device.kind is DeviceKind.SHARED
    allocated_to_known_jobs = device.state is DeviceState.ALLOCATED and (device.uuid in held or shared)
    in_service = device.state is DeviceState.FREE or allocated_to_known_jobs
    capacity = device.shareable_bytes if shared else 1
    return DeviceSlot(device, number, capacity, Timeline(now_s, capacity if in_service else 0))
