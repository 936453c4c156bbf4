"""Observation of the executor, and comparison of what it shows with what is expected.

The executor is observed on a thread of its own, which only puts messages into the inbox.  The loop compares,
and gets findings: what follows from them is not decided here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeAlias

import structlog

from runner.base.errors import Unavailable
from runner.base.retry import RETRY_S, delay_s
from runner.base.threads import PeriodicThread
from runner.control.context import Context, TrackedJob
from runner.control.messages import Observed
from runner.core.job.attempt import Attempt
from runner.core.job.states import Allocated, Running, Starting, Stopping
from runner.core.ports.executor import Alive, Created, EndReason, Gone, Key, Observation, Unknown, Waiting

log = structlog.get_logger()

IDLE_S: Final = 60.0  # between two rounds of a daemon without jobs
ANSWERED_S: Final = 5.0  # after a round, during which the loop may ask for another: it answers a moment later
SETTLE_S: Final = (
    0.004  # between a hint and the observation: many hints come at once, and one round serves all
)
SURE: Final = 3  # observations in a row that must show an unknown attempt before it is worth a warning
MISSES: Final = 2  # observations in a row that must miss an attempt before it counts as vanished


@dataclass(frozen=True, slots=True)
class OfJob:
    """Base of findings about an attempt that its job expects."""

    tracked: TrackedJob

    @property
    def job_id(self) -> str:
        return self.tracked.row.job.id


@dataclass(frozen=True, slots=True)
class AttemptEnded(OfJob):
    """An attempt has ended, or has vanished."""

    attempt: Attempt
    gone: Gone


@dataclass(frozen=True, slots=True)
class AttemptBegun(OfJob):
    """An attempt that was accepted earlier has left the engine's own queue."""

    alive: Alive


class StillAlive(OfJob):
    """An attempt that was sent SIGKILL is still alive."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that no job expects any more has ended; its exit is recorded already."""

    key: Key

    @property
    def job_id(self) -> str:
        return self.key.job_id


class Revenant(Orphan):
    """An attempt is alive whose end is recorded: its start was carried out after its job had given it up."""


Finding: TypeAlias = AttemptBegun | AttemptEnded | StillAlive | Orphan | Revenant


@dataclass(slots=True)
class Observer:
    """Observes, and remembers between observations what a single one cannot prove."""

    context: Context
    tracked_jobs: Mapping[str, TrackedJob]  # the loop changes it
    running: Collection[str]  # ids of the jobs that hold resources; the loop changes it, too
    report: Callable[[Observed], None]
    wait_for_work: Callable[[], None]  # waits a moment until no worker is about to change what is there
    problem: str | None = None  # why the executor did not answer the last time
    _thread: PeriodicThread = field(init=False)
    _close_watch: Callable[[], None] = lambda: None
    _unexpected: dict[Key, int] = field(default_factory=dict)  # observations in a row, by attempt
    _requested: bool = True  # a round is needed even when no job is unfinished: attempts may be left over
    _round_s: float = -inf  # when the last round began
    _tended_s: float = -inf  # when the directories of running attempts were tended last

    def __post_init__(self) -> None:
        self._thread = PeriodicThread(
            "observer", self._period_s, self._round, settle=self._settle, retry_s=delay_s
        )

    # --- the thread

    def start(self) -> None:
        """Observe from now on: soon after a hint of the executor, and every now and then without one."""
        self._close_watch = self.context.executor.watch(self._thread.wake)
        self._thread.start()

    def hint(self) -> None:
        """Observe soon: something has probably changed."""
        self._thread.wake()

    def request_round(self) -> None:
        """Observe once more even if no job is unfinished: an attempt may be left over."""
        self._requested = True

    def stop(self) -> None:
        self._thread.stop()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, and no longer listen to the executor."""
        self._thread.join(timeout_s)
        self._close_watch()

    def _period_s(self) -> float:
        lately = self.context.clock.monotonic() - self._round_s < ANSWERED_S
        return self.context.observe_every_s if lately or self._needed() else IDLE_S

    def _settle(self) -> None:
        self._thread.pause(SETTLE_S)
        self.wait_for_work()

    def _round(self) -> None:
        """Observe and tend once if there is need; a round that did not succeed makes another one needed."""
        if not self._needed():
            return
        self._requested = succeeded = False
        self._round_s = self.context.clock.monotonic()
        try:
            answered = self.observe()
            self._tend()
            succeeded = answered
        finally:
            self._requested = self._requested or not succeeded
        if not answered:
            self._thread.pause(RETRY_S)

    def observe(self) -> bool:
        """Observe once, report what was observed, and return whether the executor answered."""
        began = self.context.clock.monotonic()
        try:
            self.report(Observed(began, self.context.executor.observe()))
        except Unavailable as error:
            log.warning("executor.unavailable", problem=str(error))
            self.problem = str(error)
            return False
        self.problem = None
        return True

    def _needed(self) -> bool:
        return bool(self.tracked_jobs) or self._requested

    def _tend(self) -> None:
        """Tend the directories of running attempts, once a period: observations may be more frequent."""
        now_s = self.context.clock.monotonic()
        if now_s - self._tended_s < self.context.observe_every_s:
            return
        for tracked in self._running_jobs():
            state = tracked.row.job.state
            if isinstance(state, Running | Stopping):
                self.context.attempt_service.limit_log(tracked.row, state.attempt)
        self._tended_s = now_s

    def _running_jobs(self) -> list[TrackedJob]:
        """Return the jobs that hold resources; from any thread."""
        ids = list(self.running)
        return [tracked for job_id in ids if (tracked := self.tracked_jobs.get(job_id)) is not None]

    # --- in the exclusive section

    def compare(self, observed: Observed) -> Iterator[Finding]:
        """Yield what an observation means for the running jobs, and for attempts that no job expects."""
        found = {(seen.key.job_id, seen.key.attempt): seen for seen in observed.found}
        for tracked in self._running_jobs():
            state = tracked.row.job.state
            if isinstance(state, Allocated):
                seen = found.pop((tracked.row.job.id, state.attempt.number), None)
                yield from self._compare_one(tracked, state, seen, observed)
        self._unexpected = {seen.key: self._unexpected.get(seen.key, 0) + 1 for seen in found.values()}
        if any(times < SURE for times in self._unexpected.values()):
            self.request_round()  # one observation may be older than what is recorded
        yield from self._unexpected_attempts(found.values())

    def _compare_one(
        self, tracked: TrackedJob, state: Allocated, seen: Observation | None, observed: Observed
    ) -> Iterator[Finding]:
        """Compare one attempt with what was observed; only evidence ends it."""
        job_id = tracked.row.job.id
        if self.context.work_queue.busy(job_id):
            if isinstance(seen, Unknown):  # a command that waits for the engine may wait long
                _record_unknown(tracked, seen)
            return
        _record_unknown(tracked, seen)
        _record_waiting(tracked, seen)
        _record_suspended(tracked, seen)
        match seen:
            case Gone():
                yield AttemptEnded(tracked, state.attempt, _of_this_start(state, seen))
            case Unknown():
                tracked.misses = 0
            case Waiting() | Alive():
                tracked.misses = 0
                if isinstance(seen, Alive) and isinstance(state, Starting) and self.context.executor.queues:
                    yield AttemptBegun(tracked, seen)
                if isinstance(state, Stopping) and state.killed:
                    yield StillAlive(tracked)
            case Created() | None if (
                isinstance(state, Running | Stopping) and tracked.since.monotonic < observed.began
            ):
                tracked.misses += 1
                if tracked.misses >= MISSES:
                    unborn = isinstance(state, Stopping) and state.started is None
                    key = self.context.key(job_id, state.attempt.number)
                    vanished = Gone(key, None, never_started=unborn)
                    yield AttemptEnded(tracked, state.attempt, vanished)
            case _:
                pass

    def _unexpected_attempts(self, found: Iterable[Observation]) -> Iterator[Finding]:
        """Yield attempts whose end is recorded; leave those alone that the store does not know."""
        for seen in found:
            key = seen.key
            if isinstance(seen, Unknown):
                log.debug("executor.orphan_unknown", job_id=key.job_id, why=seen.why)
            elif not isinstance(seen, Alive | Waiting):
                if not self.context.work_queue.busy(key.job_id):
                    yield Orphan(key)
            elif self._unexpected[key] >= SURE and self._has_ended(key):
                self.request_round()  # until it is gone
                if not self.context.work_queue.busy(key.job_id):
                    yield Revenant(key)
            elif self._unexpected[key] == SURE:  # once, and not for an observation older than the record
                log.warning("executor.unknown_attempt_alive", job_id=key.job_id, attempt=key.attempt)

    def _has_ended(self, key: Key) -> bool:
        """Return True if the store knows an attempt, and that it has ended.

        A store that was restored from a backup may be older than an attempt that rightly runs.
        """
        row = self.context.store.get(key.job_id)
        if row is None or key.attempt > row.job.attempts:
            return False
        return not isinstance(row.job.state, Allocated) or row.job.state.attempt.number != key.attempt


def _record_unknown(tracked: TrackedJob, seen: Observation | None) -> None:
    """Tell on a job that its attempt cannot be observed, until it can."""
    if isinstance(seen, Unknown):
        if tracked.unknown != seen.why:
            log.warning("job.attempt_unknown", job_id=tracked.row.job.id, why=seen.why)
        tracked.why = tracked.unknown = seen.why
    elif tracked.unknown:
        tracked.why, tracked.unknown = "" if tracked.why == tracked.unknown else tracked.why, ""


def _record_waiting(tracked: TrackedJob, seen: Observation | None) -> None:
    """Tell on a job what its attempt waits for in the engine's own queue, until it has begun."""
    waiting = seen if isinstance(seen, Waiting) else None
    if waiting is not None:
        tracked.why = waiting.why
    elif tracked.waiting is not None and tracked.why == tracked.waiting.why:
        tracked.why = ""
    tracked.waiting = waiting


SUSPENDED: Final = "its processes are suspended by the engine; silence is not held against it"


def _record_suspended(tracked: TrackedJob, seen: Observation | None) -> None:
    """Tell on a job that the engine has stopped its processes for a while, until they go on."""
    suspended = isinstance(seen, Alive) and seen.suspended
    if suspended:
        tracked.why = SUSPENDED
    elif tracked.suspended and tracked.why == SUSPENDED:
        tracked.why = ""
    tracked.suspended = suspended


def _of_this_start(state: Allocated, gone: Gone) -> Gone:
    """Return an end without its exit code if it is not the end of the start that is recorded.

    Somebody has started the container again after the launch, so the exit code is that of another start.
    """
    launched = state.since if isinstance(state, Running) else getattr(state, "started", None)
    if launched is None or gone.started is None or gone.started <= launched:
        return gone
    why = f"its container was started again from outside ({gone.started:%H:%M:%S} UTC); its exit code is lost"
    return replace(gone, exit_code=None, oom_seen=False, error=why, reason=EndReason.STARTED_TWICE)
