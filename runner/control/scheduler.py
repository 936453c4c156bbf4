"""The queue as the daemon holds it: a picture for ``core.queue.plan``, carried on job by job.

What a job looks like to the queue is worked out when the job changes, not when the queue is asked;
a picture is then no more than a copy.  A plan is made when something has changed, when a time is
reached that somebody waits for, and every few seconds while somebody waits, because shares fade.
Nothing here acts, and nothing depends on how many jobs have finished.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from threading import Lock
from typing import Final, TypeAlias

import structlog

from runner.base.errors import Unavailable
from runner.base.retry import RETRY_S
from runner.control.context import Context, Instant, TrackedJob
from runner.control.dependencies import DependencyTracker
from runner.control.estimates import RunTimeEstimates
from runner.control.messages import Probed
from runner.control.schedulable import Names, as_started, before, by_uuid, lacks, ordered, schedulable_devices
from runner.control.transitions import Transition, transition
from runner.control.usage import HORIZON, UsageTracker
from runner.core.job.attempt import Allocation
from runner.core.job.events import Placed, PreemptRequested
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
)
from runner.core.ports.attempts import QueueTerms
from runner.core.ports.store import JobRow, UsageRecord
from runner.core.scheduler import snapshot
from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.pending import PendingReason
from runner.core.scheduler.snapshot import (
    EndedJob,
    Host,
    PendingJob,
    ResourceRequest,
    SchedulableDevice,
    Snapshot,
)

log = structlog.get_logger()

Happen: TypeAlias = Callable[[list[Transition]], None]

REPLAN_S: Final = 5.0
"""How often a plan is made while somebody waits and nothing happens: shares fade, jobs overrun."""

SET_S: Final = 0.5
"""The time of day has been set when it differs by more from what the other clock says."""


@dataclass(slots=True, repr=False)
class Scheduler:
    """Everything that the queue knows; all but ``wait`` is for whoever has the turn."""

    context: Context
    entries: Mapping[str, TrackedJob]  # the daemon's own; it alone changes them
    waiting: dict[str, PendingJob] = field(default_factory=dict)
    running: dict[str, snapshot.RunningJob] = field(default_factory=dict)
    _preparing: dict[str, PendingJob] = field(default_factory=dict)
    _awaited: DependencyTracker = field(default_factory=DependencyTracker)
    _needs: dict[ResourceRequest, ResourceRequest] = field(default_factory=dict)  # equal needs are one object
    _usage: UsageTracker = field(init=False)
    _learned: RunTimeEstimates = field(init=False)
    _devices: tuple[SchedulableDevice, ...] = ()
    _names: Names = field(default_factory=Names)
    _drift_s: float = 0.0  # of the time of day against the clock that only goes on
    _drifts_s: dict[str, float] = field(default_factory=dict)  # the same when a job came to be known
    _starts_s: dict[str, float] = field(default_factory=dict)  # how long jobs took from launch to first step
    _changed: bool = True
    _again_s: float = inf  # when the next plan is due at the latest, by the clock that only goes on
    _last: tuple[Plan, Lock] | None = None
    _unrecorded: list[TrackedJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules, now = self.context.site.rules, self.context.moment()
        self._usage = UsageTracker(rules.half_life_s, rules.cpu_weight, now.monotonic)
        self._learned = RunTimeEstimates(self.context.past)
        self._drift_s = _drift_s(now)
        if self.context.past is not None:
            since = now.at - timedelta(seconds=HORIZON * rules.half_life_s)
            self._usage.load(self.context.past.since(since), now.at)
        self._names.compare(self.context)

    # --- what happens to jobs

    def know(self, entry: TrackedJob) -> None:
        """Take in what a job is now."""
        self._follow_clock(self.context.moment())
        row, state = entry.row, entry.row.job.state
        job_id = row.job.id
        self._drifts_s.setdefault(job_id, self._drift_s)
        waited, held = self.waiting.pop(job_id, None), self.running.pop(job_id, None)
        self._awaited.ended.pop(job_id, None)
        self._preparing.pop(job_id, None)
        match state:
            case Preparing():
                self._preparing[job_id] = self._like(row, self._needs_of(row), job_id)
            case Queued():
                self.waiting[job_id] = self._waiting(entry, state)
            case Starting() | Running() | Stopping():
                self.running[job_id] = self._running(entry, state)
            case Finished():
                self._over(row, state)
                del self._drifts_s[job_id]
                self._starts_s.pop(job_id, None)
            case _:
                pass
        if job_id not in self.waiting:
            self._awaited.leave(job_id)
        self._count(job_id)
        if job_id in self.waiting or waited or (held and not self._goes_on(job_id, state)):
            self._changed = True

    def seen(self, news: Probed) -> None:
        """Take in what a running job would lose if it had to leave: all since it saved last, and a start."""
        held, age_s = self.running.get(news.job_id), news.facts.get("checkpoint.age_s")
        if held is None:
            return
        if isinstance(age_s, int | float):
            held = replace(held, checkpoint_s=news.at.timestamp() - age_s)
        if news.start_s is not None:
            self._starts_s[news.job_id] = news.start_s
            held = replace(held, restart_s=news.start_s)
        self.running[news.job_id] = held

    def _goes_on(self, job_id: str, state: State) -> bool:
        return job_id in self.running and not isinstance(state, Stopping)

    def _count(self, job_id: str) -> None:
        """Charge for what a job holds, as long as it does."""
        now_s, held = self.context.clock.monotonic(), self.running.get(job_id)
        if held is not None:
            devices = billed_devices(held.request, self.context.site.rules)
            self._usage.lend(job_id, (held.owner, held.group, devices), now_s)
            return
        self._usage.returned(job_id, now_s)
        if job_id not in self.waiting:
            self._learned.forget(job_id)

    def _over(self, row: JobRow, state: Finished) -> None:
        """Take in the end of a job: others may wait for it, and those of its name last as long."""
        if row.job.id in self._awaited:
            self._awaited.ended[row.job.id] = EndedJob(state.outcome, state.since.timestamp())
            self._changed = True
        if state.outcome is Outcome.SUCCEEDED:
            for job_id in self._learned.again(row, self.context.attempt_service.terms(row).sweep):
                if job_id in self.entries and job_id != row.job.id:
                    self.know(self.entries[job_id])

    def _wait_for(self, job_id: str, terms: QueueTerms) -> None:
        self._awaited.wait(job_id, (after.job_id for after in terms.after))
        for after in terms.after:
            if after.job_id not in self._awaited.ended and after.job_id not in self.entries:
                known = self.context.store.get(after.job_id)
                if known is not None and isinstance(known.job.state, Finished):
                    state = known.job.state
                    self._awaited.ended[after.job_id] = EndedJob(state.outcome, state.since.timestamp())

    # --- a job as the queue sees it

    def _waiting(self, entry: TrackedJob, state: Queued) -> PendingJob:
        row, terms = entry.row, self.context.attempt_service.terms(entry.row)
        self._wait_for(row.job.id, terms)
        backoff = None if state.not_before is None else state.not_before.timestamp() + self._shift_s(entry)
        wished = None if terms.not_before is None else terms.not_before.timestamp()
        return PendingJob(
            job_id=row.job.id,
            owner=row.owner.name,
            request=self._needs_of(row),
            submitted_s=self._submitted_s(row),
            group=terms.team,
            priority_class=terms.priority_class,
            priority=row.priority,
            not_before_s=max((each for each in (backoff, wished) if each is not None), default=None),
            dependencies=terms.after,
            time_limit_s=_left_s(row),
            estimated_s=self._learned.left_s(row, terms.sweep),
            array=terms.sweep,
        )

    def _submitted_s(self, row: JobRow) -> float:
        """Return since when a job waits: setting the time of day makes no job older, nor younger.

        Only since this process has known it; of the time before there is nothing but the time of day.
        """
        return row.submitted_at.timestamp() + self._drift_s - self._drifts_s.get(row.job.id, self._drift_s)

    def _needs_of(self, row: JobRow) -> ResourceRequest:
        needs = self.context.attempt_service.needs(row)
        if row.job.turned.avoid:
            needs = replace(needs, avoid=needs.avoid | frozenset(row.job.turned.avoid))
        return self._needs.setdefault(needs, needs)

    def _running(self, entry: TrackedJob, state: Allocated) -> snapshot.RunningJob:
        row = as_started(self.context, entry.row)
        terms, needs = self.context.attempt_service.terms(row), self.context.attempt_service.needs(row)
        shift_s, started = self._shift_s(entry), state.since
        if isinstance(state, Stopping):
            started = state.started or state.since
        return snapshot.RunningJob(
            job_id=row.job.id,
            owner=row.owner.name,
            request=self._needs.setdefault(needs, needs),
            host=self.context.site.host,
            devices=state.allocation.devices,
            started_s=started.timestamp() + shift_s,
            ends_s=self._ends_s(row, state, shift_s, terms.sweep),
            group=terms.team,
            priority_class=terms.priority_class,
            saves_when_asked=terms.saves_when_asked,
            restart_s=self._starts_s.get(row.job.id, snapshot.RESTART_S),
            stopping=isinstance(state, Stopping),
            preempted=row.job.preempted,
            array=terms.sweep,
        )

    def _ends_s(
        self, row: JobRow, state: Allocated, shift_s: float, sweep: snapshot.JobArray | None
    ) -> float | None:
        """Return when a job will have given back what it holds, as far as anybody knows."""
        if isinstance(state, Stopping):
            return state.kill_at.timestamp() + shift_s
        if isinstance(state, Running) and state.deadline is not None:
            return state.deadline.timestamp() + shift_s
        limit_s = _left_s(row)
        lasts_s = self._learned.left_s(row, sweep) if limit_s is None else limit_s
        return None if lasts_s is None else state.since.timestamp() + shift_s + lasts_s

    def _shift_s(self, entry: TrackedJob) -> float:
        """Return by how much the time of day was set during the present state: waits keep their length."""
        return self._drift_s - _drift_s(entry.since)

    # --- the picture and the plan

    def picture(self, now: Instant, *, admitted: bool = False) -> Snapshot:
        """Return all that decides who starts; ``admitted``: with the jobs whose image is still made."""
        self._follow_clock(now)
        self._usage.until(now.monotonic)
        site, capacity, devices = self.context.site, self.context.capacity, self._pictured()
        host = Host(site.host, capacity.cpus, capacity.memory_bytes, devices)
        return Snapshot(
            now_s=now.at.timestamp(),
            hosts=(host,),
            pending=(*self.waiting.values(), *(self._preparing.values() if admitted else ())),
            running=tuple(self.running.values()),
            user_usage=self._usage.users.told(),
            group_usage=self._usage.groups.told(),
            ended=dict(self._awaited.ended),
            maintenance=tuple(by_uuid(each, devices) for each in site.maintenance),
            config=site.rules,
            utc_offset_s=site.utc_offset_s(now.at),
        )

    def _pictured(self) -> tuple[SchedulableDevice, ...]:
        held: dict[str, str] = {}
        for job in self.running.values():
            for uuid in job.devices:
                held[uuid] = f"{held[uuid]},{job.job_id}" if uuid in held else job.job_id
        return schedulable_devices(self.context, held)

    def _follow_clock(self, now: Instant) -> None:
        """Work out all times again when somebody has set the time of day."""
        drift_s = _drift_s(now)
        if abs(drift_s - self._drift_s) > SET_S:
            self._awaited.later(drift_s - self._drift_s)
            self._drift_s = drift_s
            for entry in list(self.entries.values()):
                self.know(entry)
            self._changed = True

    def act(self, now: Instant, happen: Happen) -> None:
        """Plan if something has changed, and let happen what follows, or try again a while later."""
        made = self.plan(now)
        if made is None:
            return
        changes = list(self._follows(made, now))
        for entry in self._unrecorded:
            entry.why = ""
        self._unrecorded = []
        try:
            happen(changes)
        except Unavailable as error:
            log.warning("scheduling.cannot_record", jobs=len(changes), problem=str(error))
            self._unrecorded = [each.entry for each in changes]
            for entry in self._unrecorded:
                entry.why = str(error)  # whoever asks about the job is told
            self._changed, self._again_s = False, now.monotonic + RETRY_S
        else:  # all that follows from what has been done is in the plan already
            self._changed, self._devices = False, self._pictured()
            self._again_s = self._again_s if self.waiting else inf

    def _follows(self, made: Plan, now: Instant) -> Iterator[Transition]:
        for start in made.starts:
            entry = self.entries[start.job_id]
            placed = Placed(now.at, Allocation(start.devices), self.context.boot)
            yield transition(entry, placed, usage=self._lending(entry.row, start.devices, now.at))
        for gone in made.preemptions:
            wish = PreemptRequested(now.at, gone.for_job, gone.why)
            yield transition(self.entries[gone.job_id], wish)

    def _lending(self, row: JobRow, devices: tuple[str, ...], at: datetime) -> UsageRecord:
        """Return what the next attempt of a waiting job gets, for the books."""
        job = self.waiting[row.job.id]
        number, needs = row.job.attempts + 1, job.request
        return UsageRecord(row.job.id, number, job.owner, job.group, needs.gpus, needs.cpus, devices, at)

    def plan(self, now: Instant) -> Plan | None:
        """Return what is to be done now; None while nothing has changed since the last plan."""
        if not self.waiting:
            self._changed, self._again_s = False, inf
            self._needs.clear()
            return None
        self._follow_clock(now)
        devices = self._pictured()
        if devices == self._devices and not self._changed and now.monotonic < self._again_s:
            return None
        if devices != self._devices:
            self._names.compare(self.context)
        picture = ordered(self.picture(now), self._preparing.values())
        made = plan(picture)
        self._last = made, Lock()
        self._devices, self._changed = devices, False
        self._again_s = now.monotonic + self._next_s(picture, made)
        return made

    def _next_s(self, picture: Snapshot, made: Plan) -> float:
        """Return in how many seconds time alone may have changed what follows."""
        times = (at_s for at_s in _times(picture, made) if at_s > picture.now_s)
        return min(min(times, default=inf) - picture.now_s, REPLAN_S)

    def patience_s(self, now_s: float) -> float:
        """Return for how long nothing has to be planned, if nothing happens."""
        return 0.0 if self._changed else max(self._again_s - now_s, 0.0)

    # --- what others want to know

    def why(self, entry: TrackedJob) -> str:
        """Return what a job waits for in the queue; empty if for nothing.  From any thread."""
        state = entry.row.job.state
        left_s = _backoff_s(entry, state, self.context.moment()) if isinstance(state, Queued) else 0.0
        if left_s > 0:
            return f"backoff, {left_s:.0f} s left"
        wait = self.wait(entry)
        return (
            wait.why if wait else before(self.waiting.get(entry.row.job.id), list(self._preparing.values()))
        )

    def wait(self, entry: TrackedJob) -> PendingReason | None:
        """Return what a job waits for, by the last plan; None if that does not know.  From any thread."""
        if self._last is None or not isinstance(entry.row.job.state, Queued):
            return None
        made, lock = self._last
        with lock:  # words are worked out when they are read, and kept; the loop does not wait for that
            return made.pending_reasons.get(entry.row.job.id)

    def lacks(self, row: JobRow, needs: ResourceRequest) -> str:
        """Return what another attempt of a job would wait for if nobody else did; empty: it could start."""
        return lacks(self.picture(self.context.moment()), self._like(row, needs))

    def _like(self, row: JobRow, needs: ResourceRequest, job_id: str = "") -> PendingJob:
        """Return a job that is not in the queue as if it were."""
        terms, submitted_s = self.context.attempt_service.terms(row), self._submitted_s(row)
        job = PendingJob(job_id, row.owner.name, needs, submitted_s, terms.team, terms.priority_class)
        return replace(job, array=terms.sweep) if job_id else job


def _backoff_s(entry: TrackedJob, state: Queued, now: Instant) -> float:
    """Return how long a backoff goes on: it keeps its length when the time of day is set."""
    if state.not_before is None:
        return 0.0
    return (state.not_before - entry.since.later(now.monotonic)).total_seconds()


def _drift_s(moment: Instant) -> float:
    return moment.at.timestamp() - moment.monotonic


def _left_s(row: JobRow) -> float | None:
    """Return how much running time a job's limit leaves it; None without a limit."""
    if row.job.time_limit is None:
        return None
    return max((row.job.time_limit - row.job.history.ran).total_seconds(), 0.0)


def _times(picture: Snapshot, made: Plan) -> Iterator[float]:
    """Yield the times at which what waits may start without anything else happening."""
    yield from (job.not_before_s for job in picture.pending if job.not_before_s is not None)
    yield from (each.at_s for each in made.reservations)
    for window in picture.maintenance:
        yield from (window.begins_s, window.ends_s)
