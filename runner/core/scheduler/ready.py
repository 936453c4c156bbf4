"""The pending jobs in the order of their queues, kept up to date job by job.

A plan looks at few jobs if nothing more can start.  Without this order it would first sort thousands of them,
each time.  The order is that of fair shares, in which a job's place in the queue of its owner does not depend
on time; in the order ``attained`` a plan moves the few that have held devices.  Jobs that wait for a time
stand apart until then; those that wait for other jobs are looked at by each plan.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from runner.core.scheduler.snapshot import PendingJob, QueueName, ResourceRequest

NumericId: TypeAlias = tuple[int, str]

_Place: TypeAlias = tuple[int, float, NumericId]


@dataclass(frozen=True, slots=True)
class ReadyQueue:
    """The jobs of one owner in one class that wait for nothing but resources."""

    name: QueueName
    jobs: list[PendingJob]  # the next one is the last
    oldest: tuple[PendingJob, ...]  # those that have waited longest, in order


@dataclass(frozen=True, slots=True)
class ReadyJobs:
    """Pending jobs as a plan needs them; changes of the index do not reach them."""

    queues: tuple[ReadyQueue, ...] = ()
    dependent: tuple[PendingJob, ...] = ()  # they wait for other jobs, which may have ended
    requests: tuple[tuple[int, ResourceRequest], ...] = ()  # each object once, with the number of jobs
    by_id: Mapping[str, PendingJob] | None = None  # all pending jobs, if somebody has them so
    next_s: float = inf  # when the first job that waits for a time may start


@dataclass(slots=True)
class _Queue:
    """The jobs of one owner in one class, by their places and by age."""

    places: list[_Place] = field(default_factory=list)
    jobs: list[PendingJob] = field(default_factory=list)  # in the order of their places
    ages: list[tuple[float, NumericId]] = field(default_factory=list)


@dataclass(slots=True, repr=False)
class PendingIndex:
    """All pending jobs; to be changed by one thread at a time."""

    _jobs: dict[NumericId, PendingJob] = field(default_factory=dict)
    _queues: dict[QueueName, _Queue] = field(default_factory=dict)
    _future: list[tuple[float, NumericId]] = field(default_factory=list)
    _dependent: dict[NumericId, PendingJob] = field(default_factory=dict)
    _requests: dict[int, tuple[int, ResourceRequest]] = field(default_factory=dict)  # number of jobs

    def add(self, job: PendingJob) -> None:
        """Add a job."""
        number = numeric_id(job)
        self._jobs[number] = job
        if job.dependencies:
            self._dependent[number] = job
        elif job.not_before_s is not None:
            insort(self._future, (job.not_before_s, number))
        else:
            self._enqueue(job, number)

    def remove(self, job: PendingJob) -> None:
        """Remove a job that was added."""
        number = numeric_id(job)
        del self._jobs[number]
        if self._dependent.pop(number, None) is not None:
            return
        if job.not_before_s is not None and _discard(self._future, (job.not_before_s, number)):
            return
        name = _name(job)
        queue = self._queues[name]
        index = bisect_left(queue.places, _place(job, number))
        del queue.places[index], queue.jobs[index]
        _discard(queue.ages, (waits_since_s(job), number))
        if not queue.jobs:
            del self._queues[name]
        count, request = self._requests[id(job.request)]
        self._requests[id(request)] = count - 1, request
        if count == 1:
            del self._requests[id(request)]

    def dependent(self) -> tuple[PendingJob, ...]:
        """Return the jobs that wait for other jobs."""
        return tuple(self._dependent.values())

    def view(self, now_s: float, oldest: int, by_id: Mapping[str, PendingJob] | None = None) -> ReadyJobs:
        """Return the jobs as they are at a time, with the ``oldest`` ones of each queue.

        ``by_id`` has the same jobs, and does not change any more.
        """
        due = bisect_left(self._future, (now_s, (_LAST, "")))
        for _, number in self._future[:due]:
            self._enqueue(self._jobs[number], number)
        del self._future[:due]
        return ReadyJobs(
            tuple(
                ReadyQueue(
                    name, queue.jobs[::-1], tuple(self._jobs[number] for _, number in queue.ages[:oldest])
                )
                for name, queue in self._queues.items()
            ),
            self.dependent(),
            tuple(self._requests.values()),
            by_id,
            self._future[0][0] if self._future else inf,
        )

    def _enqueue(self, job: PendingJob, number: NumericId) -> None:
        queue = self._queues.setdefault(_name(job), _Queue())
        place = _place(job, number)
        index = bisect_left(queue.places, place)
        queue.places.insert(index, place)
        queue.jobs.insert(index, job)
        insort(queue.ages, (waits_since_s(job), number))
        count, request = self._requests.get(id(job.request), (0, job.request))
        self._requests[id(request)] = count + 1, request


_LAST = 10**30
"""Larger than the number of any job."""


def waits_since_s(job: PendingJob) -> float:
    """Return since when a job has waited for more than a time."""
    return job.submitted_s if job.not_before_s is None else max(job.submitted_s, job.not_before_s)


def numeric_id(job: PendingJob) -> NumericId:
    """Return a key that sorts job ids as numbers: 9 comes before 10."""
    return int(job.job_id) if job.job_id.isdecimal() else 0, job.job_id


def _name(job: PendingJob) -> QueueName:
    return job.priority_class, job.owner, job.group


def _place(job: PendingJob, number: NumericId) -> _Place:
    return -job.priority, job.submitted_s, number


def _discard(entries: list[tuple[float, NumericId]], entry: tuple[float, NumericId]) -> bool:
    """Remove an entry from a sorted list, and return whether it was there."""
    index = bisect_left(entries, entry)
    if index == len(entries) or entries[index] != entry:
        return False
    del entries[index]
    return True
