"""Queue positions: which jobs compete for the same resources, in which order, and for about how long."""

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
    """The position of a job among the jobs that compete for the same resources."""

    jobs_ahead: int
    higher_class_ahead: int  # of these, jobs of a higher class
    devices_busy_s: float  # how long the jobs ahead keep all usable devices busy
    limits_busy_s: float = 0.0  # how long the jobs ahead use up the limits of the job
    unbounded_ahead: str = ""  # id of the first job ahead whose duration is unknown
    unbounded_under_limits: str = ""  # the same among the jobs under its limits


@dataclass(slots=True)
class _ResourceGroup:
    """The resources that some request classes compete for: the same devices, or else CPUs."""

    members: frozenset[tuple[int, int]]  # number of the host and of the device
    capacity: float
    work_s: float = 0.0  # resource-seconds of the jobs counted so far
    job_count: int = 0
    count_by_rank: dict[int, int] = field(default_factory=dict)  # by rank of the class
    unbounded: str = ""  # id of the first job whose duration is unknown

    def count(self, rank: int, work_s: float, unbounded: str) -> None:
        """Count a job; ``unbounded`` is its id if its duration is unknown, else empty."""
        self.unbounded = self.unbounded or unbounded
        self.work_s += work_s
        self.job_count += 1
        self.count_by_rank[rank] = self.count_by_rank.get(rank, 0) + 1


@dataclass(slots=True)
class _ResourceGroups:
    placements: Placements
    by_members: dict[frozenset[tuple[int, int]], _ResourceGroup] = field(default_factory=dict)
    by_class: dict[int, _ResourceGroup] = field(default_factory=dict)

    def of(self, request_class: RequestClass) -> _ResourceGroup:
        """Return the group of a request class; classes that can use the same devices share a group."""
        found = self.by_class.get(id(request_class))
        if found is not None:
            return found
        members = frozenset(
            (number, slot.number)
            for number, slots in request_class.slots.items()
            for slot in slots
            if slot.device.state in {DeviceState.FREE, DeviceState.ALLOCATED}
        )
        cpus = sum(host.host.cpus for host in self.placements.calendar.hosts)
        found = self.by_members.setdefault(members, _ResourceGroup(members, float(len(members)) or cpus))
        self.by_class[id(request_class)] = found
        return found

    def position(self, own: _ResourceGroup, rank: int, limit_use: "_LimitUse") -> QueuePosition:
        """Return the position of the next job, given the jobs that were counted so far."""
        jobs_ahead = higher_class_ahead = 0
        work_s, unbounded = 0.0, ""
        for other in self.by_members.values():
            overlap = self._overlap(own, other)
            if not overlap:
                continue
            jobs_ahead += other.job_count
            for other_rank, count in other.count_by_rank.items():
                if other_rank > rank:
                    higher_class_ahead += count
            work_s += other.work_s * overlap
            unbounded = unbounded or other.unbounded
        busy_s = work_s / own.capacity if own.capacity else 0.0
        return QueuePosition(
            jobs_ahead, higher_class_ahead, busy_s, limit_use.busy_s, unbounded, limit_use.unbounded
        )

    def _overlap(self, own: _ResourceGroup, other: _ResourceGroup) -> float:
        """Return the share of another group's work that falls on the devices of one's own group."""
        if own is other:
            return 1.0
        common = len(own.members & other.members)
        return common / len(other.members) if common else 0.0


@dataclass(frozen=True, slots=True)
class _LimitUse:
    """Time for which jobs use a limit up, and the first of them whose duration is unknown."""

    busy_s: float = 0.0
    unbounded: str = ""


_UNUSED = _LimitUse()


@dataclass(slots=True)
class _LimitUses:
    """The use of each limit by the jobs that were counted so far."""

    by_timeline: dict[int, _LimitUse] = field(default_factory=dict)  # by identity of the limit's timeline

    def of(self, limits: Sequence[Limit]) -> _LimitUse:
        """Return the use of the limit that is used up longest."""
        uses = [self.by_timeline.get(id(limit.timeline), _UNUSED) for limit in limits]
        if not uses:
            return _UNUSED
        unbounded = next((use.unbounded for use in uses if use.unbounded), "")
        return _LimitUse(max(use.busy_s for use in uses), unbounded)

    def count(self, limits: Iterable[Limit], duration_s: float, unbounded: str) -> None:
        for limit in limits:
            before = self.by_timeline.get(id(limit.timeline), _UNUSED)
            busy_s = before.busy_s + duration_s * limit.amount / limit.maximum
            self.by_timeline[id(limit.timeline)] = _LimitUse(busy_s, before.unbounded or unbounded)


@dataclass(slots=True)
class LimitLookup:
    """The limits of jobs, looked up once for all that agree in what ``for_job`` looks at."""

    calendar: Calendar
    known: dict[tuple[str, str, str, int, JobArray | None], tuple[Limit, ...]] = field(default_factory=dict)

    def for_job(self, job: PendingJob) -> tuple[Limit, ...]:
        key = (job.owner, job.group, job.priority_class, job.request.gpus, job.array)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = tuple(self.calendar.limits(job))
        return found


def queue_positions(
    snapshot: Snapshot,
    placements: Placements,
    fair_share: FairShare,
    started: frozenset[str],
    reserved: Container[str],
) -> dict[str, QueuePosition]:
    """Return the position of each job that may start and does not."""
    eligible = EligibleJobs(snapshot, fair_share, placements.can_start)
    return dict(_positions(placements, eligible, started, reserved))


def _positions(
    placements: Placements, eligible: EligibleJobs, started: frozenset[str], reserved: Container[str]
) -> Iterator[tuple[str, QueuePosition]]:
    snapshot = eligible.snapshot
    groups, limit_uses = _ResourceGroups(placements), _LimitUses()
    limit_lookup = LimitLookup(placements.calendar)
    rank_by_class: dict[str, int] = {}
    for job in eligible:
        if job.job_id in started:
            continue
        request_class, limits = placements.request_class(job.request), limit_lookup.for_job(job)
        if _can_never_start(request_class, placements, limits):
            continue
        rank = rank_by_class.get(job.priority_class)
        if rank is None:
            rank = rank_by_class[job.priority_class] = snapshot.config.priority_class(job.priority_class).rank
        own, duration_s = groups.of(request_class), job.planned_duration_s(snapshot.config)
        yield job.job_id, groups.position(own, rank, limit_uses.of(limits))
        unbounded = job.job_id if job.duration_s is None else ""
        if job.job_id not in reserved:  # the calendar has the limits of reservations
            limit_uses.count(limits, duration_s, unbounded)
        elif unbounded:
            unbounded, duration_s = "", 0.0
        own.count(rank, (job.request.gpus or job.request.cpus) * duration_s, unbounded)


def _can_never_start(request_class: RequestClass, placements: Placements, limits: Iterable[Limit]) -> bool:
    """Return True if a job is in nobody's way, because it does not fit any host or exceeds a limit."""
    exceeds_limit = any(limit.maximum < limit.amount for limit in limits)
    return not placements.could_ever_run(request_class) or exceeds_limit


@dataclass(frozen=True, slots=True)
class UnboundedJob:
    """A job whose end is unknown, with the devices that it holds or, before its start, may get."""

    ends_s: float  # as the plan assumes it
    job: RunningJob | PendingJob
    devices: frozenset[str]


@dataclass(frozen=True, eq=False)
class UnboundedJobs:
    """The jobs of a plan whose ends are unknown, and the estimates that depend on them."""

    snapshot: Snapshot
    placements: Placements
    started: Container[str]
    reserved: Mapping[str, float]
    _by_class: dict[int, tuple[UnboundedJob, ...]] = field(default_factory=dict)

    @cached_property
    def all(self) -> tuple[UnboundedJob, ...]:
        """All of them by their assumed end."""
        return tuple(sorted((*self._running(), *self._pending()), key=lambda each: each.ends_s))

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(each.job.job_id for each in self.all)

    def _running(self) -> Iterator[UnboundedJob]:
        for job in self.snapshot.running:
            ends_s = self.placements.calendar.ends_s[job.job_id]
            preempted = ends_s != expected_end(job, self.snapshot.now_s, self.snapshot.config)
            if job.ends_s is None and not preempted:
                yield UnboundedJob(ends_s, job, frozenset(job.devices))

    def _pending(self) -> Iterator[UnboundedJob]:
        now_s, duration_s = self.snapshot.now_s, self.snapshot.config.default_duration_s
        for job in self.snapshot.pending:
            begins_s = now_s if job.job_id in self.started else self.reserved.get(job.job_id)
            if job.duration_s is None and begins_s is not None:
                devices = self._usable_devices(self.placements.request_class(job.request))
                yield UnboundedJob(begins_s + duration_s, job, devices)

    def blocking(self, at_s: float, job: PendingJob, request_class: RequestClass) -> str:
        """Return the id of an unbounded job that a start at a time depends on; empty: there is none."""
        if id(request_class) not in self._by_class:
            self._by_class[id(request_class)] = tuple(
                each for each in self.all if self._is_in_the_way(each, request_class)
            )
        return _first_ending(self._by_class[id(request_class)], at_s, job)

    def blocking_limits(self, at_s: float, job: PendingJob) -> str:
        """Return the id of an unbounded job under the same limits that a start at a time depends on."""
        own_limits = self._limits_of(job)
        under_same = (each for each, limits in self._with_limits if limits & own_limits)
        return _first_ending(under_same, at_s, job)

    @cached_property
    def _with_limits(self) -> tuple[tuple[UnboundedJob, frozenset[str]], ...]:
        each_with_limits = ((each, self._limits_of(each.job)) for each in self.all)
        return tuple((each, limits) for each, limits in each_with_limits if limits)

    def _limits_of(self, job: RunningJob | PendingJob) -> frozenset[str]:
        return frozenset(limit.label for limit in self.placements.calendar.limits(job))

    def _is_in_the_way(self, each: UnboundedJob, request_class: RequestClass) -> bool:
        """Return True if a job holds usable devices, or leaves too few CPUs or too little memory."""
        if each.devices & self._usable_devices(request_class):
            return True
        now_s = self.snapshot.now_s
        own_host = each.job.host if isinstance(each.job, RunningJob) else None  # None: it may be any host
        for host in self.placements.calendar.hosts:
            usable = not request_class.request.gpus or bool(request_class.slots[host.number])
            possible_host = usable and own_host in {None, host.host.name}
            if possible_host and _is_short(host, request_class, now_s, each.ends_s):
                return True
        return False

    def _usable_devices(self, request_class: RequestClass) -> frozenset[str]:
        return frozenset(slot.device.uuid for slot in self.placements.usable_slots(request_class))


def _first_ending(unbounded: Iterable[UnboundedJob], at_s: float, job: PendingJob) -> str:
    """Return the id of the first job other than ``job`` that is assumed to end by a time."""
    for each in unbounded:
        if each.ends_s <= at_s and each.job is not job:
            return each.job.job_id
    return ""


def _is_short(host: HostCalendar, request_class: RequestClass, begins_s: float, ends_s: float) -> bool:
    """Return True if a host has too few CPUs or too little memory at some time."""
    cpus = host.millicpus.min_free(begins_s, ends_s)
    memory_bytes = host.memory.min_free(begins_s, ends_s)
    return cpus < request_class.millicpus or memory_bytes < request_class.request.memory_bytes
