"""Why everybody else waits, and until when about: worked out when somebody asks.

All reasons follow from the book as the plan left it.  An estimate is the later of two times: when
the place that a job needs opens in the book, and when those before it in the queue will have
been served if everything they need is busy all the time.  The first is exact for jobs with a
reservation, both are wrong as far as durations are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import exp2, inf, log2

from runner.core.queue.book import Cap, Slot
from runner.core.queue.dependencies import Readiness, satisfied
from runner.core.queue.fairshare import Shares
from runner.core.queue.pool import Places, Shape
from runner.core.queue.queueing import Standing, standings
from runner.core.queue.snapshot import Condition, Snapshot, Waiting
from runner.core.queue.words import clock, counted, out_of_service, scarce, wanted


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job waits for.  ``starts_s`` is an estimate; None: nobody can tell."""

    job_id: str
    why: str
    starts_s: float | None = None
    never: bool = False  # as things stand, it will wait for ever


@dataclass(frozen=True, slots=True)
class _Seen:
    """What all jobs of one shape see when they look around."""

    free: int
    fits: bool  # for a moment, at least
    apart: str
    facts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Waits(Mapping[str, Wait]):
    """The jobs that do not start, by id."""

    snapshot: Snapshot
    places: Places
    shares: Shares
    started: frozenset[str]
    reserved: Mapping[str, float]
    room: Mapping[str, int]  # how many jobs give way to a job
    until: Mapping[str, float]  # ends of what was just started, by device
    _opened: dict[tuple[int, float], float | None] = field(default_factory=dict)
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def __getitem__(self, job_id: str) -> Wait:
        return self._wait(self._jobs[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self.snapshot.waiting) - len(self.started)

    @cached_property
    def _jobs(self) -> dict[str, Waiting]:
        return {job.job_id: job for job in self.snapshot.waiting if job.job_id not in self.started}

    @cached_property
    def _standings(self) -> dict[str, Standing]:
        return standings(self.snapshot, self.places, self.shares, self.started)

    @cached_property
    def _endless_s(self) -> float:
        return self.snapshot.endless_s

    def _lasts(self, job: Waiting) -> float:
        return self._endless_s if job.lasts_s is None else job.lasts_s

    @cached_property
    def _until_by_device(self) -> dict[str, float]:
        """Return until when devices are lent; one that many share, until the first of them leaves."""
        until = dict(self.until)
        for job in self.snapshot.running:
            ends_s = self.places.book.ends[job.job_id]
            until |= {uuid: min(ends_s, until.get(uuid, inf)) for uuid in job.devices}
        return until

    # --- one job

    def _wait(self, job: Waiting) -> Wait:
        now_s = self.snapshot.now_s
        if job.not_before_s is not None and job.not_before_s > now_s:
            begins = clock(job.not_before_s, self.snapshot)
            return Wait(job.job_id, f"not before {begins}", job.not_before_s)
        return self._dependent(job) or self._capped(job) or self._scarce(job)

    def _dependent(self, job: Waiting) -> Wait | None:
        for after in job.after:
            known = satisfied(after, self.snapshot.ended)
            if known is Readiness.NEVER:
                outcome, end = self.snapshot.ended[after.job_id].outcome, _ENDS[after.condition]
                why = f"never starts: job {after.job_id} {outcome}, and it was to {end}"
                return Wait(job.job_id, why, never=True)
        open_ = [each for each in job.after if satisfied(each, self.snapshot.ended) is Readiness.PENDING]
        if not open_:
            return None
        return Wait(
            job.job_id, " and ".join(f"waits for job {a.job_id} to {_ENDS[a.condition]}" for a in open_)
        )

    def _capped(self, job: Waiting) -> Wait | None:
        now_s, lasts_s = self.snapshot.now_s, self._lasts(job)
        for cap in self.places.book.caps(job):
            if cap.limit < cap.amount:
                why = (
                    f"never starts: {cap.whose} may have {cap.limit} {cap.what} at a time, "
                    f"and this asks for {cap.amount}"
                )
                return Wait(job.job_id, why, never=True)
            if job.job_id not in self.reserved and cap.free.least(now_s, now_s + lasts_s) < cap.amount:
                return self._at_limit(job, cap, lasts_s)
        return None

    def _at_limit(self, job: Waiting, cap: Cap, lasts_s: float) -> Wait:
        used = cap.limit - cap.free.least(self.snapshot.now_s, self.snapshot.now_s + lasts_s)
        opens = cap.free.opening(self.snapshot.now_s, lasts_s, cap.amount)
        starts_s = None if opens == inf else opens
        why = f"waits for its quota: {cap.words}: {used} of {cap.limit} in use or kept"
        return Wait(job.job_id, f"{why}{self._until(starts_s)}", starts_s)

    def _scarce(self, job: Waiting) -> Wait:
        shape = self.places.shape(job.needs)
        if not self.places.possible(shape):
            why = f"never starts: no host has {wanted(job.needs)}{_beside(job)}"
            return Wait(job.job_id, why, never=True)
        starts_s = self._estimate(job, shape)
        room = self.room.get(job.job_id, 0)
        leaving = [f"{counted(room, 'job')} making room"] if room else []
        facts = ", ".join([*self._facts(job, shape), *leaving, *self._first(job)]) or "held back by the order"
        return Wait(job.job_id, f"waits for {wanted(job.needs)}: {facts}{self._until(starts_s)}", starts_s)

    def _until(self, starts_s: float | None) -> str:
        return (
            "; nobody knows when" if starts_s is None else f"; starts about {clock(starts_s, self.snapshot)}"
        )

    # --- facts

    def _facts(self, job: Waiting, shape: Shape) -> Iterator[str]:
        known = self._seen.get(id(shape))
        if known is None:
            known = self._seen[id(shape)] = self._look(shape)
        if job.needs.gpus:
            yield f"{known.free} free{self._kept(job) if known.fits else known.apart}"
        yield from known.facts

    def _look(self, shape: Shape) -> _Seen:
        slots = list(self.places.everywhere(shape))
        free = sum(slot.free.free[0] >= shape.share for slot in slots)
        fits = self.places.now(shape, 0.0) is not None
        apart = free >= shape.needs.gpus and not self.places.together(shape)
        facts = (
            *out_of_service(slot.device for slot in slots),
            *self._lent(shape, slots),
            *self._host(shape),
        )
        return _Seen(free, fits, ", not together" if apart else "", facts)

    def _lent(self, shape: Shape, slots: list[Slot]) -> Iterator[str]:
        held = [slot.device.uuid for slot in slots if slot.free.free[0] < shape.share]
        lent = [self._until_by_device[uuid] for uuid in held if uuid in self._until_by_device]
        if lent:
            next_s = min(lent)
            until = f", the next until about {clock(next_s, self.snapshot)}" if next_s < inf else ""
            yield f"{len(lent)} lent{until}"

    def _host(self, shape: Shape) -> Iterator[str]:
        hosts = [each for each in self.places.book.hosts
                 if not shape.needs.gpus or shape.pool.slots[each.number]]  # fmt: skip
        cpus = max(host.millicpus.free[0] for host in hosts)
        return scarce(shape, cpus, max(host.memory.free[0] for host in hosts))

    def _kept(self, job: Waiting) -> str:
        """Return why devices that are free now are not for this job: promised, or soon not ours."""
        if self.places.now(self.places.shape(job.needs), self._lasts(job)) is not None:
            return ""
        now_s = self.snapshot.now_s
        kept = [f"job {each} from about {clock(at_s, self.snapshot)}"
                for each, at_s in self.reserved.items() if each != job.job_id]  # fmt: skip
        kept += [f"{window.reason} at {clock(window.begins_s, self.snapshot)}"
                 for window in self.snapshot.maintenance if window.begins_s > now_s]  # fmt: skip
        limit = "" if job.lasts_s is not None else "; a time limit would tell whether it fits before"
        return f", kept for {' and '.join(kept[:2])}{limit}"

    def _first(self, job: Waiting) -> Iterator[str]:
        standing = self._standings[job.job_id]
        if standing.higher:
            yield f"{counted(standing.higher, 'job')} of a higher class"
        if standing.ahead > standing.higher:
            verb = "goes" if standing.ahead - standing.higher == 1 else "go"
            more = " more" if standing.higher else ""
            yield f"{counted(standing.ahead - standing.higher, 'job')}{more} {verb} first"

    # --- estimates

    def _estimate(self, job: Waiting, shape: Shape) -> float | None:
        if job.job_id in self.reserved:
            return self.reserved[job.job_id]
        opens_s = self._opens(shape, self._lasts(job))
        served_s = self.snapshot.now_s + self._standings[job.job_id].busy_s
        return None if opens_s is None else max(opens_s, served_s)

    def _opens(self, shape: Shape, lasts_s: float) -> float | None:
        """Return when a place opens, of durations rounded to a power of two: few are worked out."""
        rounded_s = exp2(round(log2(lasts_s))) if 0 < lasts_s < inf else lasts_s
        key = (id(shape), rounded_s)
        if key not in self._opened:
            place = self.places.earliest(shape, rounded_s)
            self._opened[key] = place.at_s if place else None
        return self._opened[key]


_ENDS = {Condition.OK: "succeed", Condition.ANY: "end", Condition.FAILED: "fail"}


def _beside(job: Waiting) -> str:
    """Return what a job wants beside its devices, which the host would have to have too."""
    needs = job.needs
    return (
        f" beside {needs.cpus:g} cpus and {needs.memory_bytes / 2**30:.4g} GiB of memory"
        if needs.gpus
        else ""
    )
