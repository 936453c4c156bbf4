"""Who stands before whom among the jobs that compete for the same devices, and for how long about."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runner.core.scheduler.calendar import Calendar, HostCalendar, Limit, expected_end
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.placement import Placements, RequestClass
from runner.core.scheduler.priority import EligibleJobs
from runner.core.scheduler.snapshot import DeviceState, JobArray, PendingJob, RunningJob, Snapshot


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The place of a job in the queue."""

    jobs_ahead: int  # jobs before it that could use what it needs
    higher_class_ahead: int  # of these, jobs of a higher class
    devices_busy_s: float  # for how long these keep everything that it could use busy
    limits_busy_s: float = (
        0.0  # for how long its owner's jobs before it use up the limits that it falls under
    )
    unbounded_ahead: str = ""  # the first of those before it of which nobody knows how long they last
    unbounded_under_limits: str = ""  # and of its owner's


@dataclass(slots=True)
class _Field:
    """What some shapes compete for: the same devices, or else processors."""

    members: frozenset[tuple[int, int]]
    capacity: float
    work_s: float = 0.0
    all: int = 0  # jobs
    jobs: dict[int, int] = field(default_factory=dict)  # by rank of their class
    endless: str = ""

    def count(self, rank: int, work_s: float, endless: str) -> None:
        """Take a job in; ``endless`` is its id if nobody knows how long it lasts."""
        self.endless = self.endless or endless
        self.work_s += work_s
        self.all += 1
        self.jobs[rank] = self.jobs.get(rank, 0) + 1


@dataclass(slots=True)
class _Fields:
    places: Placements
    known: dict[frozenset[tuple[int, int]], _Field] = field(default_factory=dict)
    by_shape: dict[int, _Field] = field(default_factory=dict)
    overlaps: dict[tuple[int, int], float] = field(default_factory=dict)

    def of(self, shape: RequestClass) -> _Field:
        found = self.by_shape.get(id(shape))
        if found is None:
            members = frozenset(
                (number, slot.number)
                for number, slots in shape.pool.slots.items()
                for slot in slots
                if slot.device.state in {DeviceState.FREE, DeviceState.ALLOCATED}
            )
            cpus = sum(book.host.cpus for book in self.places.calendar.hosts)
            found = self.known.setdefault(members, _Field(members, float(len(members)) or cpus))
            self.by_shape[id(shape)] = found
        return found

    def before(self, own: _Field, rank: int, capped: "_Used") -> QueuePosition:
        """Return what all that was counted so far means for the next job."""
        ahead = higher = 0
        work_s, endless = 0.0, ""
        for other in self.known.values():
            part = self._overlap(own, other)
            if part:
                ahead += other.all
                for each, count in other.jobs.items():
                    higher += count if each > rank else 0
                work_s += other.work_s * part
                endless = endless or other.endless
        busy_s = work_s / own.capacity if own.capacity else 0.0
        return QueuePosition(ahead, higher, busy_s, capped.seconds, endless, capped.endless)

    def _overlap(self, own: _Field, other: _Field) -> float:
        """Return the part of another field's work that falls on the devices of one's own."""
        if own is other:
            return 1.0
        key = (id(own), id(other))
        if key not in self.overlaps:
            common = len(own.members & other.members)
            self.overlaps[key] = common / len(other.members) if common else 0.0
        return self.overlaps[key]


@dataclass(frozen=True, slots=True)
class _Used:
    """For how long a limit is used up, and by whom of whom nobody knows how long that is."""

    seconds: float = 0.0
    endless: str = ""


_UNUSED = _Used()


@dataclass(slots=True)
class _Limits:
    """For how long what was counted so far uses each limit up."""

    used: dict[int, _Used] = field(default_factory=dict)  # by the identity of its timeline

    def before(self, caps: Sequence[Limit]) -> _Used:
        used = [self.used.get(id(cap.timeline), _UNUSED) for cap in caps]
        if not used:
            return _UNUSED
        endless = next((each.endless for each in used if each.endless), "")
        return _Used(max(each.seconds for each in used), endless)

    def count(self, caps: Iterable[Limit], lasts_s: float, endless: str) -> None:
        for cap in caps:
            before = self.used.get(id(cap.timeline), _UNUSED)
            seconds = before.seconds + lasts_s * cap.amount / cap.maximum
            self.used[id(cap.timeline)] = _Used(seconds, before.endless or endless)


@dataclass(slots=True)
class LimitLookup:
    """The limits that jobs fall under; jobs that are alike fall under the same."""

    calendar: Calendar
    known: dict[tuple[str, str, int, JobArray | None], tuple[Limit, ...]] = field(default_factory=dict)

    def for_job(self, job: PendingJob) -> tuple[Limit, ...]:
        key = (job.owner, job.group, job.request.gpus, job.array)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = tuple(self.calendar.limits(job))
        return found


def queue_positions(
    snapshot: Snapshot,
    places: Placements,
    shares: FairShare,
    started: frozenset[str],
    reserved: Container[str],
) -> dict[str, QueuePosition]:
    """Return the standing of every job that may start and does not."""
    return dict(_standings(places, EligibleJobs(snapshot, shares), started, reserved))


def _standings(
    places: Placements, eligible: EligibleJobs, started: frozenset[str], reserved: Container[str]
) -> Iterator[tuple[str, QueuePosition]]:
    snapshot, fields, limits, capped = (
        eligible.snapshot,
        _Fields(places),
        _Limits(),
        LimitLookup(places.calendar),
    )
    ranks: dict[str, int] = {}
    for job in eligible:
        if job.job_id in started:
            continue
        shape, caps = places.request_class(job.request), capped.for_job(job)
        if _hopeless(shape, places, caps):
            continue
        rank = ranks.get(job.priority_class)
        if rank is None:
            rank = ranks[job.priority_class] = snapshot.config.priority_class(job.priority_class).rank
        own, lasts_s = fields.of(shape), job.planned_duration_s(snapshot.config)
        yield job.job_id, fields.before(own, rank, limits.before(caps))
        endless = job.job_id if job.duration_s is None else ""
        if job.job_id not in reserved:  # the time of one that is stands in the book
            limits.count(caps, lasts_s, endless)
        elif endless:
            endless, lasts_s = "", 0.0
        own.count(rank, (job.request.gpus or job.request.cpus) * lasts_s, endless)


def _hopeless(shape: RequestClass, places: Placements, caps: Iterable[Limit]) -> bool:
    """Return whether a job will never start as things stand, and so is in nobody's way."""
    return not places.could_ever_run(shape) or any(cap.maximum < cap.amount for cap in caps)


@dataclass(frozen=True, slots=True)
class UnboundedJob:
    """A job without a known end, and what it has; of one that begins later, what it may get."""

    ends_s: float  # as the plan takes it
    job: RunningJob | PendingJob
    devices: frozenset[str]


@dataclass(frozen=True, eq=False)
class UnboundedJobs:
    """The jobs of a plan whose ends nobody knows, and what rests on them."""

    snapshot: Snapshot
    placements: Placements
    started: Container[str]
    reserved: Mapping[str, float]
    _by_shape: dict[int, tuple[UnboundedJob, ...]] = field(default_factory=dict)

    @cached_property
    def all(self) -> tuple[UnboundedJob, ...]:
        """Return them, the first to end first."""
        return tuple(sorted((*self._running(), *self._waiting()), key=lambda each: each.ends_s))

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(each.job.job_id for each in self.all)

    def _running(self) -> Iterator[UnboundedJob]:
        for job in self.snapshot.running:
            ends_s = self.placements.calendar.ends_s[job.job_id]
            if job.ends_s is None and ends_s == expected_end(job, self.snapshot):  # else it gives way
                yield UnboundedJob(ends_s, job, frozenset(job.devices))

    def _waiting(self) -> Iterator[UnboundedJob]:
        now_s, lasts_s = self.snapshot.now_s, self.snapshot.config.default_duration_s
        for job in self.snapshot.pending:
            begins_s = now_s if job.job_id in self.started else self.reserved.get(job.job_id)
            if job.duration_s is None and begins_s is not None:
                yield UnboundedJob(
                    begins_s + lasts_s, job, self._usable_devices(self.placements.request_class(job.request))
                )

    def blocking(self, at_s: float, job: PendingJob, shape: RequestClass) -> str:
        """Return the id of the job that a place at a time is taken from; empty: of none without an end."""
        if id(shape) not in self._by_shape:
            self._by_shape[id(shape)] = tuple(each for each in self.all if self._in_the_way(each, shape))
        return _first(self._by_shape[id(shape)], at_s, job)

    def blocking_limits(self, at_s: float, job: PendingJob) -> str:
        """Return the same for a place under the limits of a job."""
        own = self._limits_of(job)
        return _first((each for each, caps in self._with_limits if caps & own), at_s, job)

    @cached_property
    def _with_limits(self) -> tuple[tuple[UnboundedJob, frozenset[str]], ...]:
        each_with_caps = ((each, self._limits_of(each.job)) for each in self.all)
        return tuple((each, caps) for each, caps in each_with_caps if caps)

    def _limits_of(self, job: RunningJob | PendingJob) -> frozenset[str]:
        return frozenset(cap.label for cap in self.placements.calendar.limits(job))

    def _in_the_way(self, each: UnboundedJob, shape: RequestClass) -> bool:
        """Return whether a job has what the jobs of a shape could use, or too little is left beside it."""
        if each.devices & self._usable_devices(shape):
            return True
        now_s, at = self.snapshot.now_s, each.job.host if isinstance(each.job, RunningJob) else None
        return any(
            _tight(host, shape, now_s, each.ends_s)
            for host in self.placements.calendar.hosts
            if at in {None, host.host.name} and (not shape.request.gpus or shape.pool.slots[host.number])
        )

    def _usable_devices(self, shape: RequestClass) -> frozenset[str]:
        return frozenset(slot.device.uuid for slot in self.placements.usable_slots(shape))


def _first(unending: Iterable[UnboundedJob], at_s: float, job: PendingJob) -> str:
    others = (each.job.job_id for each in unending if each.ends_s <= at_s and each.job is not job)
    return next(others, "")


def _tight(host: HostCalendar, shape: RequestClass, begins_s: float, ends_s: float) -> bool:
    """Return whether a host's own resources keep a shape out at some time."""
    cpus, memory = host.millicpus.min_free(begins_s, ends_s), host.memory.min_free(begins_s, ends_s)
    return cpus < shape.millicpus or memory < shape.request.memory_bytes
