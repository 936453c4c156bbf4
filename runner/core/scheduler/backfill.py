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
    waits: Mapping[str, PendingReason]


def plan(snapshot: Snapshot) -> Plan:
    """Return what follows from a snapshot; the same snapshot always gives the same plan."""
    return _Planner(snapshot).plan()


LimitKey: TypeAlias = tuple[str, str, JobArray | None, int]
"""What decides which limits a job falls under, and by how much it uses them up."""


@dataclass(slots=True)
class _Planner:
    """One plan in the making."""

    snapshot: Snapshot
    book: Calendar = field(init=False)
    places: Placements = field(init=False)
    shares: FairShare = field(init=False)
    endless: Span = field(init=False)
    endless_s: float = field(init=False)  # from now on
    starts: list[StartJob] = field(default_factory=list)
    preemptions: list[PreemptJob] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    until: dict[str, float] = field(default_factory=dict)  # ends of what starts, by device
    headed: bool = False  # the first blocked job has its reservation
    closed: set[str] = field(default_factory=set)  # limits that an overdue job waits for
    spared: dict[str, int] = field(default_factory=dict)  # what one at a limit uses up of its others
    capped: dict[LimitKey, float] = field(default_factory=dict)  # who is at a limit, for how long or longer
    living: set[int] = field(default_factory=set)  # shapes that may still find a place, by identity

    def __post_init__(self) -> None:
        self.book = Calendar(self.snapshot)
        self.places = Placements(self.book)
        self.shares = FairShare.of(self.snapshot)
        self.endless = self.snapshot.endless
        self.endless_s = self.endless.until(self.snapshot.now_s) - self.snapshot.now_s

    def plan(self) -> Plan:
        eligible = EligibleJobs(self.snapshot, self.shares)
        self.living = {id(self.places.shape(needs)) for needs in eligible.needs.values()}
        late = len(eligible.overdue)
        for number, job in enumerate(eligible):
            if not self._considered(job, late=number < late) or (number >= late and self._through()):
                break
        starts, reserved = tuple(self.starts), tuple(self.reservations)
        waits = PendingReasons(
            self.snapshot,
            self.places,
            self.shares,
            frozenset(start.job_id for start in starts),
            {each.job_id: each.at_s for each in reserved},
            Counter(each.for_job for each in self.preemptions),
            self.until,
        )
        return Plan(starts, tuple(self.preemptions), reserved, waits)

    def _through(self) -> bool:
        """Return whether nobody else can start, so that the others need not be looked at."""
        return self.headed and not self.living

    def _considered(self, job: PendingJob, *, late: bool) -> bool:
        """Decide about one job, and return whether those behind it may still start."""
        under = (job.owner, job.group, job.sweep, job.needs.gpus)
        capped_s = None if late else self.capped.get(under)  # an overdue job may close its limits
        if capped_s == 0.0:  # first, for there may be thousands of them
            return True
        shape = self.places.shape(job.needs)
        lasts_s = self.endless_s if job.lasts_s is None else job.lasts_s
        passed = self.headed and not late
        if shape.never or (passed and (shape.dead or _reaches(lasts_s, shape.too_long_s))):
            return True
        if _reaches(lasts_s, capped_s):
            return True
        caps = list(self.book.caps(job))
        full = self._full(caps, lasts_s, late=late)
        if full:
            if late and self._could_use(caps, shape):
                self._spare(caps, full)
            self.capped[under] = 0.0 if self._full(caps, 0.0, late=late) else lasts_s
            return True
        choice = None if shape.dead else self.places.now(shape, lasts_s)
        if choice is None:
            self._found_none(shape, lasts_s)
            return passed or self._blocked(job, shape, caps, late=late)
        self._start(job, choice, lasts_s)
        return True

    def _full(self, caps: Sequence[Limit], lasts_s: float, *, late: bool) -> list[Limit]:
        """Return which quotas or limits of sweeps stand against a job; what an overdue job waits for does."""
        now_s, closed = self.snapshot.now_s, self.closed
        ends_s, spared = now_s + lasts_s, {} if late else self.spared
        return [
            cap
            for cap in caps
            if cap.words in closed or cap.free.least(now_s, ends_s) < cap.amount + spared.get(cap.words, 0)
        ]

    def _spare(self, caps: Sequence[Limit], full: Sequence[Limit]) -> None:
        """Close the limits that an overdue job waits for; of its others, spare it what it uses up.

        Should somebody who is not overdue take that, the next plan would find that the job waits for those
        limits too, close them, and take back what is promised in this one to overdue jobs behind it.
        """
        self.closed.update(cap.words for cap in full)
        for cap in caps:
            self.spared[cap.words] = max(cap.amount, self.spared.get(cap.words, 0))

    def _could_use(self, caps: Sequence[Limit], shape: RequestClass) -> bool:
        """Return whether a job waits for its quota: not if it may never have as much, nor without a place."""
        shape.never = shape.never or self.places.earliest(shape, Span(0.0)) is None
        return not shape.never and all(cap.limit >= cap.amount for cap in caps)

    def _found_none(self, shape: RequestClass, lasts_s: float) -> None:
        if not _reaches(lasts_s, shape.too_long_s):
            shape.too_long_s = lasts_s
        if shape.dead or self.places.now(shape, 0.0) is None:
            shape.dead = True
            self.living.discard(id(shape))

    def _start(self, job: PendingJob, choice: Selection, lasts_s: float) -> None:
        """Write in a start; from now on the job is taken to last as long as any that runs already.

        If it were taken to last for ever, whoever waits for its devices would be promised nothing in this
        plan, and passed over in it.
        """
        self.book.start(job, choice.host, choice.devices, job.lasting(self.snapshot.rules))
        self.shares.charge(job.owner, job.group, job.needs, lasts_s)
        until_s = inf if job.lasts_s is None else self.snapshot.now_s + lasts_s
        self.until |= dict.fromkeys(choice.devices, until_s)
        self.starts.append(StartJob(job.job_id, choice.host.host.name, choice.devices))

    def _blocked(self, job: PendingJob, shape: RequestClass, caps: Sequence[Limit], *, late: bool) -> bool:
        """Reserve for a job what it waits for, and return whether those behind it may still start."""
        stay = self.endless if job.lasts_s is None else Span(job.lasts_s)
        place = self.places.earliest(shape, stay, caps)
        if place is None:
            shape.never = self.places.earliest(shape, Span(0.0)) is None
            return True
        if not self.snapshot.rules.backfill:
            return False
        if late and len(self.reservations) >= self.snapshot.rules.reservations:
            return False
        self._reserve(job, self._preempting(job, shape, place, stay), late=late)
        self.headed = self.headed or not late
        return True

    def _reserve(self, job: PendingJob, place: Placement, *, late: bool) -> None:
        """Keep a place; of a job that may last for ever only the time that is usual is kept."""
        host, devices = place.choice.host, place.choice.devices
        self.book.reserve(job, host, devices, place.at_s, job.lasting(self.snapshot.rules), late=late)
        self.reservations.append(Reservation(job.job_id, host.host.name, devices, place.at_s))

    def _preempting(self, job: PendingJob, shape: RequestClass, place: Placement, stay: Span) -> Placement:
        """Return the place that preemption gives a job, where that pays; else the one it has."""
        deal = find_preemption(self.book, job, shape, place, stay)
        if deal is None:
            return place
        host = self.book.hosts[deal.place.choice.host.number]
        for victim in deal.victims:
            book_release(self.book, host, victim, deal.place.at_s)
            self.book.ends[victim.job_id] = deal.place.at_s
            self.preemptions.append(PreemptJob(victim.job_id, job.job_id, _why(job, deal, place)))
        return Placement(deal.place.at_s, Selection(deal.place.choice.score, host, deal.place.choice.devices))


def _reaches(lasts_s: float, least_s: float | None) -> bool:
    """Return whether a duration, for ever included, is one that is known to be too long."""
    return least_s is not None and lasts_s >= least_s


def _why(job: PendingJob, deal: PreemptionCandidate, place: Placement) -> str:
    spared = format_duration(place.at_s - deal.place.at_s)
    return (
        f"gives way to job {job.job_id} of class {job.priority_class}, which would wait {spared} longer: "
        f"{deal.won:.0f} device-seconds won for {deal.lost:.0f} lost, by class"
    )
