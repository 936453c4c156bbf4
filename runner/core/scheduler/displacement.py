"""Displacement: running jobs of a higher standing are preempted for a blocked job, where that pays.

It is preemption among equals: of one class, by attained service (see ``attained``) or by remaining time.
A job is preempted only if it can save, or has saved, and its owner allows it.  Three limits hold:

- what a switch costs is less than the waiting that it spares, both in device-seconds;
- the budget: switching takes at most a part of the device time of each job and of the machine;
- the quantum: an attempt that is younger than ``cost / budget`` stays, so that its own switches pay as well.

An owner who has had a whole share of the machine in a service level displaces no jobs of others from there.
Among jobs of one standing those of the owner with the most usage by share are preempted first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from runner.core.scheduler.attained import (
    goes_by_remaining_time,
    next_rise_s,
    pending_standing,
    running_standing,
)
from runner.core.scheduler.calendar import Calendar, HostCalendar, expected_end
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.fairshare import FairShare, billed_devices
from runner.core.scheduler.placement import Placement, RequestClass
from runner.core.scheduler.preemption import (
    PreemptionCandidate,
    choose_victims,
    place_without,
)
from runner.core.scheduler.snapshot import PendingJob, QueueName, RunningJob
from runner.core.scheduler.timeline import Span


@dataclass(frozen=True, slots=True)
class Displaceable:
    """A running job that may be preempted, with its standing and what the switch would cost."""

    job: RunningJob
    standing: float
    rank: int  # of its class
    cost_s: float
    cost_device_s: float


@dataclass(frozen=True, slots=True)
class _Trial:
    """Jobs of one host that would make room together, and where that is."""

    victims: tuple[RunningJob, ...]
    placement: Placement
    lost_device_s: float


@dataclass(slots=True)
class Displacements:
    """The jobs that may be preempted in one plan, and what the budget of the machine leaves."""

    calendar: Calendar
    fair_share: FairShare
    left_device_s: float = inf
    by_host: dict[str, list[Displaceable]] = field(default_factory=dict)  # the highest standing first
    highest: float = -inf  # standing
    hopeless: set[tuple[object, ...]] = field(default_factory=set)  # what found nobody in this plan

    def __post_init__(self) -> None:
        snapshot = self.calendar.snapshot
        if snapshot.config.order not in {SchedulingOrder.ATTAINED, SchedulingOrder.SRPT}:
            return
        if not self._is_by_time:
            self.left_device_s = snapshot.switching_left_device_s
        for job in snapshot.running:
            candidate = self._candidate(job)
            if candidate is not None:
                self.by_host.setdefault(job.host, []).append(candidate)
                self.highest = max(self.highest, candidate.standing)
        for found in self.by_host.values():
            found.sort(key=self._reluctance)

    def _reluctance(self, each: Displaceable) -> tuple[float, float, float, float, str]:
        """Return the key by which the most willing job is first."""
        by_group, by_user = self.fair_share.rank(each.job.owner, each.job.group)
        return -each.standing, -by_group, -by_user, each.cost_device_s, each.job.job_id

    def _candidate(self, job: RunningJob) -> Displaceable | None:
        snapshot, ends_s = self.calendar.snapshot, self.calendar.ends_s[job.job_id]
        config, now_s = snapshot.config, snapshot.now_s
        if stay_reason(job, ends_s, now_s, config) is not None:
            return None
        cost_s = switch_cost_s(job, now_s)
        standing = running_standing(job, ends_s, now_s, config)
        cost_device_s = cost_s * billed_devices(job.request, config)
        return Displaceable(
            job, standing, config.priority_class(job.priority_class).rank, cost_s, cost_device_s
        )

    def may_help(self, name: QueueName) -> bool:
        """Return True if a running job may be preempted for any job of an owner's queue."""
        priority_class, _, _ = name
        rank = self.calendar.snapshot.config.priority_class(priority_class).rank
        return bool(self._possible(None, (-inf, rank)))

    def _possible(
        self, only: tuple[str, str] | None, against: tuple[float, int]
    ) -> Mapping[str, list[Displaceable]]:
        """Return by host the jobs that may be preempted for a standing and class, most willing first."""
        (standing, rank), by_time = against, self._is_by_time
        found = {
            name: [
                each
                for each in jobs
                if each.standing > standing + each.cost_s * by_time
                and each.rank <= rank
                and (only is None or (each.job.owner, each.job.group) == only)
            ]
            for name, jobs in self.by_host.items()
        }
        return {name: jobs for name, jobs in found.items() if jobs}

    def _only(self, job: PendingJob, standing: float) -> tuple[str, str] | None:
        """Return the users whose jobs alone may be preempted for a job; None: those of all."""
        if self._is_by_time or not self.fair_share.has_had_share(job.owner, job.group, standing):
            return None
        return job.owner, job.group

    def find(
        self,
        job: PendingJob,
        standing: float,
        request_class: RequestClass,
        span: Span,
        placement: Callable[[], Placement | None],
    ) -> tuple[PreemptionCandidate, Placement] | None:
        """Return the displacement with the least cost that pays, and the placement that it improves.

        ``placement`` returns when and where the job would start otherwise; None: never.
        """
        config = self.calendar.snapshot.config
        rank = config.priority_class(job.priority_class).rank
        only, against = self._only(job, standing), (standing, rank)
        key = (id(request_class), only, against)
        if key in self.hopeless:
            return None
        trials = [
            trial
            for name, jobs in self._possible(only, against).items()
            if (trial := self._try_host(name, request_class, jobs, span)) is not None
        ]
        otherwise = placement() if trials else None
        if otherwise is None:
            self.hopeless.add(key)
            return None
        paying = [found for trial in trials if (found := self._that_pays(job, trial, otherwise)) is not None]
        if not paying:
            self.hopeless.add(key)
            return None
        best = min(paying, key=lambda each: (each.lost_device_s, each.placement.selection.score))
        return best, otherwise

    def _try_host(
        self, name: str, request_class: RequestClass, possible: list[Displaceable], span: Span
    ) -> _Trial | None:
        """Return the jobs of a host that would make room for a request, and the placement after that."""
        host = self.calendar.by_name.get(name)
        if host is None or not self._frees_enough(request_class, possible, host):
            return None
        jobs = [each.job for each in possible]
        victims = choose_victims(self.calendar, host, request_class, jobs, span)
        earlier = place_without(self.calendar, host, request_class, victims, span) if victims else None
        lost_device_s = sum(each.cost_device_s for each in possible if each.job in victims)
        return None if earlier is None else _Trial(victims, earlier, lost_device_s)

    def _that_pays(self, job: PendingJob, trial: _Trial, otherwise: Placement) -> PreemptionCandidate | None:
        """Return a displacement if the waiting that it spares is worth more than it costs, and affordable."""
        config = self.calendar.snapshot.config
        if trial.lost_device_s > self.left_device_s:
            return None
        spared_s = min(otherwise.at_s - trial.placement.at_s, config.default_duration_s)
        gained_device_s = spared_s * max(billed_devices(job.request, config), config.cpu_weight)
        if gained_device_s <= trial.lost_device_s:
            return None
        return PreemptionCandidate(trial.victims, trial.placement, trial.lost_device_s, gained_device_s)

    @property
    def _is_by_time(self) -> bool:
        return self.calendar.snapshot.config.order is SchedulingOrder.SRPT

    def _frees_enough(
        self, request_class: RequestClass, possible: list[Displaceable], host: HostCalendar
    ) -> bool:
        """Return True if the devices of these jobs and those that are free are as many as are wanted."""
        free = len(request_class.free_now(host))
        return free + sum(len(each.job.devices) for each in possible) >= request_class.request.gpus

    def take(self, candidate: PreemptionCandidate) -> None:
        """Preempt the victims in this plan: the budget is spent."""
        self.left_device_s -= candidate.lost_device_s
        self.remove(candidate.victims)

    def remove(self, victims: Iterable[RunningJob]) -> None:
        """Forget jobs that were told to stop."""
        taken = {victim.job_id for victim in victims}
        self.highest = -inf
        for name, jobs in self.by_host.items():
            self.by_host[name] = [each for each in jobs if each.job.job_id not in taken]
            if self.by_host[name]:
                self.highest = max(self.highest, self.by_host[name][0].standing)


class StayReason(StrEnum):
    """Reason for which a running job cannot be preempted at a time."""

    STOPPING = "it is stopping already"
    ITS_OWNER = "queue.preemptible is false"
    NO_ROOM = "it had no room to save a moment ago"
    CANNOT_SAVE = "no checkpoint is known yet, nor that it saves when asked"
    ENDING = "it is about to end"
    QUANTUM = "it has not run for long enough since it was last started"
    BUDGET = "its switches have cost as much as its budget allows"
    MACHINE = "the budget of the machine for switching is used up"


def stay_reason(job: RunningJob, ends_s: float, now_s: float, config: SchedulerConfig) -> StayReason | None:
    """Return the reason why a running job that ends at ``ends_s`` is not preempted; None: it may be."""
    if job.stopping:
        return StayReason.STOPPING
    if not job.preemptible:
        return StayReason.ITS_OWNER
    if job.stays_until_s > now_s:
        return StayReason.NO_ROOM
    if not job.saves_when_asked and job.checkpoint_s is None:
        return StayReason.CANNOT_SAVE
    cost_s = switch_cost_s(job, now_s)
    if ends_s - now_s <= cost_s:
        return StayReason.ENDING
    if config.order is not SchedulingOrder.ATTAINED:
        return None
    budget = config.switching.budget
    if (now_s - job.started_s) * budget < cost_s:
        return StayReason.QUANTUM
    return None if job.switched_s + cost_s <= budget * job.held_s(now_s) else StayReason.BUDGET


def protected_holders(
    job: PendingJob, holders: Iterable[RunningJob], calendar: Calendar
) -> Mapping[StayReason, list[str]]:
    """Return the running jobs of a higher level that are not preempted for a waiting one, by reason.

    Those that are gone soon are left out.
    """
    snapshot = calendar.snapshot
    config, now_s = snapshot.config, snapshot.now_s
    level, rank = pending_standing(job, config), config.priority_class(job.priority_class).rank
    found: dict[StayReason, list[str]] = defaultdict(list)
    for each in holders:
        ends_s = calendar.ends_s[each.job_id]
        stays = stay_reason(each, ends_s, now_s, config)
        cost_device_s = switch_cost_s(each, now_s) * billed_devices(each.request, config)
        if stays is None and cost_device_s > snapshot.switching_left_device_s:
            stays = StayReason.MACHINE
        is_above = running_standing(each, ends_s, now_s, config) > level
        of_class = config.priority_class(each.priority_class).rank <= rank
        if is_above and of_class and stays not in {None, StayReason.STOPPING, StayReason.ENDING}:
            found[stays].append(each.job_id)
    return found


def describe_turn(job: RunningJob, now_s: float, config: SchedulerConfig) -> str:
    """Return the service level of a running job, and whether it can be preempted; empty in another order."""
    if config.order is not SchedulingOrder.ATTAINED:
        return ""
    ends_s = expected_end(job, now_s, config)
    standing = running_standing(job, ends_s, now_s, config)
    stays = stay_reason(job, ends_s, now_s, config)
    if stays is not None:
        gives_way = f"cannot be preempted now: {stays}"
    else:
        gives_way = (
            "may be preempted for jobs of a lower one" if standing else "is preempted for higher classes only"
        )
    by = " by its remaining time" if goes_by_remaining_time(job, config) else ""
    return f"in service level {standing:g}{by}, {gives_way}"


def switch_cost_s(job: RunningJob, now_s: float) -> float:
    """Return the cost of preempting a running job now: the save, repeated work, and the restart."""
    save_s = (job.save_s or 0.0) if job.saves_when_asked else 0.0
    return save_s + job.lost_s(now_s)


def next_change_s(job: RunningJob, now_s: float, config: SchedulerConfig) -> float:
    """Return in how many seconds a running job may begin to be displaceable, or rises; infinite: never."""
    if config.order is not SchedulingOrder.ATTAINED:
        return inf
    rise_s = next_rise_s(job, now_s, config)
    budget, cost_s = config.switching.budget, switch_cost_s(job, now_s)
    if budget <= 0:
        return inf
    quantum_s = job.started_s + cost_s / budget - now_s
    credit_s = (job.switched_s + cost_s) / budget - job.held_s(now_s)
    ready_s = max(quantum_s, credit_s)
    return min((each for each in (rise_s, ready_s) if each is not None and each > 0), default=inf)
