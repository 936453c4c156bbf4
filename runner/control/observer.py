"""The observing half of the daemon: look at the executor, and hold what is there against what is expected.

Looking happens on a thread of its own, which only ever puts messages on the loop's queue.
Comparing happens on the loop's, and answers with findings: what they lead to is not decided here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

import structlog

from runner.base.errors import Unavailable
from runner.base.retry import RETRY_S, delay_s
from runner.base.threads import PeriodicThread
from runner.control.context import Context, TrackedJob
from runner.control.messages import Observed
from runner.core.job.attempt import Attempt
from runner.core.job.states import Allocated, Running, Stopping
from runner.core.ports.executor import Alive, Created, Gone, Key, Observation

log = structlog.get_logger()

IDLE_S: Final = 60.0  # between two thoughts of a daemon without jobs
BREATH_S: Final = 0.004  # between a hint and the look: hints come in crowds, and one look is enough for all
SURE: Final = 3  # looks in a row that must see an unknown attempt before it is worth a warning
MISSES: Final = 2  # looks in a row that must miss an attempt before it counts as vanished


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended, or is gone without a trace."""

    entry: TrackedJob
    attempt: Attempt
    gone: Gone

    @property
    def job_id(self) -> str:
        return self.entry.row.job.id


@dataclass(frozen=True, slots=True)
class StillAlive:
    """An attempt that was sent SIGKILL is still there."""

    entry: TrackedJob

    @property
    def job_id(self) -> str:
        return self.entry.row.job.id


@dataclass(frozen=True, slots=True)
class Orphan:
    """An attempt that no job expects any more has ended: its end is recorded."""

    key: Key

    @property
    def job_id(self) -> str:
        return self.key.job_id


Finding: TypeAlias = AttemptEnded | StillAlive | Orphan


@dataclass(slots=True)
class Observer:
    """Looks, and remembers between looks what one look cannot prove."""

    context: Context
    entries: Mapping[str, TrackedJob]  # the daemon's own; it alone changes them
    holding: Collection[str]  # the ids of those that hold anything, the daemon's own, too
    report: Callable[[Observed], None]
    calm: Callable[[], None] = lambda: None  # waits a moment until nobody is about to change what is there
    _thread: PeriodicThread = field(init=False)
    _close_watch: Callable[[], None] = lambda: None
    _strays: dict[Key, int] = field(default_factory=dict)
    _sweep: bool = True  # something may be left over even when no job is unfinished
    _tended_s: float = -inf  # when the directories of what runs were looked after last

    def __post_init__(self) -> None:
        self._thread = PeriodicThread(
            "observer", self._period_s, self._round, settle=self._settle, retry_s=delay_s
        )

    # --- the thread

    def start(self) -> None:
        """Look at the executor from now on: soon after a hint, and every now and then without one."""
        self._close_watch = self.context.executor.watch(self._thread.wake)
        self._thread.start()

    def hint(self) -> None:
        """Look soon: something has probably changed."""
        self._thread.wake()

    def sweep(self) -> None:
        """Look once more even if no job is unfinished: something may be left over."""
        self._sweep = True

    def stop(self) -> None:
        self._thread.stop()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, and no longer listen to the executor."""
        self._thread.join(timeout_s)
        self._close_watch()

    def _period_s(self) -> float:
        return self.context.observe_every_s if self._needed() else IDLE_S

    def _settle(self) -> None:
        self._thread.pause(BREATH_S)
        self.calm()

    def _round(self) -> None:
        """Look and tend once if there is need; after a bad look wait a while, and be sure to look again."""
        if not self._needed():
            return
        self._sweep = complete = False
        try:
            answered = self.look()
            self._tend()
            complete = answered
        finally:
            self._sweep = self._sweep or not complete
        if not answered:
            self._thread.pause(RETRY_S)

    def look(self) -> bool:
        """Observe once, report what was seen, and return whether the executor answered."""
        began = self.context.clock.monotonic()
        try:
            self.report(Observed(began, self.context.executor.observe()))
        except Unavailable as error:
            log.warning("daemon.blind", problem=str(error))
            return False
        return True

    def _needed(self) -> bool:
        return bool(self.entries) or self._sweep

    def _tend(self) -> None:
        """Look after the directories of what runs, not after every look: looks may come thick and fast."""
        now_s = self.context.clock.monotonic()
        if now_s - self._tended_s < self.context.observe_every_s:
            return
        for entry in self._lent():
            state = entry.row.job.state
            if isinstance(state, Running | Stopping):
                self.context.attempt_service.limit_log(entry.row, state.attempt)
        self._tended_s = now_s

    def _lent(self) -> list[TrackedJob]:
        """Return the jobs that hold anything; from any thread."""
        return [entry for job_id in list(self.holding) if (entry := self.entries.get(job_id)) is not None]

    # --- comparing, with the turn

    def compare(self, observed: Observed) -> Iterator[Finding]:
        """Yield what a look means for the jobs that hold devices, and for what no job expects."""
        found = {(seen.key.job_id, seen.key.attempt): seen for seen in observed.found}
        for entry in self._lent():
            state = entry.row.job.state
            if isinstance(state, Allocated):
                seen = found.pop((entry.row.job.id, state.attempt.number), None)
                yield from self._compare_one(entry, state, seen, observed)
        self._strays = {seen.key: self._strays.get(seen.key, 0) + 1 for seen in found.values()}
        if any(looks < SURE for looks in self._strays.values()):
            self.sweep()  # one look may be older than what is recorded
        yield from self._leftovers(found.values())

    def _compare_one(
        self, entry: TrackedJob, state: Allocated, seen: Observation | None, observed: Observed
    ) -> Iterator[Finding]:
        """Hold one attempt against what was seen; only evidence ends it."""
        if self.context.work_queue.busy(entry.row.job.id):
            return
        match seen:
            case Gone():
                yield AttemptEnded(entry, state.attempt, seen)
            case Alive():
                entry.misses = 0
                if isinstance(state, Stopping) and state.killed:
                    yield StillAlive(entry)
            case Created() | None if (
                isinstance(state, Running | Stopping) and entry.since.monotonic < observed.began
            ):
                entry.misses += 1
                if entry.misses >= MISSES:
                    yield AttemptEnded(
                        entry,
                        state.attempt,
                        Gone(self.context.key(entry.row.job.id, state.attempt.number), None),
                    )
            case _:
                pass

    def _leftovers(self, found: Iterable[Observation]) -> Iterator[Finding]:
        """Yield what has ended and is recorded; leave alone what is alive and not ours to judge."""
        for seen in found:
            key = seen.key
            if not isinstance(seen, Alive):
                if not self.context.work_queue.busy(key.job_id):
                    yield Orphan(key)
            elif self._strays[key] == SURE:  # once, and not for a look that is only older than the record
                log.warning("daemon.unknown_attempt_alive", job_id=key.job_id, attempt=key.attempt)
