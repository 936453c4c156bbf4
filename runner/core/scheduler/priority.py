"""Who is considered first: overdue jobs by age, then class, fair share, the owner's priority, age.

Each owner has one line per class, and the owner who has used least for his share is served
first.  What starts is charged at once, so the next device goes to the next owner.  A line is
sorted when it is looked at, and it is not looked at once nothing can start any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import TypeAlias

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.dependencies import Readiness, check_dependencies
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, Snapshot

QueueRank: TypeAlias = tuple[float, float, float]  # of a line: class, group's share, user's share
QueueName: TypeAlias = tuple[str, str, str]  # of a line: class, owner, group
QueueEntry: TypeAlias = tuple[
    QueueRank, float, QueueName, int
]  # rank, age of the oldest job, name, number of the line


@dataclass(slots=True)
class OwnerQueue:
    """The jobs of one owner in one class, the next one last."""

    rank: int  # of the class
    name: QueueName
    jobs: list[PendingJob] = field(default_factory=list)
    oldest_s: float = inf


@dataclass(slots=True)
class EligibleJobs:
    """The waiting jobs of a snapshot, apart: those that may start, in lines, and the others."""

    snapshot: Snapshot
    fair_share: FairShare
    overdue: list[PendingJob] = field(default_factory=list)
    queues: list[OwnerQueue] = field(default_factory=list)
    ineligible: list[PendingJob] = field(default_factory=list)  # by a time or by another job
    requests: dict[int, ResourceRequest] = field(default_factory=dict)  # of those that may start, by identity

    def __post_init__(self) -> None:
        fair = self.snapshot.config.order is SchedulingOrder.FAIR
        lines = self._split_by_owner(fair=fair)
        self.queues = list(lines.values())
        if fair:
            self._take_overdue()

    def _split_by_owner(self, *, fair: bool) -> dict[QueueName, OwnerQueue]:
        lines: dict[QueueName, OwnerQueue] = {}
        now_s, needs = self.snapshot.now_s, self.requests
        for job in self.snapshot.pending:  # thousands, at every plan
            if (job.not_before_s is not None and job.not_before_s > now_s) or (
                job.dependencies
                and check_dependencies(job.dependencies, self.snapshot.ended) is not Readiness.READY
            ):
                self.ineligible.append(job)
                continue
            key = (job.priority_class, job.owner, job.group) if fair else ("", "", "")
            line = lines.get(key)
            if line is None:
                line = lines[key] = OwnerQueue(self.snapshot.config.priority_class(key[0]).rank, key)
            line.jobs.append(job)
            line.oldest_s = min(line.oldest_s, job.submitted_s)
            wanted = job.request
            needs[id(wanted)] = wanted
        return lines

    def _take_overdue(self) -> None:
        """Take out the jobs that have waited longer than their bound, of each owner the oldest few."""
        late = overdue_jobs(self.snapshot, [job for line in self.queues for job in line.jobs])
        self.overdue = late
        taken = {job.job_id for job in late}
        for line in self.queues if late else ():
            line.jobs = [job for job in line.jobs if job.job_id not in taken]

    def __iter__(self) -> Iterator[PendingJob]:
        """Yield every job that may start, in order; ``shares`` may change on the way."""
        yield from self.overdue
        key = sort_key(self.snapshot.config)
        heap: list[QueueEntry] = [self._entry(i) for i, line in enumerate(self.queues) if line.jobs]
        heapify(heap)
        sorted_: set[int] = set()
        while heap:
            number = heap[0][3]
            line = self.queues[number]
            if number not in sorted_:
                line.jobs.sort(key=key, reverse=True)
                sorted_.add(number)
            entry = self._entry(number)
            if entry > heap[0]:
                heapreplace(heap, entry)
                continue
            yield from self._serve(line, entry[0])
            heappop(heap)
            if line.jobs:
                heappush(heap, self._entry(number))

    def _serve(self, line: OwnerQueue, rank: QueueRank) -> Iterator[PendingJob]:
        """Yield from one line until its owner has got something."""
        charges = self.fair_share.charges
        while line.jobs:
            yield line.jobs.pop()
            if line.jobs and self.fair_share.charges != charges and self._rank(line) != rank:
                return

    def _entry(self, number: int) -> QueueEntry:
        line = self.queues[number]
        return self._rank(line), line.oldest_s, line.name, number

    def _rank(self, line: OwnerQueue) -> QueueRank:
        _, owner, name = line.name
        group, user = self.fair_share.rank(owner, name)
        return -line.rank, group, user


def eligible_since_s(job: PendingJob, snapshot: Snapshot) -> float:
    """Return since when nothing but the order and what is free keeps a job waiting."""
    ended = (snapshot.ended[each.job_id].at_s for each in job.dependencies)
    return max(job.submitted_s, -inf if job.not_before_s is None else job.not_before_s, *ended)


def overdue_jobs(snapshot: Snapshot, eligible: list[PendingJob]) -> list[PendingJob]:
    """Return the jobs whose anti-starvation bound has passed, first the one for which it did first.

    Of one owner only the ``overdue_per_owner`` oldest: whoever hands in thousands of jobs at
    once must not come before everybody else when they have grown old.
    """
    rules, now_s = snapshot.config, snapshot.now_s
    bounds = {each.name: each.starvation_limit_s for each in rules.classes}
    least = min(bounds.values())
    late = [
        (due_s, numeric_id(job), job)
        for job in eligible
        if now_s - job.submitted_s > least
        and (due_s := eligible_since_s(job, snapshot) + _bound(bounds, rules, job.priority_class)) < now_s
    ]
    counted: dict[str, int] = {}
    first: list[PendingJob] = []
    for _, _, job in sorted(late, key=lambda each: each[:2]):
        counted[job.owner] = counted.get(job.owner, 0) + 1
        if counted[job.owner] <= rules.overdue_per_owner:
            first.append(job)
    return first


def _bound(bounds: dict[str, float], rules: SchedulerConfig, name: str) -> float:
    return bounds[name] if name in bounds else rules.priority_class(name).starvation_limit_s


NumericId: TypeAlias = tuple[int, str]


def numeric_id(job: PendingJob) -> NumericId:
    """Return what sorts ids as numbers: 9 comes before 10."""
    return _number(job.job_id)


@lru_cache(maxsize=2**15)  # every plan sorts the same jobs
def _number(job_id: str) -> NumericId:
    return int(job_id) if job_id.isdecimal() else 0, job_id


SortKey: TypeAlias = Callable[[PendingJob], tuple[float, float, float, NumericId]]


def sort_key(rules: SchedulerConfig) -> SortKey:
    """Return what the jobs of one line are sorted by."""
    match rules.order:
        case SchedulingOrder.FAIR:
            return lambda job: (-job.priority, job.submitted_s, 0.0, _number(job.job_id))
        case SchedulingOrder.FIFO:
            return lambda job: (job.submitted_s, 0.0, 0.0, numeric_id(job))
        case SchedulingOrder.PRIORITY:
            ranks = {each.name: each.rank for each in rules.classes}
            return lambda job: (
                -_rank_of(ranks, rules, job), -job.priority, job.submitted_s, numeric_id(job))  # fmt: skip
        case SchedulingOrder.SJF:  # exhaustive
            return lambda job: (job.planned_duration_s(rules), job.submitted_s, 0.0, numeric_id(job))


def _rank_of(ranks: dict[str, int], rules: SchedulerConfig, job: PendingJob) -> int:
    known = ranks.get(job.priority_class)
    return rules.priority_class(job.priority_class).rank if known is None else known
