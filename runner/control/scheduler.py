"""Times at which the queue is planned anew, and the consequences of a plan.

A plan is made when a job has changed, when a time is reached that a job waits for, and every few seconds
while a job is pending, because fair shares fade.  What a plan is made of stands in ``job_views``, and how it
is made in ``core.scheduler``.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from threading import Lock
from typing import Final, TypeAlias

import structlog

from runner.base.errors import Unavailable
from runner.base.instant import Instant
from runner.base.readable import readable_duration
from runner.base.retry import RETRY_S
from runner.control.context import Context, TrackedJob
from runner.control.job_views import JobViews
from runner.control.schedulable import (
    MaintenanceNames,
    held_back_reason,
    hold_back_array_members,
    unmet_reason,
    with_device_uuids,
)
from runner.control.service_levels import ServiceLevels
from runner.control.transitions import Transition, transition
from runner.core.job.attempt import Allocation
from runner.core.job.events import CancelRequested, Placed, PreemptRequested
from runner.core.job.states import Queued
from runner.core.ports.store import JobRow, UsageRecord
from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.dependencies import find_unmet
from runner.core.scheduler.pending import PendingReason
from runner.core.scheduler.snapshot import Host, PendingJob, ResourceRequest, SchedulableDevice, Snapshot

log = structlog.get_logger()

Record: TypeAlias = Callable[[list[Transition]], None]

PREVIEWED: Final = "0"
"""The id of a job that is not in the queue, as in its dry run; the first job is 1."""

REPLAN_S: Final = 5.0
"""Time between two plans while a job is pending and nothing happens: shares fade, jobs overrun."""


CHEAP_S: Final = 0.01
"""Reasons that took less time are worked out anew for each plan."""

REASONS_SHARE: Final = 20.0
"""Reasons that took longer are told for so many times that time, also when there are newer plans."""


@dataclass(slots=True)
class Explanation:
    """The reasons of one plan: they are worked out when they are first read, and kept."""

    plan: Plan
    took_s: float = 0.0
    _lock: Lock = field(default_factory=Lock)
    _since_s: float = field(default_factory=time.monotonic)
    _told: dict[str, PendingReason | None] = field(default_factory=dict)  # the answers so far, by job

    def reason(self, job_id: str) -> PendingReason | None:
        """Return the reason why a job waits; None if the plan does not know the job.  From any thread."""
        if job_id in self._told:
            return self._told[job_id]
        with self._lock:  # the loop does not wait for that
            if job_id in self._told:
                return self._told[job_id]
            began_s = time.thread_time()
            try:
                found = self._told[job_id] = self.plan.pending_reasons.get(job_id)
            finally:
                self.took_s += time.thread_time() - began_s
            return found

    def is_outdated(self) -> bool:
        """Return True if the reasons of a newer plan should be worked out: not while these are."""
        is_old = self.took_s < CHEAP_S or time.monotonic() - self._since_s > REASONS_SHARE * self.took_s
        return is_old and not self._lock.locked()


@dataclass(slots=True, repr=False)
class Scheduler:
    """Makes plans and has them recorded; all but ``why`` and ``pending_reason`` in the exclusive section."""

    context: Context
    tracked_jobs: Mapping[str, TrackedJob]  # the loop changes it
    jobs: JobViews = field(init=False)
    _maintenance_names: MaintenanceNames = field(default_factory=MaintenanceNames)
    _devices: tuple[SchedulableDevice, ...] = ()  # of the last plan
    _next_plan_s: float = inf  # when the next plan is due at the latest, by the monotonic clock
    _newest: Explanation | None = None  # of the last plan
    _known: Explanation | None = None  # of the plan whose reasons are told
    _explaining: Lock = field(default_factory=Lock)  # held by who works out the reasons of a newer plan
    _levels: ServiceLevels = field(init=False)
    _unrecorded: list[TrackedJob] = field(default_factory=list)  # jobs whose start could not be recorded

    def __post_init__(self) -> None:
        self.jobs = JobViews(self.context, self.tracked_jobs)
        self._levels = ServiceLevels(self.context.site, self.context.past)
        self._maintenance_names.check(self.context)

    # --- planning

    def next_plan_in_s(self, now_s: float) -> float:
        """Return for how long no plan is due, if nothing happens."""
        return 0.0 if self.jobs.changed else max(self._next_plan_s - now_s, 0.0)

    def run(self, now: Instant, record: Record) -> None:
        """Make a plan if one is due, and have what follows from it recorded, or try again a while later."""
        self._give_up(now, record)
        made = self.plan(now)
        if made is None:
            return
        transitions = list(self._transitions(made, now))
        for tracked in self._unrecorded:
            tracked.why = ""
        self._unrecorded = []
        try:
            record(transitions)
        except Unavailable as error:
            log.warning("scheduler.plan_not_recorded", jobs=len(transitions), problem=str(error))
            self._unrecorded = [each.tracked for each in transitions]
            for tracked in self._unrecorded:
                tracked.why = str(error)
            self.jobs.changed, self._next_plan_s = False, now.monotonic + RETRY_S
        else:  # the plan knows of all that has been done just now
            self.jobs.changed, self._devices = False, self._present_devices()
            for each in transitions:
                each.tracked.numbered |= isinstance(each.event, Placed)
            self._next_plan_s = self._next_plan_s if self.jobs.pending else inf

    def _give_up(self, now: Instant, record: Record) -> None:
        """Cancel the jobs that wait for what cannot come any more, if a plan is due."""
        jobs, now_s = self.jobs, now.at.timestamp()
        if not jobs.changed and now.monotonic < self._next_plan_s:
            return
        while gone := {
            **{job.job_id: why for job in jobs.index.dependent() if (why := _given_up(job, jobs, now_s))},
            **dict(jobs.failures.given_up(jobs.pending)),
        }:
            requests = [
                transition(self.tracked_jobs[job_id], CancelRequested(now.at, why))
                for job_id, why in gone.items()
            ]
            try:
                record(requests)
            except Unavailable as error:
                log.warning("scheduler.cancel_not_recorded", jobs=len(requests), problem=str(error))
                return

    def plan(self, now: Instant) -> Plan | None:
        """Return a plan; None while nothing has changed since the last one."""
        if not self.jobs.pending:
            self.jobs.changed, self._next_plan_s = False, inf
            self.jobs.forget_requests()
            return None
        self.jobs.follow_clock(now)
        devices = self._present_devices()
        if devices == self._devices and not self.jobs.changed and now.monotonic < self._next_plan_s:
            return None
        if devices != self._devices:
            self._maintenance_names.check(self.context)
        self._levels.refresh(now.monotonic)
        queue = hold_back_array_members(self.snapshot(now), self.jobs.preparing.values())
        made = plan(queue)
        self._newest = Explanation(made)
        self._devices, self.jobs.changed = devices, False
        self._next_plan_s = now.monotonic + _next_change_s(queue, made)
        return made

    def snapshot(self, now: Instant, *, admitted: bool = False) -> Snapshot:
        """Return all that decides who starts; ``admitted``: with the jobs whose image is still made."""
        jobs, site = self.jobs, self.context.site
        jobs.follow_clock(now)
        jobs.usage.advance(now.monotonic)
        devices = self._present_devices()
        overdue = site.rules.overdue_per_owner
        by_id = {**jobs.pending, **jobs.preparing} if admitted else jobs.pending.copy()
        return Snapshot(
            now_s=now.at.timestamp(),
            hosts=(self._host(devices),),
            pending=tuple(by_id.values()),
            waiting=dict(jobs.waiting),
            ready=None if admitted else jobs.index.view(now.at.timestamp(), overdue, by_id),
            running=tuple(jobs.running.values()),
            user_usage=jobs.usage.users.rounded(),
            group_usage=jobs.usage.groups.rounded(),
            level_usage=jobs.level_usage(now.monotonic),
            ended=dict(jobs.dependencies.ended),
            maintenance=tuple(with_device_uuids(each, devices) for each in site.maintenance),
            config=site.rules,
            utc_offset_s=site.utc_offset_s(now.at),
            switching_left_device_s=jobs.switching_left_device_s(),
        )

    def admission_snapshot(self, now: Instant) -> Snapshot:
        """Return all that decides whether a job is admitted: of those that wait, how many they are."""
        jobs, site = self.jobs, self.context.site
        devices = self._present_devices()
        return Snapshot(
            now_s=now.at.timestamp(),
            hosts=(self._host(devices),),
            waiting=dict(jobs.waiting),
            running=tuple(jobs.running.values()),
            maintenance=tuple(with_device_uuids(each, devices) for each in site.maintenance),
            config=site.rules,
        )

    def _host(self, devices: tuple[SchedulableDevice, ...]) -> Host:
        """Return this machine, or what a queue of the engine offers: that queue knows the devices."""
        capacity, queues = self.context.capacity, self.context.executor.queues
        name = self.context.site.host
        return Host(name, capacity.cpus, capacity.memory_bytes, () if queues else devices, queues)

    def _present_devices(self) -> tuple[SchedulableDevice, ...]:
        return self.context.inventory.schedulable(self.jobs.device_holders())

    def _transitions(self, made: Plan, now: Instant) -> Iterator[Transition]:
        for start in made.starts:
            tracked = self.tracked_jobs[start.job_id]
            used = self._highest_numbers(tracked)
            placed = Placed(now.at, Allocation(start.devices), self.context.boot, *used)
            number = max(tracked.row.job.attempts, placed.attempts) + 1
            usage = self.usage(tracked.row, number, start.devices, now.at)
            yield transition(tracked, placed, usage=None if self.context.executor.queues else usage)
        for preemption in made.preemptions:
            request = PreemptRequested(now.at, preemption.for_job, preemption.why, preemption.spared_s)
            yield transition(self.tracked_jobs[preemption.job_id], request)

    def _highest_numbers(self, tracked: TrackedJob) -> tuple[int, int]:
        """Return the highest numbers of attempts and lineages in the directory of a job, until it is placed.

        The store may be a backup that is older than the directory.
        """
        if tracked.numbered:
            return 0, 0
        known = tracked.row.job
        attempts, lineages = self.context.attempt_service.highest_numbers(tracked.row)
        if attempts > known.attempts:
            log.warning("job.attempts_skipped", job_id=known.id, recorded=known.attempts, there=attempts)
        return attempts, lineages

    def usage(self, row: JobRow, number: int, devices: tuple[str, ...], at: datetime) -> UsageRecord:
        """Return the usage record of an attempt that begins to hold what its job asks for.

        Where the engine has a queue of its own, that is when the attempt begins to run.
        """
        job = self.jobs.pending.get(row.job.id) or self.jobs.running[row.job.id]
        needs = job.request
        return UsageRecord(row.job.id, number, job.owner, job.group, needs.gpus, needs.cpus, devices, at)

    # --- what others ask for

    def why(self, tracked: TrackedJob) -> str:
        """Return the reason why a job waits in the queue; empty if for nothing.  From any thread."""
        state = tracked.row.job.state
        if isinstance(state, Queued) and state.not_before is not None:
            backoff_s = _backoff_s(tracked, state.not_before, self.context.moment())
            if backoff_s > 0:
                return f"backoff, {readable_duration(backoff_s)} left"
        reason = self.pending_reason(tracked)
        if reason:
            return reason.why
        return held_back_reason(self.jobs.pending.get(tracked.row.job.id), self.jobs.preparing_arrays.first)

    def pending_reason(self, tracked: TrackedJob) -> PendingReason | None:
        """Return the wait of a job by the last plan, None if that does not know.  From any thread."""
        newest, known, job_id = self._newest, self._known, tracked.row.job.id
        if newest is None or not isinstance(tracked.row.job.state, Queued):
            return None
        if known is newest:
            return newest.reason(job_id)
        if known is None:
            self._known = newest
            return newest.reason(job_id)
        if known.is_outdated() and self._explaining.acquire(blocking=False):
            try:
                found = newest.reason(job_id)
                self._known = newest  # all others had the reasons of the earlier plan meanwhile
            finally:
                self._explaining.release()
            return found
        return known.reason(job_id) or newest.reason(job_id)  # the earlier plan may not know the job

    def preview(self, row: JobRow, needs: ResourceRequest) -> tuple[Snapshot, PendingJob]:
        """Return the queue, and a job that is not in it as if it was: for ``preview_devices``."""
        queue = self.snapshot(self.context.moment(), admitted=True)
        return queue, replace(self.jobs.hypothetical(row, needs), job_id=PREVIEWED)

    def unmet(self, row: JobRow, needs: ResourceRequest) -> str:
        """Return the wait of an attempt of a job if no job was pending; empty: it could start."""
        return unmet_reason(self.snapshot(self.context.moment()), self.jobs.hypothetical(row, needs))


def _given_up(job: PendingJob, jobs: JobViews, now_s: float) -> str:
    """Return the reason why a job is cancelled that waits for another one; empty: it is not, or not yet."""
    unmet = None if job.unmet_limit_s is None else find_unmet(job.dependencies, jobs.dependencies.ended)
    if unmet is None or job.unmet_limit_s is None or now_s < unmet.since_s + job.unmet_limit_s:
        return ""
    return f"queue.on_unmet: {unmet.why}"


def _backoff_s(tracked: TrackedJob, not_before: datetime, now: Instant) -> float:
    """Return the rest of a backoff: it keeps its length when the time of day is set."""
    return (not_before - tracked.since.later(now.monotonic)).total_seconds()


def _next_change_s(queue: Snapshot, made: Plan) -> float:
    """Return in how many seconds time alone may change a plan."""
    times = (at_s for at_s in _times(queue, made) if at_s > queue.now_s)
    return min(min(times, default=inf) - queue.now_s, REPLAN_S)


def _times(queue: Snapshot, made: Plan) -> Iterator[float]:
    """Yield the times at which a pending job may start without anything else happening."""
    if queue.ready is None:
        yield from (job.not_before_s for job in queue.pending if job.not_before_s is not None)
    else:
        yield queue.ready.next_s
        yield from (job.not_before_s for job in queue.ready.dependent if job.not_before_s is not None)
    yield from (each.at_s for each in made.reservations)
    for window in queue.maintenance:
        yield from (window.begins_s, window.ends_s)
