"""Pending reasons: why a job does not start, and an estimate of when it will.

Reasons follow from the calendar as the plan has left it, and are worked out when they are read.  An
estimate is the later of two times: when the calendar has a placement for the job, and when the jobs
ahead of it have been served if everything that they need stays busy.  The first is exact for a job
with a reservation; both are as wrong as the durations are.  There is no estimate where it would depend
on a job of unknown duration; the reason names that job.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import exp2, inf, log2
from typing import Final

from runner.base.readable import readable_count, readable_size
from runner.core.scheduler.attained import pending_standing
from runner.core.scheduler.calendar import DeviceSlot, HostCalendar, Limit
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.dependencies import REQUIRED_END, Readiness, check_dependency, find_unmet
from runner.core.scheduler.displacement import protected_holders
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.formatting import (
    ESTIMATED_BY,
    describe_out_of_service,
    describe_request,
    describe_shortage,
    format_cpus,
    format_job_ids,
    format_time,
    format_zone,
)
from runner.core.scheduler.placement import Placements, RequestClass
from runner.core.scheduler.position import LimitLookup, QueuePosition, UnboundedJobs, queue_positions
from runner.core.scheduler.snapshot import (
    DeviceState,
    EstimateSource,
    Maintenance,
    PendingJob,
    Snapshot,
)
from runner.core.scheduler.timeline import Span

NEVER_STARTS: Final = "never starts: "
"""The beginning of the reason of a job that cannot start unless something is changed."""


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Reason for which a job does not start.  ``starts_s`` is an estimate; None: there is none."""

    job_id: str
    why: str
    starts_s: float | None = None
    never: bool = False  # it cannot start unless something is changed


@dataclass(frozen=True, slots=True)
class _Availability:
    """The state of the resources that the jobs of one request class could use."""

    wanted: str  # the request as text
    free: str  # how many devices are free, as text; empty for a request without devices
    fits_now: bool  # for a moment at least
    facts: tuple[str, ...]
    windows: tuple[Maintenance, ...]  # maintenance of something that the class could use
    closing: tuple[Maintenance, ...]  # of these, the windows that leave too little, by their begin


@dataclass(frozen=True, eq=False)
class PendingReasons(Mapping[str, PendingReason]):
    """The reasons of the jobs that do not start, by job id."""

    snapshot: Snapshot
    placements: Placements
    fair_share: FairShare
    started: frozenset[str]
    reserved: Mapping[str, float]  # start of each reservation, by job
    making_room: Mapping[str, int]  # number of jobs that are preempted for a job
    device_ends_s: Mapping[str, float]  # ends of the jobs that start, by device
    _exact_starts: dict[tuple[int, float | None], float | None] = field(default_factory=dict)
    _rounded_starts: dict[tuple[int, Span], float | None] = field(default_factory=dict)
    _availability: dict[int, _Availability] = field(default_factory=dict)  # by request class
    _stays: dict[tuple[int, float, str], tuple[str, ...]] = field(default_factory=dict)  # by class and level
    _never_reasons: dict[str, PendingReason | None] = field(default_factory=dict)  # by job

    def __getitem__(self, job_id: str) -> PendingReason:
        if job_id in self.started:
            raise KeyError(job_id)
        return self._reason(self._jobs[job_id])

    def __iter__(self) -> Iterator[str]:
        return (job_id for job_id in self._jobs if job_id not in self.started)

    def __len__(self) -> int:
        return len(self.snapshot.pending) - len(self.started)

    @cached_property
    def _jobs(self) -> Mapping[str, PendingJob]:
        """The pending jobs by id, also those that start."""
        ready = self.snapshot.ready
        if ready is not None and ready.by_id is not None:
            return ready.by_id
        return {job.job_id: job for job in self.snapshot.pending}

    @cached_property
    def _limits(self) -> LimitLookup:
        return LimitLookup(self.placements.calendar)

    @cached_property
    def _positions(self) -> dict[str, QueuePosition]:
        return queue_positions(self.snapshot, self.placements, self.fair_share, self.started, self.reserved)

    @cached_property
    def _unbounded(self) -> UnboundedJobs:
        return UnboundedJobs(self.snapshot, self.placements, self.started, self.reserved)

    @cached_property
    def _allocated_until(self) -> dict[str, float]:
        """The end of each allocation by device; of a shared device, the first end."""
        until = dict(self.device_ends_s)
        for job in self.snapshot.running:
            unbounded = job.job_id in self._unbounded.ids
            ends_s = inf if unbounded else self.placements.calendar.ends_s[job.job_id]
            for uuid in job.devices:
                until[uuid] = min(ends_s, until.get(uuid, inf))
        return until

    # --- the reason of one job

    def _reason(self, job: PendingJob) -> PendingReason:
        never = self._never_starts(job)
        if never:
            return never
        if job.not_before_s is not None and job.not_before_s > self.snapshot.now_s:
            begins = f"{format_time(job.not_before_s, self.snapshot)} {format_zone(self.snapshot)}"
            return PendingReason(job.job_id, f"not before {begins}", job.not_before_s)
        request_class = self.placements.request_class(job.request)
        return (
            self._waits_for_jobs(job)
            or self._waits_for_limit(job, request_class)
            or self._waits_for_resources(job, request_class)
        )

    def _never_starts(self, job: PendingJob) -> PendingReason | None:
        """Return the reason of a job that can never start, whatever becomes of the jobs ahead of it."""
        if job.job_id not in self._never_reasons:
            why = self._unmet_dependency(job) or self._too_large_for_hosts(job) or self._exceeded_limit(job)
            never = PendingReason(job.job_id, f"{NEVER_STARTS}{why}", never=True) if why else None
            self._never_reasons[job.job_id] = never
        return self._never_reasons[job.job_id]

    def _unmet_dependency(self, job: PendingJob) -> str:
        """Return the dependency of a job that has ended in another way than required."""
        unmet = find_unmet(job.dependencies, self.snapshot.ended)
        if unmet is None:
            return ""
        if job.unmet_limit_s is None:
            return unmet.why
        gone_s = unmet.since_s + job.unmet_limit_s
        return f"{unmet.why}; it is cancelled at {format_time(gone_s, self.snapshot)} (queue.on_unmet)"

    def _too_large_for_hosts(self, job: PendingJob) -> str:
        """Return that no host has what a job requests."""
        if self.placements.could_ever_run(self.placements.request_class(job.request)):
            return ""
        return f"no host has {describe_request(job.request)}{_with_cpus_and_memory(job)}"

    def _exceeded_limit(self, job: PendingJob) -> str:
        """Return the limit that is lower than a job's request."""
        for limit in self._limits.for_job(job):
            if limit.maximum < limit.amount:
                maximum = f"{limit.holder} may have {limit.maximum} {limit.resource} at a time"
                return f"{maximum}, and this job asks for {limit.amount}"
        return ""

    def _first_that_never_starts(self, job_ids: Iterable[str]) -> PendingReason | None:
        """Return the first reason of these jobs, and of the jobs that they wait for, that says never."""
        to_check = list(dict.fromkeys(job_ids))
        seen = set(to_check)
        for job_id in to_check:  # grows in the loop
            job = None if job_id in self.started else self._jobs.get(job_id)
            if job is None:
                continue
            never = self._never_starts(job)
            if never:
                return never
            for dependency in job.dependencies:
                if dependency.job_id not in seen:
                    seen.add(dependency.job_id)
                    to_check.append(dependency.job_id)
        return None

    def _waits_for_jobs(self, job: PendingJob) -> PendingReason | None:
        unmet = [
            dependency
            for dependency in job.dependencies
            if check_dependency(dependency, self.snapshot.ended) is Readiness.PENDING and not dependency.group
        ]
        if not unmet:
            return None
        parts: list[str] = []
        for condition, required_end in REQUIRED_END.items():
            ids = [dependency.job_id for dependency in unmet if dependency.condition is condition]
            if ids:
                parts.append(f"for {format_job_ids(ids)} to {required_end}")
        why = f"waits {' and '.join(parts)}"
        never = self._first_that_never_starts(dependency.job_id for dependency in unmet)
        if never is None:
            return PendingReason(job.job_id, why)
        why = f"{NEVER_STARTS}it {why}, and job {never.job_id} {never.why}"
        return PendingReason(job.job_id, why, never=True)

    def _waits_for_limit(self, job: PendingJob, request_class: RequestClass) -> PendingReason | None:
        for limit in self._limits.for_job(job):
            free = limit.timeline.min_free(
                self.snapshot.now_s, self.snapshot.span(job).end_s(self.snapshot.now_s)
            )
            if job.job_id not in self.reserved and free < limit.amount:
                return self._at_limit(job, request_class, limit, limit.maximum - free)
        return None

    def _at_limit(
        self, job: PendingJob, request_class: RequestClass, limit: Limit, used: int
    ) -> PendingReason:
        """Return the reason of a job at a limit; the jobs of its owner ahead of it use the limit first."""
        span, position = self.snapshot.span(job), self._positions[job.job_id]
        limits_open_s = max(
            each.timeline.earliest(self.snapshot.now_s, span, each.amount)
            for each in self._limits.for_job(job)
        )
        why = (
            f"waits for the limit of {limit.holder}: "
            f"{used} of {limit.maximum} {limit.resource} in use or reserved"
        )
        placement_s = None if limits_open_s == inf else self._placement_s(job, request_class)
        if placement_s is None:
            return self._with_estimate(job, why, None)
        unbounded = (
            position.unbounded_under_limits
            or self._unbounded.blocking_limits(limits_open_s, job)
            or self._unbounded.blocking(placement_s, job, request_class)
        )
        starts_s = max(placement_s, limits_open_s + position.limits_busy_s)
        return self._with_estimate(job, why, self._after_maintenance(job, request_class, starts_s), unbounded)

    def _waits_for_resources(self, job: PendingJob, request_class: RequestClass) -> PendingReason:
        available = self._availability_of(request_class)
        facts = list(self._facts(job, available))
        making_room = self.making_room.get(job.job_id, 0)
        if making_room:
            facts.append(f"{readable_count(making_room, 'job')} making room")
        else:
            facts += self._protected_holders(job, request_class)
        facts += self._jobs_ahead(job)
        why = f"waits for {available.wanted}: {', '.join(facts) or 'held back by the queue order'}"
        starts_s, unbounded = self._estimate(job, request_class)
        return self._with_estimate(job, why, starts_s, unbounded)

    def _with_estimate(
        self, job: PendingJob, why: str, starts_s: float | None, unbounded: str = ""
    ) -> PendingReason:
        """Return a reason with its estimate, or with the unbounded job that there is no estimate for."""
        if starts_s is None:
            return PendingReason(job.job_id, f"{why}; start time unknown")
        if unbounded:
            return PendingReason(job.job_id, f"{why}; no estimate: job {unbounded} has no time limit")
        return PendingReason(
            job.job_id, f"{why}; starts about {format_time(starts_s, self.snapshot)}", starts_s
        )

    # --- facts about the resources

    def _facts(self, job: PendingJob, available: _Availability) -> Iterator[str]:
        reserved_for = self._reserved_for(job, available) if available.fits_now else ""
        if available.free or reserved_for:
            yield ", ".join(text for text in (available.free, reserved_for) if text)
        yield from available.facts

    def _availability_of(self, request_class: RequestClass) -> _Availability:
        if id(request_class) not in self._availability:
            self._availability[id(request_class)] = self._make_availability(request_class)
        return self._availability[id(request_class)]

    def _make_availability(self, request_class: RequestClass) -> _Availability:
        now_s = self.snapshot.now_s
        slots = list(self.placements.usable_slots(request_class))
        windows = tuple(
            window
            for window in self.snapshot.maintenance
            if window.ends_s > now_s and self._affects(window, request_class)
        )
        current = [window for window in windows if window.begins_s <= now_s]
        facts = [
            f"closed for {window.reason} until {format_time(window.ends_s, self.snapshot)}"
            for window in current
        ]
        facts += describe_out_of_service(slot.device for slot in slots)
        facts += self._allocated(request_class, slots, current)
        facts += self._host_shortage(request_class, current)
        closing = [window for window in windows if not self._leaves_enough(window, request_class)]
        return _Availability(
            wanted=describe_request(request_class.request),
            free=self._free(request_class, slots) if request_class.request.gpus else "",
            fits_now=self.placements.find_now(request_class, 0.0) is not None,
            facts=tuple(facts),
            windows=windows,
            closing=tuple(sorted(closing, key=lambda window: window.begins_s)),
        )

    def _free(self, request_class: RequestClass, slots: list[DeviceSlot]) -> str:
        free = sum(slot.timeline.free[0] >= request_class.device_units for slot in slots)
        enough = free >= request_class.request.gpus
        apart = enough and not self.placements.enough_together(request_class)
        return f"{free} free, not together" if apart else f"{free} free"

    def _affects(self, window: Maintenance, request_class: RequestClass) -> bool:
        """Return True if a maintenance window covers a host or a device that a request class can use."""
        if any(window.covers_host(host.host.name) for host in self._usable_hosts(request_class)):
            return True
        return any(slot.device.uuid in window.devices for slot in self.placements.usable_slots(request_class))

    def _leaves_enough(self, window: Maintenance, request_class: RequestClass) -> bool:
        """Return True if some host that is otherwise empty has enough devices during a window."""
        for host in self._usable_hosts(request_class):
            if window.covers_host(host.host.name):
                continue
            slots = request_class.slots[host.number]
            left = sum(slot.device.uuid not in window.devices for slot in slots)
            if left >= request_class.request.gpus:
                return True
        return False

    def _usable_hosts(self, request_class: RequestClass) -> list[HostCalendar]:
        return [
            host
            for host in self.placements.calendar.hosts
            if not request_class.request.gpus or request_class.slots[host.number]
        ]

    def _allocated(
        self, request_class: RequestClass, slots: list[DeviceSlot], current: list[Maintenance]
    ) -> Iterator[str]:
        """Yield the number of allocated devices, without those that are out of service anyhow."""
        closed = {uuid for window in current for uuid in window.devices}
        ends_s = [
            self._allocated_until[slot.device.uuid]
            for slot in slots
            if slot.timeline.free[0] < request_class.device_units
            and slot.device.uuid not in closed
            and slot.device.state in {DeviceState.FREE, DeviceState.ALLOCATED}
            and slot.device.uuid in self._allocated_until
        ]
        if ends_s:
            next_s = min(ends_s)
            until = f", the next until about {format_time(next_s, self.snapshot)}" if next_s < inf else ""
            yield f"{len(ends_s)} allocated{until}{self._ends_by(slots, next_s)}"

    def _ends_by(self, slots: list[DeviceSlot], at_s: float) -> str:
        """Return the source of the end of the next allocation, unless it is a time limit."""
        devices = {slot.device.uuid for slot in slots if self._allocated_until.get(slot.device.uuid) == at_s}
        sources = {job.ends_by for job in self.snapshot.running if not devices.isdisjoint(job.devices)}
        source = sources.pop() if len(sources) == 1 and at_s < inf else None
        return "" if source in {None, EstimateSource.TIME_LIMIT} else f" {ESTIMATED_BY[source]}"

    def _host_shortage(self, request_class: RequestClass, current: list[Maintenance]) -> Iterator[str]:
        hosts = [
            host
            for host in self._usable_hosts(request_class)
            if not any(window.covers_host(host.host.name) for window in current)
        ]
        if hosts:
            cpus = max(host.millicpus.free[0] for host in hosts)
            memory_bytes = max(host.memory.free[0] for host in hosts)
            names = {host.host.name for host in hosts}
            holders = [job.job_id for job in self.snapshot.running if job.host in names]
            yield from describe_shortage(request_class, cpus, memory_bytes, holders)

    def _protected_holders(self, job: PendingJob, request_class: RequestClass) -> Iterator[str]:
        """Yield the jobs of a higher level that hold usable devices and are not preempted, and the reason."""
        config = self.snapshot.config
        if config.order is not SchedulingOrder.ATTAINED:
            return
        key = (id(request_class), pending_standing(job, config), job.priority_class)
        if key not in self._stays:
            hosts = {host.host.name for host in self._usable_hosts(request_class)}
            devices = {slot.device.uuid for slot in self.placements.usable_slots(request_class)}
            holders = (
                each
                for each in self.snapshot.running
                if each.host in hosts and (not devices or devices.intersection(each.devices))
            )
            found = protected_holders(job, holders, self.placements.calendar)
            self._stays[key] = tuple(
                f"{format_job_ids(ids)} {'is' if len(ids) == 1 else 'are'} not preempted ({why})"
                for why, ids in found.items()
            )
        yield from self._stays[key]

    def _reserved_for(self, job: PendingJob, available: _Availability) -> str:
        """Return the purpose for which free resources are reserved, if the job would not be done by then."""
        now_s, ends_s = self.snapshot.now_s, self.snapshot.span(job).end_s(self.snapshot.now_s)
        request_class = self.placements.request_class(job.request)
        if self.placements.find_now(request_class, ends_s - now_s) is not None:
            return ""
        holders = [
            f"job {other}{self._from_about(other, at_s)}"
            for other, at_s in self.reserved.items()
            if other != job.job_id and at_s < ends_s
        ]
        holders += [
            f"{window.reason} at {format_time(window.begins_s, self.snapshot)}"
            for window in available.windows
            if now_s < window.begins_s < ends_s
        ]
        advice = "" if job.time_limit_s is not None else "; with a time limit the job might fit before that"
        return f"reserved for {' and '.join(holders[:2])}{advice}"

    def _from_about(self, job_id: str, at_s: float) -> str:
        """Return from when on a reservation holds; empty if that depends on an unbounded job."""
        job = self._jobs[job_id]
        unbounded = self._unbounded.blocking(at_s, job, self.placements.request_class(job.request))
        return "" if unbounded else f" from about {format_time(at_s, self.snapshot)}"

    def _jobs_ahead(self, job: PendingJob) -> Iterator[str]:
        position = self._positions[job.job_id]
        if position.jobs_ahead:
            higher = (
                f" ({position.higher_class_ahead} of a higher class)" if position.higher_class_ahead else ""
            )
            yield f"{readable_count(position.jobs_ahead, 'job')} ahead{higher}"

    # --- estimates

    def _estimate(self, job: PendingJob, request_class: RequestClass) -> tuple[float | None, str]:
        """Return the start of a job, and the id of an unbounded job that this depends on, or an empty id."""
        if job.job_id in self.reserved:
            at_s = self.reserved[job.job_id]
            return at_s, self._unbounded.blocking(at_s, job, request_class)
        placement_s, position = self._placement_s(job, request_class), self._positions[job.job_id]
        if placement_s is None:
            return None, ""
        unbounded = self._unbounded.blocking(placement_s, job, request_class) or position.unbounded_ahead
        starts_s = max(placement_s, self.snapshot.now_s + position.devices_busy_s)
        return self._after_maintenance(job, request_class, starts_s), unbounded

    def _placement_s(self, job: PendingJob, request_class: RequestClass) -> float | None:
        """Return the time of a job's placement in the calendar."""
        key = (id(request_class), job.duration_s)
        if key not in self._exact_starts:
            self._exact_starts[key] = self._rounded_placement_s(job, request_class)
        return self._exact_starts[key]

    def _rounded_placement_s(self, job: PendingJob, request_class: RequestClass) -> float | None:
        """Return the same for a duration that is rounded to a power of two, so that few are computed."""
        span = self.snapshot.span(job)
        if not span.boundaries and span.duration_s > 0:
            span = Span(exp2(round(log2(span.duration_s))))
        key = (id(request_class), span)
        if key not in self._rounded_starts:
            placement = self.placements.find_earliest(request_class, span)
            self._rounded_starts[key] = placement.at_s if placement else None
        return self._rounded_starts[key]

    def _after_maintenance(self, job: PendingJob, request_class: RequestClass, at_s: float) -> float:
        """Return the first time from ``at_s`` on at which no maintenance window is in the way of a job."""
        closing = self._availability_of(request_class).closing
        if not closing:
            return at_s
        span = self.snapshot.span(job)
        for window in closing:
            if at_s < window.ends_s and span.end_s(at_s) > window.begins_s:
                at_s = window.ends_s
        return at_s


def _with_cpus_and_memory(job: PendingJob) -> str:
    """Return the CPUs and the memory that the host of a job with GPUs needs in addition."""
    request = job.request
    if not request.gpus:
        return ""
    return f" with {format_cpus(request.cpus)} and {readable_size(request.memory_bytes)} of memory"
