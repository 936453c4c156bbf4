"""The order of the queue: overdue jobs by age, then class, fair share, the owner's priority and age.

Each owner has one queue per class.  The owner with the least usage by share is served first.  A job that
starts is charged at once, so the next device goes to another owner.  A queue is sorted when its turn
comes, so that most queues are never sorted once nothing can start any more.

In the order ``attained`` the first job of each owner's queue decides before fair share does: jobs of the
lowest service level go first.  Those of owners who have had a whole share in that level go after all others.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from math import inf
from typing import TypeAlias

from runner.core.scheduler.attained import pending_standing
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.dependencies import Readiness, check_dependencies
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.ready import NumericId, ReadyJobs, ReadyQueue, numeric_id, waits_since_s
from runner.core.scheduler.snapshot import PendingJob, QueueName, ResourceRequest, Snapshot

QueueRank: TypeAlias = tuple[float, float, float, float, float]
"""Of an owner's queue: class, whether the owner has had a share in the service level of its first job, that
level, usage of the group by its share, usage of the user by his share.

The second and third are 0 where the order ignores them.
"""

QueueEntry: TypeAlias = tuple[QueueRank, float, QueueName, int]
"""Of an owner's queue in the heap: rank, since when its oldest job waits, name, number."""


@dataclass(slots=True)
class OwnerQueue:
    """The jobs of one owner in one class; once sorted, the next job is the last one."""

    rank: int  # of the class
    name: QueueName
    jobs: list[PendingJob] = field(default_factory=list)
    oldest_s: float = inf
    is_sorted: bool = False

    def sort(self, key: "SortKey") -> None:
        """Sort the jobs, unless they are sorted."""
        if not self.is_sorted:
            self.jobs.sort(key=key, reverse=True)
            self.is_sorted = True


@dataclass(slots=True)
class EligibleJobs:
    """The pending jobs of a snapshot: those that may start, in their order."""

    snapshot: Snapshot
    fair_share: FairShare
    can_start: Callable[[PendingJob], bool]
    """Test of a job: it fits at some time that is known.  Others are not overdue."""
    overdue: list[PendingJob] = field(default_factory=list)
    queues: list[OwnerQueue] = field(default_factory=list)
    requests: dict[int, ResourceRequest] = field(default_factory=dict)  # of eligible jobs, by identity
    request_counts: Counter[int] = field(default_factory=Counter)  # of the jobs, by the same
    promoted: frozenset[str] = frozenset()  # overdue jobs in the lowest service level
    passes_over: Callable[[QueueName], bool] = lambda _: False
    """Test of a queue: nothing can be done for its jobs in this plan, so they are not looked at."""

    def __post_init__(self) -> None:
        ready = self.snapshot.ready
        fair = self.snapshot.config.order in {SchedulingOrder.FAIR, SchedulingOrder.ATTAINED}
        if ready is not None and fair:
            self._take_ready(ready)
        else:
            self.queues = list(self._split_by_owner(fair=fair).values())
            if fair:
                self._take_overdue([job for queue in self.queues for job in queue.jobs])
        if self._by_service:
            self.promoted = frozenset(job.job_id for job in self.overdue)

    def standing(self, job: PendingJob) -> float:
        """Return the standing of a job: the lower goes first, and may displace the higher."""
        return pending_standing(job, self.snapshot.config, promoted=job.job_id in self.promoted)

    def _take_ready(self, ready: ReadyJobs) -> None:
        """Take over the queues as they are kept: next to nothing is done for each of their jobs."""
        config = self.snapshot.config
        queues = {
            each.name: OwnerQueue(
                config.priority_class(each.name[0]).rank,
                each.name,
                each.jobs.copy(),
                waits_since_s(each.oldest[0]),
                is_sorted=True,
            )
            for each in ready.queues
        }
        self.requests = {id(request): request for _, request in ready.requests}
        self.request_counts.update({id(request): count for count, request in ready.requests})
        oldest = [job for each in ready.queues for job in self._oldest(each)]
        for job in ready.dependent:
            if not self._is_eligible(job):
                continue
            name = (job.priority_class, job.owner, job.group)
            if name not in queues:
                queues[name] = OwnerQueue(config.priority_class(name[0]).rank, name)
            queue = queues[name]
            queue.jobs.append(job)
            queue.is_sorted = False
            queue.oldest_s = min(queue.oldest_s, waits_since_s(job))
            self.requests[id(job.request)] = job.request
            self.request_counts[id(job.request)] += 1
            oldest.append(job)
        self.queues = list(queues.values())
        self._take_overdue(oldest)
        if self._by_service:
            for queue in self.queues:
                self._move_by_level(queue)

    def _oldest(self, queue: ReadyQueue) -> Sequence[PendingJob]:
        """Return the jobs of a queue among which the overdue ones are.

        In the order attained a preempted job waits anew: the oldest may not be those submitted first.
        """
        if self._by_service:
            return queue.jobs
        now_s, limit_s = self.snapshot.now_s, shortest_limit_s(self.snapshot.config)
        if all(self.can_start(job) for job in queue.oldest if now_s - job.submitted_s > limit_s):
            return queue.oldest
        able = (job for job in queue.jobs if now_s - job.submitted_s > limit_s and self.can_start(job))
        return nsmallest(self.snapshot.config.overdue_per_owner, able, key=_by_age)

    def _move_by_level(self, queue: OwnerQueue) -> None:
        """Move the few jobs that have held devices to their places in a queue that is sorted but for them."""
        held = [job for job in queue.jobs if job.ran_s]
        if held and queue.is_sorted:
            jobs = [job for job in reversed(queue.jobs) if not job.ran_s]
            for job in held:
                insort(jobs, job, key=self._by_level)
            jobs.reverse()
            queue.jobs = jobs

    def _split_by_owner(self, *, fair: bool) -> dict[QueueName, OwnerQueue]:
        """Return one queue per owner, group and class; a single queue if the order is not fair."""
        queues: dict[QueueName, OwnerQueue] = {}
        requests, counts = self.requests, self.request_counts
        for job in self.snapshot.pending:  # thousands of jobs in every plan
            if not self._is_eligible(job):
                continue
            name = (job.priority_class, job.owner, job.group) if fair else ("", "", "")
            queue = queues.get(name)
            if queue is None:
                rank = self.snapshot.config.priority_class(name[0]).rank
                queue = queues[name] = OwnerQueue(rank, name)
            queue.jobs.append(job)
            queue.oldest_s = min(queue.oldest_s, waits_since_s(job))
            requests[id(job.request)] = job.request
            counts[id(job.request)] += 1
        return queues

    def _is_eligible(self, job: PendingJob) -> bool:
        if job.not_before_s is not None and job.not_before_s > self.snapshot.now_s:
            return False
        if not job.dependencies:
            return True
        return check_dependencies(job.dependencies, self.snapshot.ended) is Readiness.READY

    def _take_overdue(self, oldest: list[PendingJob]) -> None:
        """Move the overdue jobs, which are among the oldest, out of the queues of their owners."""
        self.overdue = overdue_jobs(self.snapshot, oldest, self.can_start)
        taken = {job.job_id for job in self.overdue}
        names = {(job.priority_class, job.owner, job.group) for job in self.overdue}
        for queue in self.queues:
            if queue.name in names:
                queue.jobs = [job for job in queue.jobs if job.job_id not in taken]

    def __iter__(self) -> Iterator[PendingJob]:
        """Yield the eligible jobs in order; ``fair_share`` may be charged between two jobs."""
        yield from self.overdue
        sort_key = self._by_level if self._by_service else make_sort_key(self.snapshot.config)
        if self._by_service:  # their first jobs take part in the order of the queues
            for queue in self.queues:
                queue.sort(sort_key)
        heap = [self._entry(number) for number, queue in enumerate(self.queues) if queue.jobs]
        heapify(heap)
        while heap:
            number = heap[0][3]
            queue = self.queues[number]
            queue.sort(sort_key)
            entry = self._entry(number)
            if entry > heap[0]:  # the owner was charged since the entry was made
                heapreplace(heap, entry)
                continue
            yield from self._serve(queue, entry[0])
            heappop(heap)
            if queue.jobs:
                heappush(heap, self._entry(number))

    def _serve(self, queue: OwnerQueue, rank: QueueRank) -> Iterator[PendingJob]:
        """Yield jobs of one queue until a charge has changed the rank of its owner."""
        charges = self.fair_share.charges
        if self.passes_over(queue.name):
            queue.jobs.clear()
        while queue.jobs:
            yield queue.jobs.pop()
            may_differ = self._by_service or self.fair_share.charges != charges
            if queue.jobs and may_differ and self._rank(queue) != rank:
                return

    def _entry(self, number: int) -> QueueEntry:
        queue = self.queues[number]
        return self._rank(queue), queue.oldest_s, queue.name, number

    def _rank(self, queue: OwnerQueue) -> QueueRank:
        _, owner, group = queue.name
        group_usage, user_usage = self.fair_share.rank(owner, group)
        if not self._by_service:
            return -queue.rank, 0.0, 0.0, group_usage, user_usage
        standing = self.standing(queue.jobs[-1])
        has_had_share = self.fair_share.has_had_share(owner, group, standing)
        return -queue.rank, float(has_had_share), standing, group_usage, user_usage

    def _by_level(self, job: PendingJob) -> "SortedBy":
        standing = self.standing(job) if job.ran_s else 0.0  # most jobs are new
        return -job.priority, standing, job.submitted_s, numeric_id(job)

    @property
    def _by_service(self) -> bool:
        return self.snapshot.config.order is SchedulingOrder.ATTAINED


def eligible_since_s(job: PendingJob, snapshot: Snapshot) -> float:
    """Return since when a job could have started if resources had been free.

    In the order ``attained``, in which jobs are preempted many times, that is since the last time.
    """
    dependency_ends_s = (snapshot.ended[each.job_id].at_s for each in job.dependencies)
    not_before_s = -inf if job.not_before_s is None else job.not_before_s
    by_service = snapshot.config.order is SchedulingOrder.ATTAINED
    queued_s = job.queued_s if by_service and job.queued_s is not None else job.submitted_s
    return max(queued_s, not_before_s, *dependency_ends_s)


def shortest_limit_s(config: SchedulerConfig) -> float:
    """Return the starvation limit that passes first."""
    return min(each.starvation_limit_s for each in config.classes)


def _by_age(job: PendingJob) -> tuple[float, NumericId]:
    return waits_since_s(job), numeric_id(job)


def overdue_jobs(
    snapshot: Snapshot, eligible: list[PendingJob], can_start: Callable[[PendingJob], bool]
) -> list[PendingJob]:
    """Return the jobs that have waited longer than the starvation limit of their class, in order.

    The first is the job whose limit passed first.  At most ``overdue_per_owner`` jobs of an owner are
    returned: thousands of old jobs of one owner must not delay all other owners.  Those that cannot start
    take the places of no others.
    """
    config, now_s = snapshot.config, snapshot.now_s
    limits_s = {each.name: each.starvation_limit_s for each in config.classes}
    shortest_s = shortest_limit_s(config)
    overdue: list[tuple[float, NumericId, PendingJob]] = []
    for job in eligible:
        if now_s - job.submitted_s <= shortest_s:
            continue
        limit_s = limits_s.get(job.priority_class)
        if limit_s is None:
            limit_s = config.priority_class(job.priority_class).starvation_limit_s
        due_s = eligible_since_s(job, snapshot) + limit_s
        if due_s < now_s:
            overdue.append((due_s, numeric_id(job), job))
    overdue.sort(key=lambda each: each[:2])
    count_by_owner: dict[str, int] = {}
    first: list[PendingJob] = []
    for _, _, job in overdue:
        count = count_by_owner.get(job.owner, 0)
        if count < config.overdue_per_owner and can_start(job):
            count_by_owner[job.owner] = count + 1
            first.append(job)
    return first


SortedBy: TypeAlias = tuple[float, float, float, NumericId]
SortKey: TypeAlias = Callable[[PendingJob], SortedBy]


def make_sort_key(config: SchedulerConfig) -> SortKey:
    """Return the key function by which the jobs of one owner's queue are sorted."""
    match config.order:
        case SchedulingOrder.FAIR | SchedulingOrder.ATTAINED:  # attained: see EligibleJobs
            return lambda job: (-job.priority, job.submitted_s, 0.0, numeric_id(job))
        case SchedulingOrder.FIFO:
            return lambda job: (job.submitted_s, 0.0, 0.0, numeric_id(job))
        case SchedulingOrder.PRIORITY:
            ranks = {each.name: each.rank for each in config.classes}

            def by_class_rank(job: PendingJob) -> tuple[float, float, float, NumericId]:
                rank = ranks.get(job.priority_class)
                if rank is None:
                    rank = config.priority_class(job.priority_class).rank
                return -rank, -job.priority, job.submitted_s, numeric_id(job)

            return by_class_rank
        case SchedulingOrder.SJF | SchedulingOrder.SRPT:  # exhaustive
            return lambda job: (job.planned_duration_s(config), job.submitted_s, 0.0, numeric_id(job))
