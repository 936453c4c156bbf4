"""Who starts now, on which devices; who must give way; and what everybody else waits for.

``plan`` is the only thing in the house that decides this: the daemon, the tests and the
simulator ask it.  It is EASY backfilling (D. Lifka, The ANL/IBM SP Scheduling System, JSSPP
1995; D. Feitelson, A. Weil, IPPS 1998) with a reservation for the first job that is blocked and,
beyond that, for every overdue one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from runner.core.scheduler.calendar import Calendar, Limit
from runner.core.scheduler.device_selection import Selection
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.pending import PendingReason, PendingReasons
from runner.core.scheduler.placement import Placement, Placements, RequestClass
from runner.core.scheduler.preemption import PreemptionCandidate, book_release, find_preemption
from runner.core.scheduler.priority import EligibleJobs
from runner.core.scheduler.snapshot import JobArray, PendingJob, Snapshot
from runner.core.scheduler.timeline import Span
from runner.core.scheduler.words import format_duration


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start this job on this host, with these devices."""

    job_id: str
    host: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Make a running job save, leave and wait again, for the sake of another; not charged to it."""

    job_id: str
    for_job: str
    why: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept for a job that cannot start yet, and from when on; nothing later delays it."""

    job_id: str
    host: str
    devices: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision.  ``waits`` holds every job that does not start; its words are made when read."""

    starts: tuple[StartJob, ...]
    preemptions: tuple[PreemptJob, ...]
    reservations: tuple[Reservation, ...]
    pending_reasons: Mapping[str, PendingReason]


def plan(snapshot: Snapshot) -> Plan:
    """Return what follows from a snapshot; the same snapshot always gives the same plan."""
    return _Planner(snapshot).plan()


LimitKey: TypeAlias = tuple[str, str, JobArray | None, int]
"""What decides which limits a job falls under, and by how much it uses them up."""


@dataclass(slots=True)
class _Planner:
    """One plan in the making."""

    snapshot: Snapshot
    calendar: Calendar = field(init=False)
    placements: Placements = field(init=False)
    fair_share: FairShare = field(init=False)
    unlimited: Span = field(init=False)
    unlimited_s: float = field(init=False)  # from now on
    starts: list[StartJob] = field(default_factory=list)
    preemptions: list[PreemptJob] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    device_ends_s: dict[str, float] = field(default_factory=dict)  # ends of what starts, by device
    head_reserved: bool = False  # the first blocked job has its reservation
    closed_limits: set[str] = field(default_factory=set)  # limits that an overdue job waits for
    held_back: dict[str, int] = field(default_factory=dict)  # what one at a limit uses up of its others
    at_limit_s: dict[LimitKey, float] = field(
        default_factory=dict
    )  # who is at a limit, for how long or longer
    open_classes: set[int] = field(default_factory=set)  # shapes that may still find a place, by identity

    def __post_init__(self) -> None:
        self.calendar = Calendar(self.snapshot)
        self.placements = Placements(self.calendar)
        self.fair_share = FairShare.of(self.snapshot)
        self.unlimited = self.snapshot.unlimited
        self.unlimited_s = self.unlimited.end_s(self.snapshot.now_s) - self.snapshot.now_s

    def plan(self) -> Plan:
        eligible = EligibleJobs(self.snapshot, self.fair_share)
        self.open_classes = {id(self.placements.request_class(needs)) for needs in eligible.requests.values()}
        late = len(eligible.overdue)
        for number, job in enumerate(eligible):
            if not self._consider(job, late=number < late) or (number >= late and self._is_done()):
                break
        starts, reserved = tuple(self.starts), tuple(self.reservations)
        waits = PendingReasons(
            self.snapshot,
            self.placements,
            self.fair_share,
            frozenset(start.job_id for start in starts),
            {each.job_id: each.at_s for each in reserved},
            Counter(each.for_job for each in self.preemptions),
            self.device_ends_s,
        )
        return Plan(starts, tuple(self.preemptions), reserved, waits)

    def _is_done(self) -> bool:
        """Return whether nobody else can start, so that the others need not be looked at."""
        return self.head_reserved and not self.open_classes

    def _consider(self, job: PendingJob, *, late: bool) -> bool:
        """Decide about one job, and return whether those behind it may still start."""
        under = (job.owner, job.group, job.array, job.request.gpus)
        capped_s = None if late else self.at_limit_s.get(under)  # an overdue job may close its limits
        if capped_s == 0.0:  # first, for there may be thousands of them
            return True
        shape = self.placements.request_class(job.request)
        lasts_s = self.unlimited_s if job.duration_s is None else job.duration_s
        passed = self.head_reserved and not late
        if shape.never_placeable or (passed and (shape.exhausted or _reaches(lasts_s, shape.too_long_s))):
            return True
        if _reaches(lasts_s, capped_s):
            return True
        caps = list(self.calendar.limits(job))
        full = self._exhausted_limits(caps, lasts_s, late=late)
        if full:
            if late and self._waits_for_quota(caps, shape):
                self._close_limits(caps, full)
            self.at_limit_s[under] = 0.0 if self._exhausted_limits(caps, 0.0, late=late) else lasts_s
            return True
        choice = None if shape.exhausted else self.placements.find_now(shape, lasts_s)
        if choice is None:
            self._note_failure(shape, lasts_s)
            return passed or self._reserve_or_skip(job, shape, caps, late=late)
        self._start(job, choice, lasts_s)
        return True

    def _exhausted_limits(self, caps: Sequence[Limit], lasts_s: float, *, late: bool) -> list[Limit]:
        """Return which quotas or limits of sweeps stand against a job; what an overdue job waits for does."""
        now_s, closed = self.snapshot.now_s, self.closed_limits
        ends_s, spared = now_s + lasts_s, {} if late else self.held_back
        return [
            cap
            for cap in caps
            if cap.label in closed
            or cap.timeline.min_free(now_s, ends_s) < cap.amount + spared.get(cap.label, 0)
        ]

    def _close_limits(self, caps: Sequence[Limit], full: Sequence[Limit]) -> None:
        """Close the limits that an overdue job waits for; of its others, spare it what it uses up.

        Should somebody who is not overdue take that, the next plan would find that the job waits for those
        limits too, close them, and take back what is promised in this one to overdue jobs behind it.
        """
        self.closed_limits.update(cap.label for cap in full)
        for cap in caps:
            self.held_back[cap.label] = max(cap.amount, self.held_back.get(cap.label, 0))

    def _waits_for_quota(self, caps: Sequence[Limit], shape: RequestClass) -> bool:
        """Return whether a job waits for its quota: not if it may never have as much, nor without a place."""
        shape.never_placeable = (
            shape.never_placeable or self.placements.find_earliest(shape, Span(0.0)) is None
        )
        return not shape.never_placeable and all(cap.maximum >= cap.amount for cap in caps)

    def _note_failure(self, shape: RequestClass, lasts_s: float) -> None:
        if not _reaches(lasts_s, shape.too_long_s):
            shape.too_long_s = lasts_s
        if shape.exhausted or self.placements.find_now(shape, 0.0) is None:
            shape.exhausted = True
            self.open_classes.discard(id(shape))

    def _start(self, job: PendingJob, choice: Selection, lasts_s: float) -> None:
        """Write in a start; from now on the job is taken to last as long as any that runs already.

        If it were taken to last for ever, whoever waits for its devices would be promised nothing in this
        plan, and passed over in it.
        """
        self.calendar.start(job, choice.host, choice.devices, job.planned_duration_s(self.snapshot.config))
        self.fair_share.charge(job.owner, job.group, job.request, lasts_s)
        until_s = inf if job.duration_s is None else self.snapshot.now_s + lasts_s
        self.device_ends_s |= dict.fromkeys(choice.devices, until_s)
        self.starts.append(StartJob(job.job_id, choice.host.host.name, choice.devices))

    def _reserve_or_skip(
        self, job: PendingJob, shape: RequestClass, caps: Sequence[Limit], *, late: bool
    ) -> bool:
        """Reserve for a job what it waits for, and return whether those behind it may still start."""
        stay = self.unlimited if job.duration_s is None else Span(job.duration_s)
        place = self.placements.find_earliest(shape, stay, caps)
        if place is None:
            shape.never_placeable = self.placements.find_earliest(shape, Span(0.0)) is None
            return True
        if not self.snapshot.config.backfill:
            return False
        if late and len(self.reservations) >= self.snapshot.config.reservations:
            return False
        self._reserve(job, self._try_preemption(job, shape, place, stay), late=late)
        self.head_reserved = self.head_reserved or not late
        return True

    def _reserve(self, job: PendingJob, place: Placement, *, late: bool) -> None:
        """Keep a place; of a job that may last for ever only the time that is usual is kept."""
        host, devices = place.selection.host, place.selection.devices
        self.calendar.reserve(
            job, host, devices, place.at_s, job.planned_duration_s(self.snapshot.config), late=late
        )
        self.reservations.append(Reservation(job.job_id, host.host.name, devices, place.at_s))

    def _try_preemption(
        self, job: PendingJob, shape: RequestClass, place: Placement, stay: Span
    ) -> Placement:
        """Return the place that preemption gives a job, where that pays; else the one it has."""
        deal = find_preemption(self.calendar, job, shape, place, stay)
        if deal is None:
            return place
        host = self.calendar.hosts[deal.placement.selection.host.number]
        for victim in deal.victims:
            book_release(self.calendar, host, victim, deal.placement.at_s)
            self.calendar.ends_s[victim.job_id] = deal.placement.at_s
            self.preemptions.append(PreemptJob(victim.job_id, job.job_id, _why(job, deal, place)))
        return Placement(
            deal.placement.at_s,
            Selection(deal.placement.selection.score, host, deal.placement.selection.devices),
        )


def _reaches(lasts_s: float, least_s: float | None) -> bool:
    """Return whether a duration, for ever included, is one that is known to be too long."""
    return least_s is not None and lasts_s >= least_s


def _why(job: PendingJob, deal: PreemptionCandidate, place: Placement) -> str:
    spared = format_duration(place.at_s - deal.placement.at_s)
    return (
        f"gives way to job {job.job_id} of class {job.priority_class}, which would wait {spared} longer: "
        f"{deal.gained_device_s:.0f} device-seconds won for {deal.lost_device_s:.0f} lost, by class"
    )
