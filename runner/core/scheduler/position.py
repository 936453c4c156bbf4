"""Who stands before whom among the jobs that compete for the same devices, and for how long about."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runner.core.scheduler.calendar import Book, Cap
from runner.core.scheduler.fairshare import Shares
from runner.core.scheduler.placement import Places, Shape
from runner.core.scheduler.priority import Eligible
from runner.core.scheduler.snapshot import DeviceState, Snapshot, Sweep, Waiting


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a job in the queue."""

    ahead: int  # jobs before it that could use what it needs
    higher: int  # of these, jobs of a higher class
    busy_s: float  # for how long these keep everything that it could use busy
    capped_s: float = 0.0  # for how long its owner's jobs before it use up the limits that it falls under
    endless: str = ""  # the first of those before it of which nobody knows how long they last
    capped_endless: str = ""  # and of its owner's


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
    places: Places
    known: dict[frozenset[tuple[int, int]], _Field] = field(default_factory=dict)
    by_shape: dict[int, _Field] = field(default_factory=dict)
    overlaps: dict[tuple[int, int], float] = field(default_factory=dict)

    def of(self, shape: Shape) -> _Field:
        found = self.by_shape.get(id(shape))
        if found is None:
            members = frozenset(
                (number, slot.number)
                for number, slots in shape.pool.slots.items()
                for slot in slots
                if slot.device.state in {DeviceState.FREE, DeviceState.LENT}
            )
            cpus = sum(book.host.cpus for book in self.places.book.hosts)
            found = self.known.setdefault(members, _Field(members, float(len(members)) or cpus))
            self.by_shape[id(shape)] = found
        return found

    def before(self, own: _Field, rank: int, capped: "_Used") -> Standing:
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
        return Standing(ahead, higher, busy_s, capped.seconds, endless, capped.endless)

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

    def before(self, caps: Sequence[Cap]) -> _Used:
        used = [self.used.get(id(cap.free), _UNUSED) for cap in caps]
        if not used:
            return _UNUSED
        endless = next((each.endless for each in used if each.endless), "")
        return _Used(max(each.seconds for each in used), endless)

    def count(self, caps: Iterable[Cap], lasts_s: float, endless: str) -> None:
        for cap in caps:
            before = self.used.get(id(cap.free), _UNUSED)
            seconds = before.seconds + lasts_s * cap.amount / cap.limit
            self.used[id(cap.free)] = _Used(seconds, before.endless or endless)


@dataclass(slots=True)
class Capped:
    """The limits that jobs fall under; jobs that are alike fall under the same."""

    book: Book
    known: dict[tuple[str, str, int, Sweep | None], tuple[Cap, ...]] = field(default_factory=dict)

    def of(self, job: Waiting) -> tuple[Cap, ...]:
        key = (job.owner, job.group, job.needs.gpus, job.sweep)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = tuple(self.book.caps(job))
        return found


def standings(
    snapshot: Snapshot, places: Places, shares: Shares, started: frozenset[str], reserved: Container[str]
) -> dict[str, Standing]:
    """Return the standing of every job that may start and does not."""
    return dict(_standings(places, Eligible(snapshot, shares), started, reserved))


def _standings(
    places: Places, eligible: Eligible, started: frozenset[str], reserved: Container[str]
) -> Iterator[tuple[str, Standing]]:
    snapshot, fields, limits, capped = eligible.snapshot, _Fields(places), _Limits(), Capped(places.book)
    ranks: dict[str, int] = {}
    for job in eligible:
        if job.job_id in started:
            continue
        shape, caps = places.shape(job.needs), capped.of(job)
        if _hopeless(shape, places, caps):
            continue
        rank = ranks.get(job.priority_class)
        if rank is None:
            rank = ranks[job.priority_class] = snapshot.rules.class_of(job.priority_class).rank
        own, lasts_s = fields.of(shape), job.lasting(snapshot.rules)
        yield job.job_id, fields.before(own, rank, limits.before(caps))
        endless = job.job_id if job.lasts_s is None else ""
        if job.job_id not in reserved:  # the time of one that is stands in the book
            limits.count(caps, lasts_s, endless)
        elif endless:
            endless, lasts_s = "", 0.0
        own.count(rank, (job.needs.gpus or job.needs.cpus) * lasts_s, endless)


def _hopeless(shape: Shape, places: Places, caps: Iterable[Cap]) -> bool:
    """Return whether a job will never start as things stand, and so is in nobody's way."""
    return not places.possible(shape) or any(cap.limit < cap.amount for cap in caps)
