"""What is free on which host and when, and what each owner may still have: all as timelines.

Made anew for every plan from the running jobs and the maintenance ahead; starts and
reservations are written in as they are decided.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.core.scheduler.config import Quota
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
"""A job past its expected end is taken to need so much more of the time that it has had,"""

OVERRUN_S = 60.0
"""and at least so long."""


@dataclass(slots=True)
class DeviceSlot:
    """A device in the book: 1 while nobody has it, or the bytes that are left of a shared one."""

    device: SchedulableDevice
    number: int  # place among the devices of its host
    capacity: int
    timeline: Timeline


@dataclass(slots=True)
class HostCalendar:
    """A host in the book.  ``rising``: what is free now stays free, so that durations do not matter."""

    number: int
    host: Host
    millicpus: Timeline
    memory: Timeline
    slots: list[DeviceSlot]
    link_groups: dict[str | None, int]  # devices on each
    only_frees_up: bool = True
    version: int = 0

    def copy(self) -> "HostCalendar":
        """Return a twin to try something out on."""
        slots = [
            DeviceSlot(each.device, each.number, each.capacity, each.timeline.copy()) for each in self.slots
        ]
        return HostCalendar(
            self.number,
            self.host,
            self.millicpus.copy(),
            self.memory.copy(),
            slots,
            self.link_groups,
            only_frees_up=False,
        )

    def book(self, needs: ResourceRequest, devices: Iterable[str], begins_s: float, ends_s: float) -> None:
        """Write in that a job has what it needs for a time."""
        self._change(needs, devices, begins_s, ends_s, 1)

    def release(self, needs: ResourceRequest, devices: Iterable[str], begins_s: float, ends_s: float) -> None:
        """Write in that a job does not have for a time what it was booked to have."""
        self._change(needs, devices, begins_s, ends_s, -1)

    def _change(
        self, needs: ResourceRequest, devices: Iterable[str], begins_s: float, ends_s: float, sign: int
    ) -> None:
        self.millicpus.take(begins_s, ends_s, sign * millicpus(needs))
        self.memory.take(begins_s, ends_s, sign * needs.memory_bytes)
        held = frozenset(devices)
        for slot in self.slots if held else ():
            if slot.device.uuid in held:
                slot.timeline.take(begins_s, ends_s, sign * device_units(needs))
        self.version += 1

    def close(self, window: Maintenance, now_s: float) -> None:
        """Write in a time in which some or all of the host is not ours."""
        whole = window.covers_host(self.host.name)
        begins_s, ends_s = max(window.begins_s, now_s), window.ends_s
        slots = [slot for slot in self.slots if whole or slot.device.uuid in window.devices]
        for slot in slots:
            slot.timeline.take(begins_s, ends_s, slot.capacity)
        if whole:
            self.millicpus.take(begins_s, ends_s, round(self.host.cpus * 1000))
            self.memory.take(begins_s, ends_s, self.host.memory_bytes)
        self.only_frees_up = self.only_frees_up and not (whole or slots)


def millicpus(needs: ResourceRequest) -> int:
    return round(needs.cpus * 1000)


def device_units(needs: ResourceRequest) -> int:
    """Return what is taken of each device: all of it, or bytes."""
    return needs.device_bytes if needs.kind is DeviceKind.SHARED else 1


def expected_end(job: RunningJob, snapshot: Snapshot) -> float:
    """Return when a running job will have given everything back, as far as anybody can tell."""
    unknown = job.started_s + snapshot.config.default_duration_s
    ends_s = unknown if job.ends_s is None else job.ends_s
    late_s = max(OVERRUN_SHARE * (snapshot.now_s - job.started_s), OVERRUN_S)
    return ends_s if ends_s > snapshot.now_s else snapshot.now_s + late_s


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that a job falls under, and how much of it the job would use."""

    holder: str
    resource: str
    maximum: int
    amount: int
    timeline: Timeline

    @property
    def label(self) -> str:
        """Return whose limit on what it is."""
        return f"{self.holder}: {self.resource}"


@dataclass(slots=True)
class Calendar:
    """All hosts and all limits, from ``now_s`` on."""

    snapshot: Snapshot
    hosts: list[HostCalendar] = field(default_factory=list)
    by_name: dict[str, HostCalendar] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)
    changed: list[HostCalendar] = field(default_factory=list)  # every start and reservation, in order
    _limits: dict[tuple[str, str], tuple[int, Timeline]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = {uuid for job in self.snapshot.running for uuid in job.devices}
        now_s = self.snapshot.now_s
        self.hosts = [_host_book(i, host, held, now_s) for i, host in enumerate(self.snapshot.hosts)]
        self.by_name = {book.host.name: book for book in self.hosts}
        for window in self.snapshot.maintenance:
            for book in self.hosts if window.ends_s > now_s else ():
                book.close(window, now_s)
        for job in self.snapshot.running:
            self._book_running(job)

    def _book_running(self, job: RunningJob) -> None:
        now_s = self.snapshot.now_s
        ends_s = self.ends_s[job.job_id] = expected_end(job, self.snapshot)
        if job.host in self.by_name:
            self.by_name[job.host].book(job.request, job.devices, now_s, ends_s)
        for cap in self.limits(job):
            cap.timeline.take(now_s, ends_s, cap.amount)

    def start(self, job: PendingJob, host: HostCalendar, devices: Iterable[str], lasts_s: float) -> None:
        """Write in a job that starts now."""
        self._book(job, host, devices, self.snapshot.now_s, lasts_s)

    def reserve(  # noqa: PLR0913  (a reservation is all of these)
        self,
        job: PendingJob,
        host: HostCalendar,
        devices: Iterable[str],
        at_s: float,
        lasts_s: float,
        *,
        late: bool,
    ) -> None:
        """Write in a job that starts later; from now on, durations matter on that host.

        Until then what it will use up of its limits is there for whoever is gone by then.  Not so
        with an overdue job: should its place come free early, nobody of its owner must be in the way.
        """
        self._book(job, host, devices, at_s, lasts_s)
        for cap in self.limits(job) if late else ():
            cap.timeline.take(self.snapshot.now_s, at_s, cap.amount)
        host.only_frees_up = False

    def _book(
        self, job: PendingJob, host: HostCalendar, devices: Iterable[str], at_s: float, lasts_s: float
    ) -> None:
        host.book(job.request, devices, at_s, at_s + lasts_s)
        for cap in self.limits(job):
            cap.timeline.take(at_s, at_s + lasts_s, cap.amount)
        self.changed.append(host)

    def limits(self, job: PendingJob | RunningJob) -> Iterator[Limit]:
        """Yield the limits that somebody has set for jobs such as this one."""
        quotas = self.snapshot.config.quotas
        yield from self._quota(f"user {job.owner}", quotas.for_user(job.owner), job.request.gpus)
        if job.group:
            yield from self._quota(f"group {job.group}", quotas.for_group(job.group), job.request.gpus)
        if job.array and job.array.max_parallel is not None:
            yield self._limit(f"sweep {job.array.id}", "jobs", job.array.max_parallel, 1)

    def _quota(self, whose: str, quota: Quota, gpus: int) -> Iterator[Limit]:
        if quota.jobs is not None:
            yield self._limit(whose, "jobs", quota.jobs, 1)
        if quota.devices is not None and gpus:
            yield self._limit(whose, "devices", quota.devices, gpus)

    def _limit(self, whose: str, what: str, limit: int, amount: int) -> Limit:
        known = self._limits.get((whose, what))
        if known is None:
            known = self._limits[whose, what] = (limit, Timeline(self.snapshot.now_s, limit))
        return Limit(whose, what, known[0], amount, known[1])


def _host_book(number: int, host: Host, held: set[str], now_s: float) -> HostCalendar:
    slots = [_slot(i, device, held, now_s) for i, device in enumerate(host.devices)]
    link_groups: dict[str | None, int] = {}
    for device in host.devices:
        link_groups[device.link_group] = link_groups.get(device.link_group, 0) + 1
    cpus, memory = Timeline(now_s, round(host.cpus * 1000)), Timeline(now_s, host.memory_bytes)
    return HostCalendar(number, host, cpus, memory, slots, link_groups)


def _slot(number: int, device: SchedulableDevice, held: set[str], now_s: float) -> DeviceSlot:
    in_service = device.state is DeviceState.FREE or (
        device.state is DeviceState.ALLOCATED and (device.uuid in held or device.kind is DeviceKind.SHARED)
    )
    capacity = device.shareable_bytes if device.kind is DeviceKind.SHARED else 1
    return DeviceSlot(device, number, capacity, Timeline(now_s, capacity if in_service else 0))
