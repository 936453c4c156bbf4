"""Every unfinished job as the scheduler sees it, kept up to date job by job.

A view is worked out when its job changes, not when a plan is made: a snapshot is then no more than a copy.
With the views stands what they are made of: dependencies, run-time estimates, usage, and the drift of the
time of day, which somebody may set.  Nothing here depends on how many jobs have finished.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from math import inf
from typing import Final

import structlog

from runner.agent.interface import QueueTerms
from runner.base.errors import Unavailable
from runner.base.instant import Instant
from runner.control.array_failures import ArrayFailures
from runner.control.context import Context, TrackedJob, as_started
from runner.control.dependencies import DependencyTracker
from runner.control.estimates import RunTimeEstimates
from runner.control.messages import Probed
from runner.control.owner_totals import OwnerTotals
from runner.control.switching import SwitchingCosts
from runner.control.usage import HORIZON, LONGEST_S, UsageTracker, load_level_usage
from runner.core.job.states import (
    Allocated,
    Finished,
    Outcome,
    Preparing,
    Queued,
    Running,
    Starting,
    State,
    Stopping,
    StopReason,
)
from runner.core.policy.facts import FactValue
from runner.core.ports.store import JobRow
from runner.core.scheduler import snapshot
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.displacement import switch_cost_s
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.level_usage import Holding, LevelUsage
from runner.core.scheduler.ready import NumericId, PendingIndex, numeric_id
from runner.core.scheduler.snapshot import (
    EndedJob,
    EstimateSource,
    PendingJob,
    QueueName,
    ResourceRequest,
    RunningJob,
)

log = structlog.get_logger()

CLOCK_SET_S: Final = 0.5
"""The time of day has been set when it differs by more from what the monotonic clock says."""


@dataclass(slots=True, repr=False)
class FirstOfArrays:
    """The first job of each array whose image is still made; ``first`` may be read from any thread."""

    first: dict[str, PendingJob] = field(default_factory=dict)
    _heaps: dict[str, list[NumericId]] = field(default_factory=dict)  # also of jobs that are ready by now

    def update(
        self, before: PendingJob | None, after: PendingJob | None, preparing: Mapping[str, PendingJob]
    ) -> None:
        """Follow a change of one job, which is in ``preparing`` before it, after it, or both."""
        if after is not None and after.array is not None:
            heappush(self._heaps.setdefault(after.array.id, []), numeric_id(after))
        for array in {each.array.id for each in (before, after) if each is not None and each.array}:
            heap = self._heaps[array]
            while heap and heap[0][1] not in preparing:
                heappop(heap)
            if heap:
                self.first[array] = preparing[heap[0][1]]
            else:
                del self._heaps[array]
                self.first.pop(array, None)


@dataclass(slots=True, repr=False)
class JobViews:
    """The views of all unfinished jobs; to be used in the exclusive section."""

    context: Context
    tracked_jobs: Mapping[str, TrackedJob]  # the loop changes it
    pending: dict[str, PendingJob] = field(default_factory=dict)
    index: PendingIndex = field(default_factory=PendingIndex)  # the same jobs in order
    waiting: Counter[QueueName] = field(default_factory=Counter)  # pending and preparing jobs
    running: dict[str, RunningJob] = field(default_factory=dict)
    preparing: dict[str, PendingJob] = field(default_factory=dict)  # their images are still made
    preparing_arrays: FirstOfArrays = field(default_factory=FirstOfArrays)
    changed: bool = True  # since the scheduler has made its last plan
    dependencies: DependencyTracker = field(default_factory=DependencyTracker)
    totals: OwnerTotals = field(default_factory=OwnerTotals)
    failures: ArrayFailures = field(init=False)
    usage: UsageTracker = field(init=False)
    _level_usage: LevelUsage | None = None  # once the order goes by it
    _estimates: RunTimeEstimates = field(init=False)
    _requests: dict[ResourceRequest, ResourceRequest] = field(
        default_factory=dict
    )  # equal ones are one object
    _drift_s: float = 0.0  # of the time of day against the monotonic clock
    _drifts_s: dict[str, float] = field(default_factory=dict)  # the same when a job came to be known
    _starts_s: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By job, the latest attempt of which a first step was seen, and its seconds from launch to that."""
    switching: SwitchingCosts = field(default_factory=SwitchingCosts)

    def __post_init__(self) -> None:
        config, now, past = self.context.site.rules, self.context.moment(), self.context.past
        self._drift_s = _drift_s(now)
        self._estimates = RunTimeEstimates(past)
        self.failures = ArrayFailures(self.context.store)
        self.usage = UsageTracker(config.half_life_s, config.cpu_weight, now.monotonic)
        self.usage.load(past, now.at)
        self._starts_s = dict(past.starts_s())
        since = self._horizon(now.at)
        self.switching.load(past.switches_since(since), now, config.cpu_weight, config.half_life_s)

    # --- what happens to jobs

    def update(self, tracked: TrackedJob) -> None:
        """Replace the view of a job by what the job is now."""
        self.follow_clock(self.context.moment())
        row, state = tracked.row, tracked.row.job.state
        job_id = row.job.id
        self._drifts_s.setdefault(job_id, self._drift_s)
        was_pending, was_running = self.pending.pop(job_id, None), self.running.pop(job_id, None)
        if was_pending is not None:
            self.index.remove(was_pending)
        self.dependencies.ended.pop(job_id, None)
        self.failures.note(row, self.context.attempt_service.terms(row).sweep)
        was_preparing = self.preparing.pop(job_id, None)
        self._count(was_pending or was_preparing, -1)
        self.switching.look(row.job, self.context.store.decisions)
        match state:
            case Preparing():
                self.preparing[job_id] = self._preparing_view(row)
            case Queued():
                self.pending[job_id] = view = self._pending_view(tracked, state)
                self.index.add(view)
            case Starting() | Running() | Stopping():
                self.running[job_id] = self._running_view(tracked, state)
            case Finished():
                self._finish(row, state)
            case _:
                pass
        self._count(self.pending.get(job_id) or self.preparing.get(job_id), 1)
        ended = isinstance(state, Finished)
        self.totals.update(row, "" if ended else self.context.attempt_service.terms(row).team)
        self.preparing_arrays.update(was_preparing, self.preparing.get(job_id), self.preparing)
        if job_id not in self.pending:
            self.dependencies.leave(job_id)
        self._charge(job_id)
        self._follow_switch(was_running, tracked)
        if job_id in self.pending or was_pending or (was_running and not self._goes_on(job_id, state)):
            self.changed = True

    def _count(self, view: PendingJob | None, sign: int) -> None:
        """Count a waiting job, or with a sign of -1 count it no longer."""
        if view is not None:
            name = (view.priority_class, view.owner, view.group)
            self.waiting[name] += sign
            if not self.waiting[name]:
                del self.waiting[name]

    def record_probe(self, probed: Probed) -> None:
        """Note what a running job would lose by a preemption: all since its last checkpoint, and a start."""
        self.follow_clock(self.context.moment())
        view, age_s = self.running.get(probed.job_id), probed.facts.get("checkpoint.age_s")
        state = None if view is None else self.tracked_jobs[probed.job_id].row.job.state
        if view is None or not isinstance(state, Allocated) or state.attempt.number != probed.attempt:
            return
        if isinstance(age_s, int | float):
            view = replace(view, checkpoint_s=probed.at.timestamp() - age_s)
        if probed.saves_when_asked and not view.saves_when_asked:
            self.switching.saving[probed.job_id] = probed.attempt
            saves = self.switching.saves(probed.job_id, probed.attempt, by_terms=False)
            view = replace(view, saves_when_asked=saves)
        reported_s = _reported_s(probed)
        begun_s = None if probed.start_s is None else view.started_s - self._drift_s + probed.start_s
        remaining_s = self._estimates.observe_progress(
            probed.job_id, reported_s - self._drift_s, probed.facts, state.attempt, begun_s
        )
        if remaining_s is not None and self.tracked_jobs[probed.job_id].row.job.time_limit is None:
            ends_s = reported_s + remaining_s
            self.changed |= view.ends_by is not EstimateSource.PROGRESS  # its standing may be another one
            view = replace(view, ends_s=ends_s, ends_by=EstimateSource.PROGRESS)
        if probed.start_s is not None:
            view = replace(view, restart_s=probed.start_s)
        self.running[probed.job_id] = view
        if probed.start_s is not None:
            self._note_start(probed.job_id, probed.attempt, probed.start_s)

    def _note_start(self, job_id: str, attempt: int, start_s: float) -> None:
        """Keep how long an attempt took to its first step, over a restart of the daemon, too."""
        if self._starts_s.get(job_id) != (attempt, start_s):
            self._starts_s[job_id] = attempt, start_s
            try:
                self.context.past.add_start(job_id, attempt, start_s)
            except Unavailable as error:  # it is known here, and lost with the daemon
                log.info("job.start_not_kept", job_id=job_id, problem=str(error))

    def follow_clock(self, now: Instant) -> None:
        """Work out all times again when somebody has set the time of day."""
        drift_s = _drift_s(now)
        if abs(drift_s - self._drift_s) > CLOCK_SET_S:
            self.dependencies.shift(drift_s - self._drift_s)
            self._drift_s = drift_s
            for tracked in list(self.tracked_jobs.values()):
                self.update(tracked)
            self.changed = True

    def forget_requests(self) -> None:
        """Let equal resource requests be different objects again: nobody is pending."""
        self._requests.clear()

    # --- what others ask for

    def device_holders(self) -> dict[str, str]:
        """Return the ids of the jobs that hold each device, by UUID; with commas between them."""
        holders: dict[str, str] = {}
        for job in self.running.values():
            for uuid in job.devices:
                holders[uuid] = f"{holders[uuid]},{job.job_id}" if uuid in holders else job.job_id
        return holders

    def queue_facts(self, job_id: str, at: datetime) -> dict[str, FactValue]:
        """Return the facts of a policy about the turns of a job that holds resources; from any thread."""
        view, tracked = self.running.get(job_id), self.tracked_jobs.get(job_id)
        if view is None or tracked is None:
            return {}
        job, now_s = tracked.row.job, at.timestamp()
        gives_way = isinstance(job.state, Stopping) and job.state.reason is StopReason.PREEMPTION
        devices = billed_devices(view.request, self.context.site.rules)
        return {
            "queue.switches": job.preempted + gives_way,
            "queue.switch_cost_s": max(switch_cost_s(view, now_s), 0.0),
            "queue.attained_s": view.held_s(now_s) * devices,
        }

    def hypothetical(self, row: JobRow, needs: ResourceRequest) -> PendingJob:
        """Return a job as if its next attempt was pending."""
        terms = self.context.attempt_service.terms(row)
        return PendingJob("", row.owner.name, needs, self._submitted_s(row), terms.team, terms.priority_class)

    # --- one job

    def _preparing_view(self, row: JobRow) -> PendingJob:
        terms = self.context.attempt_service.terms(row)
        view = self.hypothetical(row, self._request(row))
        return replace(view, job_id=row.job.id, array=terms.sweep)

    def _pending_view(self, tracked: TrackedJob, state: Queued) -> PendingJob:
        row, terms = tracked.row, self.context.attempt_service.terms(tracked.row)
        self._depend(row.job.id, terms)
        backoff_s = (
            None if state.not_before is None else state.not_before.timestamp() + self._shift_s(tracked)
        )
        wanted_s = None if terms.not_before is None else terms.not_before.timestamp()
        return PendingJob(
            job_id=row.job.id,
            owner=row.owner.name,
            request=self._request(row),
            submitted_s=self._submitted_s(row),
            group=terms.team,
            priority_class=terms.priority_class,
            priority=row.priority,
            not_before_s=max((each for each in (backoff_s, wanted_s) if each is not None), default=None),
            dependencies=terms.after,
            unmet_limit_s=terms.unmet_limit_s,
            time_limit_s=_remaining_limit_s(row),
            estimated_s=self._estimates.remaining_s(row, terms.sweep),
            estimated_by=self._estimates.sources.get(row.job.id),
            array=terms.sweep,
            queued_s=state.since.timestamp() + self._shift_s(tracked),
            ran_s=row.job.history.ran.total_seconds(),
        )

    def _running_view(self, tracked: TrackedJob, state: Allocated) -> RunningJob:
        row = as_started(self.context, tracked.row)
        terms, needs = self.context.attempt_service.terms(row), self.context.attempt_service.needs(row)
        shift_s, started = self._shift_s(tracked), state.since
        if isinstance(state, Stopping):
            started = state.started or state.since
        return RunningJob(
            job_id=row.job.id,
            owner=row.owner.name,
            request=self._requests.setdefault(needs, needs),
            host=self.context.site.host,
            devices=state.allocation.devices,
            started_s=started.timestamp() + shift_s,
            ends_s=self._ends_s(row, state, shift_s, terms.sweep),
            ends_by=self._ends_by(row, state),
            group=terms.team,
            priority_class=terms.priority_class,
            saves_when_asked=self.switching.saves(
                row.job.id, state.attempt.number, by_terms=terms.saves_when_asked
            ),
            restart_s=self._restart_s(row.job.id),
            save_s=self.switching.saves_s.get(row.job.id),
            switched_s=self.switching.spent_s(row.job.id, row.job.preempted, self._restart_s(row.job.id)),
            ran_s=row.job.history.ran.total_seconds(),
            queued_s=self._queued_s(row),
            preemptible=self.context.attempt_service.terms(tracked.row).preemptible,  # applies at once
            stays_until_s=self.switching.stays_until_s.get(row.job.id, -inf) + self._drift_s,
            stopping=isinstance(state, Stopping),
            preempted=row.job.preempted,
            array=terms.sweep,
        )

    def _restart_s(self, job_id: str) -> float:
        known = self._starts_s.get(job_id)
        return snapshot.RESTART_S if known is None else known[1]

    def _follow_switch(self, was_running: RunningJob | None, tracked: TrackedJob) -> None:
        """Learn what a switch has cost, when a job that was preempted has left its devices."""
        job, now_s = tracked.row.job, self.context.clock.monotonic()
        pending = self.pending.get(job.id)
        if pending is not None and pending.queued_s is not None:
            self.switching.queued_s[job.id] = pending.queued_s - self._drift_s
        if isinstance(job.state, Stopping) and job.state.reason is StopReason.PREEMPTION:
            self.switching.told.setdefault(job.id, now_s)
        elif isinstance(job.state, Finished):
            self.switching.forget(job.id)
        elif isinstance(job.state, Running):
            self.switching.told.pop(job.id, None)  # the switch was cancelled
        elif was_running is not None and job.id not in self.running and job.id in self.switching.told:
            devices = billed_devices(was_running.request, self.context.site.rules)
            half_life_s = self.context.site.rules.half_life_s
            self.switching.left(job.id, now_s, devices, self._restart_s(job.id), half_life_s)

    def level_usage(self, now_s: float) -> Mapping[tuple[str, str], tuple[float, ...]]:
        """Return the use of each group and user in each service level, where the order goes by that."""
        rules = self.context.site.rules
        if rules.order is not SchedulingOrder.ATTAINED:
            return {}
        return self._levels().read(now_s, rules.switching.levels_device_s)

    def _levels(self) -> LevelUsage:
        """Return the use of owners in each service level; it is loaded where the order goes by that."""
        if self._level_usage is None:
            rules, now = self.context.site.rules, self.context.moment()
            records, limits = self.context.past.since(self._horizon(now.at)), rules.switching.levels_device_s
            self._level_usage = load_level_usage(records, now.at, now.monotonic, self.usage, limits)
            for job_id, view in self.running.items():
                self._begin_level(self._level_usage, job_id, view)
        return self._level_usage

    def _begin_level(self, levels: LevelUsage, job_id: str, view: RunningJob) -> None:
        """Count what a job holds from now on; what it had before is counted already."""
        devices = billed_devices(view.request, self.context.site.rules)
        had_device_s = devices * view.held_s(self.context.clock.now().timestamp())
        holding = Holding((view.group, view.owner), devices, had_device_s, self.context.clock.monotonic())
        levels.begin(job_id, holding)

    def _horizon(self, now: datetime) -> datetime:
        """Return from when on past usage counts."""
        return now - timedelta(seconds=min(HORIZON * self.context.site.rules.half_life_s, LONGEST_S))

    def switching_left_device_s(self) -> float:
        """Return the rest of the machine's budget for switching, in device-seconds; from any thread."""
        rules, now_s = self.context.site.rules, self.context.clock.monotonic()
        held_device_s = sum(self.usage.users.rounded().values())
        return rules.switching.budget * held_device_s - self.switching.spent_device_s(
            now_s, rules.half_life_s
        )

    def _finish(self, row: JobRow, state: Finished) -> None:
        """Tell dependants of the end of a job, and estimate the jobs that are like it anew."""
        job_id = row.job.id
        if job_id in self.dependencies:
            self.dependencies.ended[job_id] = EndedJob(state.outcome, state.since.timestamp())
            self.changed = True
        if state.outcome is Outcome.SUCCEEDED:
            sweep = self.context.attempt_service.terms(row).sweep
            for similar in self._estimates.update(row, sweep):
                if similar in self.tracked_jobs and similar != job_id:
                    self.update(self.tracked_jobs[similar])
        del self._drifts_s[job_id]
        self._starts_s.pop(job_id, None)

    def _depend(self, job_id: str, terms: QueueTerms) -> None:
        """Let a job wait for its predecessors; of those that have ended the store knows how."""
        self.dependencies.wait(job_id, (after.job_id for after in terms.after))
        for after in terms.after:
            if after.job_id not in self.dependencies.ended and after.job_id not in self.tracked_jobs:
                known = self.context.store.get(after.job_id)
                if known is not None and isinstance(known.job.state, Finished):
                    state = known.job.state
                    ended = EndedJob(state.outcome, state.since.timestamp())
                    self.dependencies.ended[after.job_id] = ended

    def _goes_on(self, job_id: str, state: State) -> bool:
        return job_id in self.running and not isinstance(state, Stopping)

    def _charge(self, job_id: str) -> None:
        """Charge for what a job holds, as long as it holds it."""
        now_s, view = self.context.clock.monotonic(), self.running.get(job_id)
        if view is not None and not self._waits_in_engine(job_id):
            rules = self.context.site.rules
            devices = billed_devices(view.request, rules)
            if self._level_usage is not None and not self._level_usage.has(job_id):
                self._begin_level(self._level_usage, job_id, view)
            if rules.order is SchedulingOrder.ATTAINED and not view.preemptible:
                devices *= rules.switching.kept_weight
            self.usage.begin(job_id, (view.owner, view.group, devices), now_s)
            return
        self.usage.end(job_id, now_s)
        if self._level_usage is not None:
            self._level_usage.end(job_id, now_s, self.context.site.rules.switching.levels_device_s)
        if job_id not in self.pending:
            self._estimates.forget(job_id)

    def _waits_in_engine(self, job_id: str) -> bool:
        """Return True for an attempt in the engine's own queue, where it holds nothing yet."""
        return self.context.executor.queues and isinstance(self.tracked_jobs[job_id].row.job.state, Starting)

    def _request(self, row: JobRow) -> ResourceRequest:
        needs = self.context.attempt_service.needs(row)
        if row.job.turned.avoid:
            needs = replace(needs, avoid=needs.avoid | frozenset(row.job.turned.avoid))
        return self._requests.setdefault(needs, needs)

    # --- times

    def _submitted_s(self, row: JobRow) -> float:
        """Return the time of a submission: setting the time of day makes no job older, nor younger.

        That holds since this process has known the job; before there is nothing but the time of day.
        """
        return row.submitted_at.timestamp() + self._drift_s - self._drifts_s.get(row.job.id, self._drift_s)

    def _queued_s(self, row: JobRow) -> float | None:
        """Return the time at which a running job came to the queue, None if only an earlier daemon knew."""
        if not row.job.preempted:
            return self._submitted_s(row)
        queued_s = self.switching.queued_s.get(row.job.id)
        return None if queued_s is None else queued_s + self._drift_s

    def _ends_s(
        self, row: JobRow, state: Allocated, shift_s: float, sweep: snapshot.JobArray | None
    ) -> float | None:
        """Return the time at which a job gives back its allocation, None if nobody knows."""
        if isinstance(state, Stopping):
            return state.kill_at.timestamp() + shift_s
        if isinstance(state, Running) and state.deadline is not None:
            return state.deadline.timestamp() + shift_s
        limit_s = _remaining_limit_s(row)
        remaining_s = self._estimates.remaining_s(row, sweep) if limit_s is None else limit_s
        if remaining_s is None:
            return None
        reported_s = self._estimates.reported_end_s(row.job.id, state.attempt.number)
        if limit_s is not None or reported_s is None:
            return state.since.timestamp() + shift_s + remaining_s
        return reported_s + self._drift_s

    def _ends_by(self, row: JobRow, state: Allocated) -> EstimateSource | None:
        """Return the source of the estimate of a job's end that was made just now."""
        if isinstance(state, Stopping):
            return None
        if row.job.time_limit is not None:
            return EstimateSource.TIME_LIMIT
        return self._estimates.sources.get(row.job.id)

    def _shift_s(self, tracked: TrackedJob) -> float:
        """Return by how much the time of day was set during the present state: waits keep their length."""
        return self._drift_s - _drift_s(tracked.since)


def _reported_s(probed: Probed) -> float:
    """Return the time of the newest report of a job, by the calendar: an old report is no slow job."""
    age_s = probed.facts.get("heartbeat.age_s")
    return probed.at.timestamp() - (age_s if isinstance(age_s, int | float) else 0.0)


def _drift_s(moment: Instant) -> float:
    return moment.at.timestamp() - moment.monotonic


def _remaining_limit_s(row: JobRow) -> float | None:
    """Return the running time that a job's limit leaves; None without a limit."""
    if row.job.time_limit is None:
        return None
    return max((row.job.time_limit - row.job.history.ran).total_seconds(), 0.0)
