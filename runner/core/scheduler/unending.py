"""Which jobs have no end that anybody knows, and so are in the way of an estimate.

The plan takes such a job to last as long as is usual, because it must take it to last somehow.  A
person who is told a time must not be told one that rests on nothing but that.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from runner.core.scheduler.calendar import HostBook, expected_end
from runner.core.scheduler.placement import Places, Shape
from runner.core.scheduler.snapshot import Running, Snapshot, Waiting


@dataclass(frozen=True, slots=True)
class Unending:
    """A job without a known end, and what it has; of one that begins later, what it may get."""

    ends_s: float  # as the plan takes it
    job: Running | Waiting
    devices: frozenset[str]


@dataclass(frozen=True, eq=False)
class Unendings:
    """The jobs of a plan whose ends nobody knows, and what rests on them."""

    snapshot: Snapshot
    places: Places
    started: Container[str]
    reserved: Mapping[str, float]
    _by_shape: dict[int, tuple[Unending, ...]] = field(default_factory=dict)

    @cached_property
    def all(self) -> tuple[Unending, ...]:
        """Return them, the first to end first."""
        return tuple(sorted((*self._running(), *self._waiting()), key=lambda each: each.ends_s))

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(each.job.job_id for each in self.all)

    def _running(self) -> Iterator[Unending]:
        for job in self.snapshot.running:
            ends_s = self.places.book.ends[job.job_id]
            if job.ends_s is None and ends_s == expected_end(job, self.snapshot):  # else it gives way
                yield Unending(ends_s, job, frozenset(job.devices))

    def _waiting(self) -> Iterator[Unending]:
        now_s, lasts_s = self.snapshot.now_s, self.snapshot.rules.unknown_s
        for job in self.snapshot.waiting:
            begins_s = now_s if job.job_id in self.started else self.reserved.get(job.job_id)
            if job.lasts_s is None and begins_s is not None:
                yield Unending(begins_s + lasts_s, job, self._usable(self.places.shape(job.needs)))

    def before(self, at_s: float, job: Waiting, shape: Shape) -> str:
        """Return the id of the job that a place at a time is taken from; empty: of none without an end."""
        if id(shape) not in self._by_shape:
            self._by_shape[id(shape)] = tuple(each for each in self.all if self._in_the_way(each, shape))
        return _first(self._by_shape[id(shape)], at_s, job)

    def capping(self, at_s: float, job: Waiting) -> str:
        """Return the same for a place under the limits of a job."""
        own = self._caps_of(job)
        return _first((each for each, caps in self._capped if caps & own), at_s, job)

    @cached_property
    def _capped(self) -> tuple[tuple[Unending, frozenset[str]], ...]:
        each_with_caps = ((each, self._caps_of(each.job)) for each in self.all)
        return tuple((each, caps) for each, caps in each_with_caps if caps)

    def _caps_of(self, job: Running | Waiting) -> frozenset[str]:
        return frozenset(cap.words for cap in self.places.book.caps(job))

    def _in_the_way(self, each: Unending, shape: Shape) -> bool:
        """Return whether a job has what the jobs of a shape could use, or too little is left beside it."""
        if each.devices & self._usable(shape):
            return True
        now_s, at = self.snapshot.now_s, each.job.host if isinstance(each.job, Running) else None
        return any(
            _tight(host, shape, now_s, each.ends_s)
            for host in self.places.book.hosts
            if at in {None, host.host.name} and (not shape.needs.gpus or shape.pool.slots[host.number])
        )

    def _usable(self, shape: Shape) -> frozenset[str]:
        return frozenset(slot.device.uuid for slot in self.places.everywhere(shape))


def _first(unending: Iterable[Unending], at_s: float, job: Waiting) -> str:
    others = (each.job.job_id for each in unending if each.ends_s <= at_s and each.job is not job)
    return next(others, "")


def _tight(host: HostBook, shape: Shape, begins_s: float, ends_s: float) -> bool:
    """Return whether a host's own resources keep a shape out at some time."""
    cpus, memory = host.millicpus.least(begins_s, ends_s), host.memory.least(begins_s, ends_s)
    return cpus < shape.millicpus or memory < shape.needs.memory_bytes
