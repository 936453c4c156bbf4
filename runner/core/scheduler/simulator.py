"""A discrete-event simulation of the queue: jobs arrive, ``plan`` decides, time jumps from event to event.

The daemon uses the same ``plan``, so a site can see what an order, a quota or more devices would have done to
the jobs of last month.  The time for images and containers, failures and changes by users are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count
from math import inf, log2
from typing import Final, TypeAlias

from runner.core.job.states import Outcome
from runner.core.scheduler.attained import LATEST_JOBS, LEARNS_EVERY_S, learned_levels
from runner.core.scheduler.backfill import Plan, PreemptJob, StartJob, plan
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.displacement import next_change_s
from runner.core.scheduler.fairshare import billed_devices, charge_usage, share_excesses
from runner.core.scheduler.level_usage import Holding, LevelUsage
from runner.core.scheduler.snapshot import (
    RESTART_S,
    Dependency,
    EndedJob,
    EstimateSource,
    Host,
    JobArray,
    Maintenance,
    PendingJob,
    QueueName,
    ResourceRequest,
    RunningJob,
    Snapshot,
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of a trace: its request and its real duration."""

    job_id: str
    owner: str
    request: ResourceRequest
    submitted_s: float
    duration_s: float
    time_limit_s: float | None = None
    group: str = ""
    priority_class: str = "normal"
    priority: int = 50
    dependencies: tuple[Dependency, ...] = ()
    array: JobArray | None = None
    restart_s: float = RESTART_S  # cost of a restart after a preemption
    saves: bool = True  # it saves when it is asked to stop
    save_s: float | None = None  # how long that takes; None: it works on for the grace period
    checkpoint_every_s: float | None = None  # of a job that does not save when asked; None: it never saves
    progress: bool = False  # it reports its steps, so its end is known soon after its first start
    misjudged: float = 1.0  # the remaining time that its steps suggest, by the true one


@dataclass(frozen=True, slots=True)
class Site:
    """The hosts and the configuration of a simulation.  ``tick_s`` is the least time between two plans."""

    hosts: tuple[Host, ...]
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    maintenance: tuple[Maintenance, ...] = ()
    min_interval_s: float = 0.0
    true_durations: bool = False  # the planner knows them: what a site could gain at most
    learns_levels: bool = False  # the limits of the service levels follow from the jobs that have ended


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A finished job of a simulation."""

    arrival: Arrival
    spans: tuple[tuple[float, float], ...]  # of its attempts, with their devices
    killed: bool  # at its limit
    switched_s: float = 0.0  # of its held time: saves on request, restarts, repeated work

    @property
    def started_s(self) -> float:
        """The first start."""
        return self.spans[0][0]

    @property
    def ended_s(self) -> float:
        return self.spans[-1][1]

    @property
    def held_s(self) -> float:
        return sum(ends_s - begins_s for begins_s, ends_s in self.spans)

    @property
    def waited_s(self) -> float:
        """The time from submission to the first start."""
        return self.started_s - self.arrival.submitted_s


class _Kind(StrEnum):
    ARRIVED = "arrived"
    ENDED = "ended"
    WAKE = "wake"


PROGRESS_PART: Final = 0.01
"""After this part of its work the end of a job that reports its steps is known."""

ROUNDING_S: Final = 1e-3
"""So much later a job has certainly reached a time that was computed for it."""

SHARES_EVERY_S: Final = 60.0
"""The least time after which it is looked whether somebody is within the share again."""

PlanObserver: TypeAlias = Callable[[Snapshot, Plan], None]


@dataclass(slots=True)
class _Account:
    """Decaying usage of one user or group, exact between two changes of its rate."""

    usage: float = 0.0
    rate: float = 0.0
    at_s: float = 0.0

    def read(self, at_s: float, half_life_s: float) -> float:
        return charge_usage(self.usage, self.rate, at_s - self.at_s, half_life_s)

    def change(self, at_s: float, rate: float, half_life_s: float) -> None:
        self.usage, self.at_s = self.read(at_s, half_life_s), at_s
        self.rate += rate


@dataclass(slots=True)
class _JobProgress:
    """A job that is not finished."""

    arrival: Arrival
    work_s: float
    limit_s: float | None
    attempt: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)
    held_s: float = 0.0  # sum of the spans
    switched_s: float = 0.0
    told_s: float = inf  # when it was told to stop
    queued_s: float = 0.0  # when it last came to the queue

    def reports_at_s(self, begins_s: float) -> float:
        """Return the time at which the progress of an attempt tells its end, from its beginning."""
        told_s = PROGRESS_PART * self.arrival.duration_s - (self.arrival.duration_s - self.work_s)
        return begins_s + max(told_s, 0.0)

    @property
    def has_reported(self) -> bool:
        done_s = self.arrival.duration_s - self.work_s
        return self.arrival.progress and done_s >= PROGRESS_PART * self.arrival.duration_s


@dataclass(slots=True)
class _Simulation:
    site: Site
    watch: PlanObserver
    now_s: float = 0.0
    events: list[tuple[float, int, _Kind, str, int]] = field(default_factory=list)
    lives: dict[str, _JobProgress] = field(default_factory=dict)
    watched: set[str] = field(default_factory=set)  # jobs with checkpoints of their own, or steps to report
    waiting: dict[str, PendingJob] = field(default_factory=dict)
    lengths: Counter[QueueName] = field(default_factory=Counter)  # of the owners' queues
    running: dict[str, RunningJob] = field(default_factory=dict)
    users: dict[str, _Account] = field(default_factory=dict)
    groups: dict[str, _Account] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)  # jobs that others wait for
    ended: dict[str, EndedJob] = field(default_factory=dict)
    played: list[SimulatedJob] = field(default_factory=list)
    held: _Account = field(default_factory=_Account)  # device-seconds of all, without decay
    switched_device_s: float = 0.0
    requests: dict[ResourceRequest, ResourceRequest] = field(
        default_factory=dict
    )  # equal ones are one object
    wakes_s: float = inf  # when a plan is due though nothing happens
    numbers: Iterator[int] = field(default_factory=count)
    config: SchedulerConfig = field(init=False)  # that of the site, with the limits that were learned
    learns_at_s: float = -inf
    levels: LevelUsage = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.site.config
        self.levels = LevelUsage(self.config.half_life_s)

    def all(self, trace: Iterable[Arrival]) -> None:
        for each in trace:
            request = self.requests.setdefault(each.request, each.request)
            arrival = each if request is each.request else replace(each, request=request)
            self.lives[arrival.job_id] = _JobProgress(arrival, arrival.duration_s, arrival.time_limit_s)
            if arrival.progress or not (arrival.saves or arrival.checkpoint_every_s is None):
                self.watched.add(arrival.job_id)
            self.wanted.update(after.job_id for after in arrival.dependencies)
            self._later(arrival.submitted_s, _Kind.ARRIVED, arrival.job_id)
        for window in self.site.maintenance:
            self._later(window.ends_s, _Kind.WAKE, "")
        planned_s = -inf
        while self.events:
            self.now_s = max(self.events[0][0], planned_s + self.site.min_interval_s)
            while self.events and self.events[0][0] <= self.now_s:
                self._happen(*heappop(self.events))
            if self.waiting:
                self._plan()
                planned_s = self.now_s

    def _later(self, at_s: float, kind: _Kind, job_id: str, attempt: int = 0) -> None:
        heappush(self.events, (at_s, next(self.numbers), kind, job_id, attempt))

    # --- events

    def _happen(self, at_s: float, _number: int, kind: _Kind, job_id: str, attempt: int) -> None:
        match kind:
            case _Kind.ARRIVED:
                self._queue(self.lives[job_id])
            case _Kind.ENDED:
                if attempt == self.lives[job_id].attempt and job_id in self.running:
                    self._leave(self.lives[job_id], at_s)
            case _Kind.WAKE:  # exhaustive
                pass

    def _queue(self, life: _JobProgress) -> None:
        job = life.arrival
        life.queued_s = self.now_s
        self.lengths[job.priority_class, job.owner, job.group] += 1
        known = self.site.true_durations
        told = known or (life.limit_s is None and life.has_reported)
        self.waiting[job.job_id] = PendingJob(
            job.job_id, job.owner, job.request, job.submitted_s, job.group, job.priority_class, job.priority,
            dependencies=job.dependencies, time_limit_s=None if known else life.limit_s,
            estimated_s=self._judged_s(life, life.attempt + 1) if told else None,
            estimated_by=EstimateSource.PROGRESS if told and not known else None,
            array=job.array, ran_s=life.held_s, queued_s=life.queued_s,
        )  # fmt: skip

    def _leave(self, life: _JobProgress, at_s: float) -> None:
        """End an attempt; a preempted job returns to the queue."""
        job = life.arrival
        gone = self.running.pop(job.job_id)
        self._charge(job, at_s, -1)
        self.levels.end(job.job_id, at_s, self.config.switching.levels_device_s)
        ran_s = at_s - gone.started_s
        life.spans.append((gone.started_s, at_s))
        life.held_s += ran_s
        worked_s = self._worked_s(life, gone, at_s)
        self._lose(life, gone, ran_s - min(worked_s, life.work_s))
        life.work_s -= worked_s
        life.told_s = inf
        if gone.stopping and life.work_s > 0:
            life.limit_s = life.limit_s and max(life.limit_s - ran_s, 1.0)
            self._queue(life)
            return
        killed = life.work_s > 1e-6
        self.played.append(SimulatedJob(job, tuple(life.spans), killed, life.switched_s))
        if job.job_id in self.wanted:
            self.ended[job.job_id] = EndedJob(Outcome.FAILED if killed else Outcome.SUCCEEDED, at_s)

    def _worked_s(self, life: _JobProgress, gone: RunningJob, at_s: float) -> float:
        """Return the work of an attempt that is kept."""
        job, overhead_s = life.arrival, self._overhead(life, life.attempt)
        if not gone.stopping:
            return max(at_s - gone.started_s - overhead_s, 0.0)
        if job.saves:  # it works until it is told to stop, or through the grace period
            ended_s = at_s if job.save_s is None else min(life.told_s, at_s)
            return max(ended_s - gone.started_s - overhead_s, 0.0)
        if job.checkpoint_every_s is None:
            return 0.0
        worked_s = max(at_s - gone.started_s - overhead_s, 0.0)
        return worked_s - worked_s % job.checkpoint_every_s

    def _lose(self, life: _JobProgress, gone: RunningJob, lost_s: float) -> None:
        """Count held time that was no work: what switching has cost."""
        if gone.stopping or life.attempt > 1:
            life.switched_s += lost_s
            lost_device_s = lost_s * billed_devices(life.arrival.request, self.config)
            self.switched_device_s += lost_device_s

    def _judged_s(self, life: _JobProgress, attempt: int) -> float:
        """Return how long the rest of a job seems to take from the start of an attempt on."""
        misjudged = 1.0 if self.site.true_durations else life.arrival.misjudged
        return life.work_s * misjudged + self._overhead(life, attempt)

    def _overhead(self, life: _JobProgress, attempt: int) -> float:
        return life.arrival.restart_s if attempt > 1 else 0.0

    def _charge(self, job: Arrival, at_s: float, sign: int) -> None:
        rate, half_life_s = sign * billed_devices(job.request, self.config), self.config.half_life_s
        self.held.change(at_s, rate, inf)
        for accounts, name in ((self.users, job.owner), (self.groups, job.group)):
            accounts.setdefault(name, _Account(at_s=at_s)).change(at_s, rate, half_life_s)

    # --- decisions

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now_s, self.site.hosts, tuple(self.waiting.values()), tuple(self._running()),
            self._usage(self.users), self._usage(self.groups), self.ended, self.site.maintenance,
            self.config, switching_left_device_s=self._switching_left_device_s(),
            level_usage=self._level_usage(), waiting=self.lengths,
        )  # fmt: skip

    def _running(self) -> Iterator[RunningJob]:
        """Yield the running jobs as they are now; the newest checkpoint of some is looked up."""
        for each in self.running.values():
            if each.job_id not in self.watched:
                yield each
                continue
            life = self.lives[each.job_id]
            job = self._with_known_end(each, life) if life.arrival.progress else each
            every_s = life.arrival.checkpoint_every_s
            if life.arrival.saves or every_s is None:
                yield job
                continue
            begins_s = job.started_s + self._overhead(life, life.attempt)
            saved_s = begins_s + (self.now_s - begins_s) // every_s * every_s
            saved = saved_s > begins_s or life.work_s < life.arrival.duration_s
            yield replace(job, checkpoint_s=max(saved_s, job.started_s) if saved else None)

    def _with_known_end(self, job: RunningJob, life: _JobProgress) -> RunningJob:
        """Return a running job with its end, if that is known from the steps that it reports."""
        if job.stopping or life.limit_s is not None or self.site.true_durations:
            return job
        if job.ends_s is not None and self.now_s < job.ends_s:
            return job
        begins_s = job.started_s + self._overhead(life, life.attempt)
        if self.now_s < life.reports_at_s(begins_s):
            return job
        left_s = max(begins_s + life.work_s - self.now_s, 0.0)  # it is judged anew if it takes longer
        known = replace(
            job, ends_s=self.now_s + left_s * life.arrival.misjudged, ends_by=EstimateSource.PROGRESS
        )
        self.running[job.job_id] = known
        return known

    def _saves_in_s(self, job: RunningJob) -> float:
        """Return in how many seconds a running job has a new checkpoint; infinite: it saves when asked."""
        life = self.lives[job.job_id]
        every_s = life.arrival.checkpoint_every_s
        if life.arrival.saves or every_s is None:
            return inf
        begins_s = job.started_s + self._overhead(life, life.attempt)
        return every_s - (self.now_s - begins_s) % every_s

    def _switching_left_device_s(self) -> float:
        """Return the rest of the machine's budget for switching, counted from the beginning."""
        return self.config.switching.budget * self.held.read(self.now_s, inf) - self.switched_device_s

    def _usage(self, accounts: Mapping[str, _Account]) -> dict[str, float]:
        half_life_s = self.config.half_life_s
        return {name: account.read(self.now_s, half_life_s) for name, account in accounts.items()}

    def _level_usage(self) -> Mapping[tuple[str, str], tuple[float, ...]]:
        if self.config.order is not SchedulingOrder.ATTAINED:
            return {}
        return self.levels.read(self.now_s, self.config.switching.levels_device_s)

    def _learn(self) -> None:
        """Learn the limits of the service levels from the jobs that have ended, as the daemon does."""
        is_wanted = self.site.learns_levels and self.config.order is SchedulingOrder.ATTAINED
        if not is_wanted or self.now_s < self.learns_at_s:
            return
        self.learns_at_s = self.now_s + LEARNS_EVERY_S
        latest = self.played[-LATEST_JOBS:]
        held = [each.held_s * billed_devices(each.arrival.request, self.config) for each in latest]
        if (found := learned_levels(held)) is not None:
            self.config = replace(
                self.config, switching=replace(self.config.switching, levels_device_s=found)
            )

    def _plan(self) -> None:
        self._learn()
        picture = self.snapshot()
        decided = plan(picture)
        self.watch(picture, decided)
        for start in decided.starts:
            self._start(start)
        for preemption in decided.preemptions:
            self._preempt(preemption)
        self._wake_at_change(picture)

    def _wake_at_change(self, picture: Snapshot) -> None:
        """Plan again when what time alone changes may change a plan.

        A running job rises or may begin to be preempted, a waiting one becomes overdue, or an owner is
        within the share again.
        """
        if not self.waiting or self.config.order is not SchedulingOrder.ATTAINED:
            return
        now_s = self.now_s
        rises_s = min(map(self._changes_in_s, self._running()), default=inf)
        shares_s = self._within_share_in_s(picture.level_usage)
        soonest_s = min(rises_s, shares_s, self._overdue_in_s())
        at_s = now_s + max(soonest_s, self.site.min_interval_s) + ROUNDING_S
        is_due_earlier = now_s < self.wakes_s <= at_s
        if soonest_s < inf and not is_due_earlier:
            self.wakes_s = at_s
            self._later(at_s, _Kind.WAKE, "")

    def _changes_in_s(self, job: RunningJob) -> float:
        """Return in how many seconds a running job rises, may begin to be preempted, or has a checkpoint."""
        return min(next_change_s(job, self.now_s, self.config), self._saves_in_s(job))

    def _overdue_in_s(self) -> float:
        """Return in how many seconds the next waiting job becomes overdue; infinite: none does."""
        now_s, config = self.now_s, self.config
        dues_s = (
            life.queued_s + config.priority_class(life.arrival.priority_class).starvation_limit_s - now_s
            for life in map(self.lives.__getitem__, self.waiting)
        )
        return min((each for each in dues_s if each >= 0), default=inf)

    def _within_share_in_s(self, level_usage: Mapping[tuple[str, str], Sequence[float]]) -> float:
        """Return in how many seconds the first owner may be within the share again; infinite: all are."""
        half_life_s = self.config.half_life_s
        after = Snapshot(
            self.now_s, self.site.hosts, running=tuple(self.running.values()), config=self.config,
            waiting=self.lengths, level_usage=level_usage,
        )  # fmt: skip
        excesses = share_excesses(after)
        soonest_s = min((half_life_s * log2(each) for each in excesses), default=inf)
        return max(soonest_s, SHARES_EVERY_S)

    def _start(self, start: StartJob) -> None:
        life = self.lives[start.job_id]
        job, life.attempt = life.arrival, life.attempt + 1
        limit_s = inf if life.limit_s is None else life.limit_s
        ends_s = None if life.limit_s is None else self.now_s + life.limit_s
        if self.site.true_durations:
            ends_s = self.now_s + min(life.work_s + self._overhead(life, life.attempt), limit_s)
        del self.waiting[start.job_id]
        self.lengths[job.priority_class, job.owner, job.group] -= 1
        self.running[start.job_id] = RunningJob(
            job.job_id, job.owner, job.request, start.host, start.devices, self.now_s, ends_s, job.group,
            job.priority_class, restart_s=job.restart_s, preempted=len(life.spans), array=job.array,
            saves_when_asked=job.saves, queued_s=life.queued_s, ran_s=life.held_s,
            switched_s=life.switched_s, save_s=job.save_s,
        )  # fmt: skip
        self._charge(job, self.now_s, 1)
        devices = billed_devices(job.request, self.config)
        owner = (job.group, job.owner)
        self.levels.begin(job.job_id, Holding(owner, devices, life.held_s * devices, self.now_s))
        lasts_s = min(life.work_s + self._overhead(life, life.attempt), limit_s)
        self._later(self.now_s + lasts_s, _Kind.ENDED, job.job_id, life.attempt)

    def _preempt(self, preemption: PreemptJob) -> None:
        victim = self.running[preemption.job_id]
        life = self.lives[victim.job_id]
        save_s = life.arrival.save_s if life.arrival.saves else 0.0
        leaves_s = self.now_s + (self.config.preemption.grace_s if save_s is None else save_s)
        life.told_s = self.now_s
        self.running[preemption.job_id] = replace(victim, stopping=True, ends_s=leaves_s)
        self._later(leaves_s, _Kind.ENDED, victim.job_id, life.attempt)


def simulate(
    site: Site, trace: Iterable[Arrival], watch: PlanObserver = lambda _snapshot, _plan: None
) -> list[SimulatedJob]:
    """Return the finished jobs of a trace in the order of their ends; some jobs may never start.

    ``watch`` sees every snapshot with its plan.
    """
    stage = _Simulation(site, watch)
    stage.all(trace)
    return stage.played
