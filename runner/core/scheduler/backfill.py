"""The scheduling decision: jobs to start, jobs to preempt, reservations, and pending reasons.

``plan`` is the only function that decides this: the daemon, the tests and the simulator call it.
The algorithm is EASY backfilling (D. Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995;
D. Feitelson, A. Weil, IPPS 1998).  The first blocked job gets a reservation, and so does every
overdue job (see ``priority``).  A job behind them starts only if it delays no reservation.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TypeAlias

from runner.base.readable import readable_duration
from runner.core.scheduler.calendar import Calendar, Limit, expected_end
from runner.core.scheduler.device_selection import Selection
from runner.core.scheduler.displacement import Displacements, switch_cost_s
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.formatting import format_time
from runner.core.scheduler.pending import PendingReason, PendingReasons
from runner.core.scheduler.placement import Placement, Placements, RequestClass
from runner.core.scheduler.preemption import PreemptionCandidate, book_release, find_preemption
from runner.core.scheduler.priority import EligibleJobs
from runner.core.scheduler.snapshot import JobArray, PendingJob, QueueName, RunningJob, Snapshot
from runner.core.scheduler.timeline import Span


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start a job on a host with these devices."""

    job_id: str
    host: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Stop a running job for another one.  It saves, returns to the queue and is not charged an attempt."""

    job_id: str
    for_job: str
    why: str
    spared_s: float = 0.0
    """The waiting of the other job, of which each of several victims spares a part; 0: nobody knows it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The resources that are kept for a blocked job from ``at_s`` on; no later job delays it."""

    job_id: str
    host: str
    devices: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision.  ``pending_reasons`` has every job that does not start; texts are made on access."""

    starts: tuple[StartJob, ...]
    preemptions: tuple[PreemptJob, ...]
    reservations: tuple[Reservation, ...]
    pending_reasons: Mapping[str, PendingReason]


def plan(snapshot: Snapshot) -> Plan:
    """Return the plan for a snapshot; equal snapshots have equal plans."""
    return _Planner(snapshot).plan()


LimitKey: TypeAlias = tuple[str, str, str, JobArray | None, int]
"""Owner, group, class, array and number of GPUs: equal keys mean the same limits and the same amounts."""


@dataclass(slots=True)
class _Planner:
    """The state of one planning pass."""

    snapshot: Snapshot
    calendar: Calendar = field(init=False)
    placements: Placements = field(init=False)
    fair_share: FairShare = field(init=False)
    displacements: Displacements = field(init=False)
    eligible: EligibleJobs = field(init=False)
    unlimited: Span = field(init=False)  # of a job whose duration is unknown
    unlimited_s: float = field(init=False)  # its length if it begins now
    starts: list[StartJob] = field(default_factory=list)
    preemptions: list[PreemptJob] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    device_ends_s: dict[str, float] = field(default_factory=dict)  # by device, of the jobs that start
    head_reserved: bool = False  # the first blocked job has its reservation
    closed_limits: set[str] = field(default_factory=set)  # labels of limits that an overdue job waits for
    held_back: dict[str, int] = field(default_factory=dict)  # by label: amount kept for that overdue job
    at_limit_s: dict[LimitKey, float] = field(default_factory=dict)  # durations from here on exceed a limit
    endless: dict[str, list[tuple[str, tuple[str, ...], float]]] = field(default_factory=dict)
    """The starts and reservations of jobs of unknown duration, by host: job, devices, assumed end."""
    open_classes: Counter[int] = field(default_factory=Counter)  # that may still fit, by id: jobs to consider

    def __post_init__(self) -> None:
        self.calendar = Calendar(self.snapshot)
        self.placements = Placements(self.calendar)
        self.fair_share = FairShare.of(self.snapshot)
        self.displacements = Displacements(self.calendar, self.fair_share)
        self.unlimited = self.snapshot.unlimited
        self.unlimited_s = self.unlimited.end_s(self.snapshot.now_s) - self.snapshot.now_s

    def plan(self) -> Plan:
        eligible = self.eligible = EligibleJobs(
            self.snapshot, self.fair_share, self.placements.can_start, passes_over=self._passes_over
        )
        for identity, request in eligible.requests.items():
            request_class = self.placements.request_class(request)
            self.open_classes[id(request_class)] += eligible.request_counts[identity]
        overdue_count = len(eligible.overdue)
        for position, job in enumerate(eligible):  # the overdue jobs come first
            overdue = position < overdue_count
            self._count_down(job)
            if not self._consider(job, overdue=overdue):
                break
            if not overdue and self._is_done() and not self._may_displace(job):
                break
        starts, reservations = tuple(self.starts), tuple(self.reservations)
        pending_reasons = PendingReasons(
            self.snapshot,
            self.placements,
            self.fair_share,
            frozenset(start.job_id for start in starts),
            {each.job_id: each.at_s for each in reservations},
            Counter(each.for_job for each in self.preemptions),
            self.device_ends_s,
        )
        return Plan(starts, tuple(self.preemptions), reservations, pending_reasons)

    def _passes_over(self, name: QueueName) -> bool:
        """Return True if no job of an owner's queue can start, nor displace another."""
        return self._is_done() and not self.displacements.may_help(name)

    def _is_done(self) -> bool:
        """Return True if no other job can start, so that the rest of the queue is not looked at."""
        return self.head_reserved and not self.open_classes

    def _count_down(self, job: PendingJob) -> None:
        """Close the request class of the job that is considered now if it is the last job of the class."""
        class_id = id(self.placements.request_class(job.request))
        if class_id in self.open_classes:
            self.open_classes[class_id] -= 1
            if not self.open_classes[class_id]:
                del self.open_classes[class_id]

    def _consider(self, job: PendingJob, *, overdue: bool) -> bool:
        """Start a job, reserve for it or pass it over; return whether the jobs behind it may still start."""
        limit_key = (job.owner, job.group, job.priority_class, job.array, job.request.gpus)
        # An overdue job is always looked at, because it may close its limits for others.
        at_limit_s = None if overdue else self.at_limit_s.get(limit_key)
        if at_limit_s == 0.0:  # checked first: thousands of jobs may wait for one quota
            return True
        request_class = self.placements.request_class(job.request)
        duration_s = self._duration_s(job)
        backfilling = self.head_reserved and not overdue
        if request_class.never_placeable:
            self.open_classes.pop(id(request_class), None)
            return True
        if _is_too_long(duration_s, at_limit_s):
            return True
        if (
            backfilling
            and (request_class.exhausted or _is_too_long(duration_s, request_class.too_long_s))
            and not self._may_displace(job)
        ):
            return True
        limits = list(self.calendar.limits(job))
        exhausted = self._exhausted_limits(limits, duration_s, overdue=overdue)
        if exhausted:
            if overdue:
                self._close_limits(limits, exhausted)
            exhausted_at_once = self._exhausted_limits(limits, 0.0, overdue=overdue)
            self.at_limit_s[limit_key] = 0.0 if exhausted_at_once else duration_s
            return True
        selection = None if request_class.exhausted else self.placements.find_now(request_class, duration_s)
        if selection is not None:
            self._start(job, selection, duration_s)
            return True
        self._note_failure(request_class, duration_s)
        if self._displace_for(job, request_class, limits):
            return True
        return backfilling or self._reserve_or_skip(job, request_class, limits, overdue=overdue)

    def _duration_s(self, job: PendingJob) -> float:
        """Return for how long a job that begins now must have its resources."""
        if job.duration_s is None:
            return self.unlimited_s
        if not self.snapshot.maintenance:
            return job.duration_s
        return self.snapshot.span(job).end_s(self.snapshot.now_s) - self.snapshot.now_s

    def _exhausted_limits(self, limits: Sequence[Limit], duration_s: float, *, overdue: bool) -> list[Limit]:
        """Return the limits that leave too little for a job, or that are closed for an overdue job."""
        now_s = self.snapshot.now_s
        held_back: Mapping[str, int] = {} if overdue else self.held_back
        return [
            limit
            for limit in limits
            if limit.label in self.closed_limits
            or limit.timeline.min_free(now_s, now_s + duration_s)
            < limit.amount + held_back.get(limit.label, 0)
        ]

    def _close_limits(self, limits: Sequence[Limit], exhausted: Sequence[Limit]) -> None:
        """Close the limits that an overdue job waits for, and hold back its amount of its other limits.

        Without that, a job that is not overdue could use up another limit of the overdue job.  The next
        plan would then close that limit too, and withdraw reservations that this plan has made.
        """
        self.closed_limits.update(limit.label for limit in exhausted)
        for limit in limits:
            self.held_back[limit.label] = max(limit.amount, self.held_back.get(limit.label, 0))

    def _note_failure(self, request_class: RequestClass, duration_s: float) -> None:
        """Remember that a request class fits nowhere for this duration, or for no duration at all."""
        if not _is_too_long(duration_s, request_class.too_long_s):
            request_class.too_long_s = duration_s
        if request_class.exhausted or self.placements.find_now(request_class, 0.0) is None:
            request_class.exhausted = True
            self.open_classes.pop(id(request_class), None)

    def _start(self, job: PendingJob, selection: Selection, duration_s: float) -> None:
        """Book a start.  A job of unknown duration is booked for the default duration, as running jobs are.

        If it were booked without an end, the jobs that wait for its devices would get no reservation in
        this plan.
        """
        planned_s = job.planned_duration_s(self.snapshot.config)
        self.calendar.book(job, selection.host, selection.devices, self.snapshot.now_s, planned_s)
        self.fair_share.charge(job.owner, job.group, job.request, duration_s)
        ends_s = inf if job.duration_s is None else self.snapshot.now_s + job.duration_s
        self._note_endless(job, selection, self.snapshot.now_s + planned_s)
        self.device_ends_s.update(dict.fromkeys(selection.devices, ends_s))
        self.starts.append(StartJob(job.job_id, selection.host.host.name, selection.devices))

    def _note_endless(self, job: PendingJob, selection: Selection, assumed_end_s: float) -> None:
        """Note that the end of a job that starts, or has a reservation, is only assumed."""
        if job.duration_s is None:
            booked = (job.job_id, selection.devices, assumed_end_s)
            self.endless.setdefault(selection.host.host.name, []).append(booked)

    def _reserve_or_skip(
        self, job: PendingJob, request_class: RequestClass, limits: Sequence[Limit], *, overdue: bool
    ) -> bool:
        """Reserve for a blocked job where possible; return whether the jobs behind it may still start."""
        span = self.snapshot.span(job)
        placement = self.placements.find_earliest(request_class, span, limits)
        if placement is None:
            request_class.never_placeable = self.placements.find_earliest(request_class, Span(0.0)) is None
            return True
        if not self.snapshot.config.backfill:
            return False
        if overdue and len(self.reservations) >= self.snapshot.config.reservations:
            return False
        placement = self._try_preemption(job, request_class, placement, span)
        self._reserve(job, placement, overdue=overdue)
        self.head_reserved = self.head_reserved or not overdue
        return True

    def _reserve(self, job: PendingJob, placement: Placement, *, overdue: bool) -> None:
        """Book a reservation.  A job of unknown duration is booked for the default duration."""
        host, devices = placement.selection.host, placement.selection.devices
        planned_s = job.planned_duration_s(self.snapshot.config)
        self.calendar.book(job, host, devices, placement.at_s, planned_s, overdue=overdue)
        self._note_endless(job, placement.selection, placement.at_s + planned_s)
        self.reservations.append(Reservation(job.job_id, host.host.name, devices, placement.at_s))

    def _may_displace(self, job: PendingJob) -> bool:
        """Return True if some running job that may be preempted has a higher standing than a pending one."""
        return bool(self.displacements.by_host) and self.displacements.highest > self.eligible.standing(job)

    def _unknown_end_before(self, placement: Placement) -> str:
        """Return the id of a job of unknown end that a placement waits for; empty: its time is known."""
        at_s, devices = placement.at_s, frozenset(placement.selection.devices)
        host, now_s, config = placement.selection.host.host.name, self.snapshot.now_s, self.snapshot.config
        endless = [
            (job.job_id, job.devices, self.calendar.ends_s[job.job_id])
            for job in self.calendar.running_by_host.get(host, ())
            if job.ends_s is None and self.calendar.ends_s[job.job_id] == expected_end(job, now_s, config)
        ]
        for job_id, taken, ends_s in endless + self.endless.get(host, []):
            if ends_s == at_s or (ends_s < at_s and not devices.isdisjoint(taken)):
                return job_id
        return ""

    def _displace_for(self, job: PendingJob, request_class: RequestClass, limits: Sequence[Limit]) -> bool:
        """Preempt jobs of a higher standing for a blocked job where that pays; return whether it does."""
        if request_class.never_placeable or not self._may_displace(job):
            return False
        standing = self.eligible.standing(job)
        span = self.snapshot.span(job)
        found = self.displacements.find(
            job,
            standing,
            request_class,
            span,
            lambda: self.placements.find_earliest(request_class, span, limits),
        )
        if found is None:
            return False
        candidate, placement = found
        self.displacements.take(candidate)
        unknown = self._unknown_end_before(placement)
        waits = _describe_wait(placement, candidate, unknown)
        why = partial(_displacement_reason, self.snapshot, job, candidate, waits)
        earlier = self._make_room(job, candidate, why, _spared_s(placement, candidate, unknown))
        self._reserve(job, earlier, overdue=False)
        self.fair_share.charge(
            job.owner, job.group, job.request, job.planned_duration_s(self.snapshot.config)
        )
        return True

    def _make_room(
        self,
        job: PendingJob,
        candidate: PreemptionCandidate,
        why: Callable[[RunningJob], str],
        spared_s: float,
    ) -> Placement:
        """Stop the victims, and tell each why; return the placement of the job that they make room for."""
        earlier = candidate.placement
        host = self.calendar.hosts[earlier.selection.host.number]
        for victim in candidate.victims:
            book_release(self.calendar, host, victim, earlier.at_s)
            self.calendar.ends_s[victim.job_id] = earlier.at_s
            self.preemptions.append(PreemptJob(victim.job_id, job.job_id, why(victim), spared_s))
        return Placement(earlier.at_s, Selection(earlier.selection.score, host, earlier.selection.devices))

    def _try_preemption(
        self, job: PendingJob, request_class: RequestClass, placement: Placement, span: Span
    ) -> Placement:
        """Preempt for a job where that pays; return the placement that results, or the one that it has."""
        candidate = find_preemption(self.calendar, job, request_class, placement, span)
        if candidate is None:
            return placement
        self.displacements.remove(candidate.victims)
        unknown = self._unknown_end_before(placement)
        waits = _describe_wait(placement, candidate, unknown)
        why = _preemption_reason(job, candidate, waits)
        return self._make_room(job, candidate, lambda _: why, _spared_s(placement, candidate, unknown))


def _is_too_long(duration_s: float, too_long_s: float | None) -> bool:
    """Return True if a duration is at least as long as one that is known not to fit."""
    return too_long_s is not None and duration_s >= too_long_s


def _spared_s(placement: Placement, candidate: PreemptionCandidate, unknown: str) -> float:
    """Return the waiting that each victim spares a job; 0 if it would wait for a job of unknown end."""
    spared_s = max(placement.at_s - candidate.placement.at_s, 0.0)
    return 0.0 if unknown else spared_s / len(candidate.victims)


def _describe_wait(placement: Placement, candidate: PreemptionCandidate, unknown: str) -> str:
    """Return for how long a job would wait that nobody makes room for; ``unknown``: for a job of that id."""
    if unknown:
        return f"which would wait for job {unknown}, whose end is unknown"
    return f"which would wait {readable_duration(placement.at_s - candidate.placement.at_s)} longer"


def _preemption_reason(job: PendingJob, candidate: PreemptionCandidate, waits: str) -> str:
    return (
        f"preempted for job {job.job_id} of class {job.priority_class}, {waits}: "
        f"{candidate.gained_device_s:.0f} device-seconds gained for {candidate.lost_device_s:.0f} lost, "
        "weighted by class"
    )


def _displacement_reason(
    snapshot: Snapshot,
    job: PendingJob,
    candidate: PreemptionCandidate,
    waits: str,
    victim: RunningJob,
) -> str:
    """Return for whom a job is preempted, after how long, what that costs, and when it may be back."""
    earlier_s, now_s = candidate.placement.at_s, snapshot.now_s
    count, unit = (job.request.gpus, "GPU") if job.request.gpus else (job.request.cpus, "CPU")
    had = f"{readable_duration(job.ran_s)} of service" if job.ran_s else "no service so far"
    needs = f"needs {count:g} {unit}{'s' if count != 1 else ''}"
    lasts = "" if job.duration_s is None else f", about {readable_duration(job.duration_s)}"
    ends = "" if job.duration_s is None else format_time(earlier_s + job.duration_s, snapshot)
    back = f"; back about {ends}" if ends else ""
    return (
        f"preempted for job {job.job_id} ({had}, {needs}{lasts}), {waits}, "
        f"after {readable_duration(now_s - victim.started_s)}; "
        f"cost about {readable_duration(switch_cost_s(victim, now_s))}{back}"
    )
