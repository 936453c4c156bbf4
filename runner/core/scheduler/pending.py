"""Why everybody else waits, and until when about: worked out when somebody asks.

All reasons follow from the book as the plan left it.  An estimate is the later of two times: when
the place that a job needs opens in the book, and when those before it in the queue will have
been served if everything they need is busy all the time.  The first is exact for jobs with a
reservation, both are wrong as far as durations are.  Where one would rest on a job of whose duration
nobody knows anything, there is none, and that job is named.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import exp2, inf, log2
from typing import Final

from runner.core.scheduler.calendar import DeviceSlot, HostCalendar, Limit
from runner.core.scheduler.dependencies import Readiness, check_dependency
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.formatting import (
    describe_out_of_service,
    describe_request,
    describe_shortage,
    format_count,
    format_job_ids,
    format_memory,
    format_time,
    format_zone,
)
from runner.core.scheduler.placement import Placements, RequestClass
from runner.core.scheduler.position import LimitLookup, QueuePosition, UnboundedJobs, queue_positions
from runner.core.scheduler.snapshot import DependencyCondition, DeviceState, Maintenance, PendingJob, Snapshot
from runner.core.scheduler.timeline import Span

NEVER_STARTS: Final = "never starts: "
"""How the reason of a job begins that waits for ever, as things stand."""


@dataclass(frozen=True, slots=True)
class PendingReason:
    """What a job waits for.  ``starts_s`` is an estimate; None: nobody can tell."""

    job_id: str
    why: str
    starts_s: float | None = None
    never: bool = False  # as things stand, it will wait for ever


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all jobs of one shape see when they look around."""

    wanted: str
    free: str  # how many devices are, and whether together; empty for those that want none
    fits: bool  # for a moment, at least
    facts: tuple[str, ...]
    windows: tuple[Maintenance, ...]  # that take something they could use
    shut: tuple[Maintenance, ...]  # of these, those that leave too little, by their beginning


@dataclass(frozen=True, eq=False)
class PendingReasons(Mapping[str, PendingReason]):
    """The jobs that do not start, by id."""

    snapshot: Snapshot
    placements: Placements
    fair_share: FairShare
    started: frozenset[str]
    reserved: Mapping[str, float]
    making_room: Mapping[str, int]  # how many jobs give way to a job
    device_ends_s: Mapping[str, float]  # ends of what was just started, by device
    _lasting: dict[tuple[int, float | None], float | None] = field(default_factory=dict)  # by shape, duration
    _opened: dict[tuple[int, Span], float | None] = field(default_factory=dict)
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _hopeless: dict[str, PendingReason | None] = field(default_factory=dict)  # by job

    def __getitem__(self, job_id: str) -> PendingReason:
        return self._wait(self._jobs[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self.snapshot.pending) - len(self.started)

    @cached_property
    def _jobs(self) -> dict[str, PendingJob]:
        return {job.job_id: job for job in self.snapshot.pending if job.job_id not in self.started}

    @cached_property
    def _caps(self) -> LimitLookup:
        return LimitLookup(self.placements.calendar)

    @cached_property
    def _standings(self) -> dict[str, QueuePosition]:
        return queue_positions(self.snapshot, self.placements, self.fair_share, self.started, self.reserved)

    @cached_property
    def _unending(self) -> UnboundedJobs:
        return UnboundedJobs(self.snapshot, self.placements, self.started, self.reserved)

    @cached_property
    def _endless(self) -> Span:
        return self.snapshot.unlimited

    def _until_s(self, job: PendingJob) -> float:
        """Return when a job would end if it began now."""
        return self._stay(job).end_s(self.snapshot.now_s)

    def _stay(self, job: PendingJob) -> Span:
        return self._endless if job.duration_s is None else Span(job.duration_s)

    @cached_property
    def _until_by_device(self) -> dict[str, float]:
        """Return until when devices are lent; one that many share, until the first of them leaves."""
        until = dict(self.device_ends_s)
        for job in self.snapshot.running:
            ends_s = inf if job.job_id in self._unending.ids else self.placements.calendar.ends_s[job.job_id]
            until |= {uuid: min(ends_s, until.get(uuid, inf)) for uuid in job.devices}
        return until

    # --- one job

    def _wait(self, job: PendingJob) -> PendingReason:
        now_s = self.snapshot.now_s
        if never := self._never(job):
            return never
        if job.not_before_s is not None and job.not_before_s > now_s:
            begins = f"{format_time(job.not_before_s, self.snapshot)} {format_zone(self.snapshot)}"
            return PendingReason(job.job_id, f"not before {begins}", job.not_before_s)
        shape = self.placements.request_class(job.request)
        return self._dependent(job) or self._capped(job, shape) or self._scarce(job, shape)

    def _never(self, job: PendingJob) -> PendingReason | None:
        """Return why a job never starts, if that is so whatever becomes of those before it."""
        if job.job_id not in self._hopeless:
            why = self._failed(job) or self._impossible(job) or self._beyond(job)
            self._hopeless[job.job_id] = (
                PendingReason(job.job_id, f"{NEVER_STARTS}{why}", never=True) if why else None
            )
        return self._hopeless[job.job_id]

    def _failed(self, job: PendingJob) -> str:
        """Return which of the jobs that a job waits for has ended in another way than it was to, and how."""
        for after in job.dependencies:
            if check_dependency(after, self.snapshot.ended) is Readiness.NEVER:
                outcome, end = self.snapshot.ended[after.job_id].outcome, _ENDS[after.condition]
                return f"job {after.job_id} {outcome}, and it was to {end}"
        return ""

    def _impossible(self, job: PendingJob) -> str:
        """Return what no host has."""
        if self.placements.could_ever_run(self.placements.request_class(job.request)):
            return ""
        return f"no host has {describe_request(job.request)}{_beside(job)}"

    def _beyond(self, job: PendingJob) -> str:
        """Return which limit is smaller than what a job asks for."""
        for cap in self._caps.for_job(job):
            if cap.maximum < cap.amount:
                most = f"{cap.holder} may have {cap.maximum} {cap.resource} at a time"
                return f"{most}, and this asks for {cap.amount}"
        return ""

    def _never_before(self, ids: Iterable[str]) -> PendingReason | None:
        """Return the first of some jobs, and of those that they wait for, that never starts."""
        found = dict.fromkeys(ids)
        todo = list(found)
        for job_id in todo:  # it grows
            job = self._jobs.get(job_id)
            if job is None:
                continue
            if never := self._never(job):
                return never
            more = [after.job_id for after in job.dependencies if after.job_id not in found]
            found |= dict.fromkeys(more)
            todo += more
        return None

    def _dependent(self, job: PendingJob) -> PendingReason | None:
        open_ = [
            each
            for each in job.dependencies
            if check_dependency(each, self.snapshot.ended) is Readiness.PENDING
        ]
        if not open_:
            return None
        alike = {
            end: [a.job_id for a in open_ if a.condition is condition] for condition, end in _ENDS.items()
        }
        each = [f"for {format_job_ids(ids)} to {end}" for end, ids in alike.items() if ids]
        why, never = f"waits {' and '.join(each)}", self._never_before(each.job_id for each in open_)
        if never is None:
            return PendingReason(job.job_id, why)
        return PendingReason(
            job.job_id, f"{NEVER_STARTS}it {why}, and job {never.job_id} {never.why}", never=True
        )

    def _capped(self, job: PendingJob, shape: RequestClass) -> PendingReason | None:
        for cap in self._caps.for_job(job):
            free = cap.timeline.min_free(self.snapshot.now_s, self._until_s(job))
            if job.job_id not in self.reserved and free < cap.amount:
                return self._at_limit(job, shape, cap, cap.maximum - free)
        return None

    def _at_limit(self, job: PendingJob, shape: RequestClass, cap: Limit, used: int) -> PendingReason:
        """Return for how long a limit keeps a job: those of its owner that go first use it up before."""
        stay = self._stay(job)
        opens_s = max(
            each.timeline.earliest(self.snapshot.now_s, stay, each.amount) for each in self._caps.for_job(job)
        )
        place_s, standing = None if opens_s == inf else self._opens(job, shape), self._standings[job.job_id]
        why = f"waits for its quota: {cap.label}: {used} of {cap.maximum} in use or kept"
        if place_s is None:
            return self._told(job, why, None)
        unknown = (
            standing.unbounded_under_limits
            or self._unending.blocking_limits(opens_s, job)
            or self._unending.blocking(place_s, job, shape)
        )
        starts_s = self._outside(job, shape, max(place_s, opens_s + standing.limits_busy_s))
        return self._told(job, why, starts_s, unknown)

    def _scarce(self, job: PendingJob, shape: RequestClass) -> PendingReason:
        known, room = self._look(shape), self.making_room.get(job.job_id, 0)
        facts = list(self._facts(job, known))
        if room:
            facts.append(f"{format_count(room, 'job')} making room")
        facts += self._first(job)
        why = f"waits for {known.wanted}: {', '.join(facts) or 'held back by the order'}"
        return self._told(job, why, *self._estimate(job, shape))

    def _told(self, job: PendingJob, why: str, starts_s: float | None, unknown: str = "") -> PendingReason:
        """Return a wait with its estimate; none where that rests on a job that has no known end."""
        if starts_s is None:
            return PendingReason(job.job_id, f"{why}; nobody knows when")
        if unknown:
            return PendingReason(job.job_id, f"{why}; no estimate: job {unknown} has no time limit")
        return PendingReason(
            job.job_id, f"{why}; starts about {format_time(starts_s, self.snapshot)}", starts_s
        )

    # --- facts

    def _facts(self, job: PendingJob, known: _Seen) -> Iterator[str]:
        kept = self._kept(job, known) if known.fits else ""
        if known.free:
            yield f"{known.free}, {kept}" if kept else known.free
        elif kept:
            yield kept
        yield from known.facts

    def _look(self, shape: RequestClass) -> _Seen:
        if id(shape) not in self._seen:
            self._seen[id(shape)] = self._looked(shape)
        return self._seen[id(shape)]

    def _looked(self, shape: RequestClass) -> _Seen:
        slots = list(self.placements.usable_slots(shape))
        windows = tuple(each for each in self.snapshot.maintenance
                        if each.ends_s > self.snapshot.now_s and self._takes(each, shape))  # fmt: skip
        current = [each for each in windows if each.begins_s <= self.snapshot.now_s]
        fits = self.placements.find_now(shape, 0.0) is not None
        facts = (
            *(
                f"closed for {each.reason} until {format_time(each.ends_s, self.snapshot)}"
                for each in current
            ),
            *describe_out_of_service(slot.device for slot in slots),
            *self._lent(shape, slots, current),
            *self._host(shape, current),
        )
        shut = sorted(
            (each for each in windows if not self._leaves(each, shape)), key=lambda each: each.begins_s
        )
        free = self._free(shape, slots) if shape.request.gpus else ""
        return _Seen(describe_request(shape.request), free, fits, facts, windows, tuple(shut))

    def _free(self, shape: RequestClass, slots: list[DeviceSlot]) -> str:
        free = sum(slot.timeline.free[0] >= shape.device_units for slot in slots)
        apart = free >= shape.request.gpus and not self.placements.enough_together(shape)
        return f"{free} free{', not together' if apart else ''}"

    def _takes(self, window: Maintenance, shape: RequestClass) -> bool:
        return any(window.covers_host(host.host.name) for host in self._hosts(shape)) or any(
            slot.device.uuid in window.devices for slot in self.placements.usable_slots(shape)
        )

    def _leaves(self, window: Maintenance, shape: RequestClass) -> bool:
        """Return whether a maintenance leaves enough on some host, were all else gone."""
        return any(
            not window.covers_host(host.host.name)
            and sum(slot.device.uuid not in window.devices for slot in shape.pool.slots[host.number])
            >= shape.request.gpus
            for host in self._hosts(shape)
        )

    def _hosts(self, shape: RequestClass) -> list[HostCalendar]:
        return [each for each in self.placements.calendar.hosts
                if not shape.request.gpus or shape.pool.slots[each.number]]  # fmt: skip

    def _lent(
        self, shape: RequestClass, slots: list[DeviceSlot], current: list[Maintenance]
    ) -> Iterator[str]:
        """Yield how many devices are lent, of those that are not out of reach for another reason anyhow."""
        closed = {uuid for each in current for uuid in each.devices}
        held = [slot.device.uuid for slot in slots
                if slot.timeline.free[0] < shape.device_units and slot.device.uuid not in closed
                and slot.device.state in {DeviceState.FREE, DeviceState.ALLOCATED}]  # fmt: skip
        lent = [self._until_by_device[uuid] for uuid in held if uuid in self._until_by_device]
        if lent:
            next_s = min(lent)
            until = f", the next until about {format_time(next_s, self.snapshot)}" if next_s < inf else ""
            yield f"{len(lent)} lent{until}"

    def _host(self, shape: RequestClass, current: list[Maintenance]) -> Iterator[str]:
        hosts = [host for host in self._hosts(shape)
                 if not any(each.covers_host(host.host.name) for each in current)]  # fmt: skip
        if hosts:
            cpus = max(host.millicpus.free[0] for host in hosts)
            yield from describe_shortage(shape, cpus, max(host.memory.free[0] for host in hosts))

    def _kept(self, job: PendingJob, known: _Seen) -> str:
        """Return why what is free now is not for this job: promised, or soon not ours."""
        now_s, until_s = self.snapshot.now_s, self._until_s(job)
        if self.placements.find_now(self.placements.request_class(job.request), until_s - now_s) is not None:
            return ""
        kept = [f"job {each}{self._from(each, at_s)}"
                for each, at_s in self.reserved.items() if each != job.job_id and at_s < until_s]  # fmt: skip
        kept += [f"{window.reason} at {format_time(window.begins_s, self.snapshot)}"
                 for window in known.windows if now_s < window.begins_s < until_s]  # fmt: skip
        limit = "" if job.duration_s is not None else "; a time limit would tell whether it fits before"
        return f"kept for {' and '.join(kept[:2])}{limit}"

    def _from(self, job_id: str, at_s: float) -> str:
        """Return from when on a reservation is, where that is known."""
        job = self._jobs[job_id]
        rests = self._unending.blocking(at_s, job, self.placements.request_class(job.request))
        return "" if rests else f" from about {format_time(at_s, self.snapshot)}"

    def _first(self, job: PendingJob) -> Iterator[str]:
        standing = self._standings[job.job_id]
        if standing.higher_class_ahead:
            yield f"{format_count(standing.higher_class_ahead, 'job')} of a higher class"
        if standing.jobs_ahead > standing.higher_class_ahead:
            same_class = standing.jobs_ahead - standing.higher_class_ahead
            verb = "goes" if same_class == 1 else "go"
            more = " more" if standing.higher_class_ahead else ""
            yield f"{format_count(same_class, 'job')}{more} {verb} first"

    # --- estimates

    def _estimate(self, job: PendingJob, shape: RequestClass) -> tuple[float | None, str]:
        """Return when a job starts, and the job without a known end that this rests on, if on one."""
        if job.job_id in self.reserved:
            at_s = self.reserved[job.job_id]
            return at_s, self._unending.blocking(at_s, job, shape)
        opens_s, standing = self._opens(job, shape), self._standings[job.job_id]
        if opens_s is None:
            return None, ""
        unknown = self._unending.blocking(opens_s, job, shape) or standing.unbounded_ahead
        return self._outside(job, shape, max(opens_s, self.snapshot.now_s + standing.devices_busy_s)), unknown

    def _opens(self, job: PendingJob, shape: RequestClass) -> float | None:
        """Return when a place opens for a job."""
        key = (id(shape), job.duration_s)
        if key not in self._lasting:
            self._lasting[key] = self._roughly(job, shape)
        return self._lasting[key]

    def _roughly(self, job: PendingJob, shape: RequestClass) -> float | None:
        """Return when a place opens, of durations rounded to a power of two: few are worked out."""
        stay = self._stay(job)
        if not stay.boundaries and stay.duration_s > 0:
            stay = Span(exp2(round(log2(stay.duration_s))))
        key = (id(shape), stay)
        if key not in self._opened:
            place = self.placements.find_earliest(shape, stay)
            self._opened[key] = place.at_s if place else None
        return self._opened[key]

    def _outside(self, job: PendingJob, shape: RequestClass, at_s: float) -> float:
        """Return the first time from one on at which no maintenance is in the way of a job."""
        shut = self._look(shape).shut
        stay = self._stay(job) if shut else self._endless
        for window in shut:
            if at_s < window.ends_s and stay.end_s(at_s) > window.begins_s:
                at_s = window.ends_s
        return at_s


_ENDS = {
    DependencyCondition.OK: "succeed",
    DependencyCondition.ANY: "end",
    DependencyCondition.FAILED: "fail",
}


def _beside(job: PendingJob) -> str:
    """Return what a job wants beside its devices, which the host would have to have too."""
    needs = job.request
    return (
        f" beside {needs.cpus:g} cpus and {format_memory(needs.memory_bytes)} of memory" if needs.gpus else ""
    )
