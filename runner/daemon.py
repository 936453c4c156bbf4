"""The loop: observe, advance, record, act.

Level-triggered and crash-only.  One thread owns the store and calls ``advance``; the engine,
the clock and HTTP calls only put messages on its queue.  A command that could not be carried
out, because the engine does not answer, is given again from the state that implies it.  A
daemon killed at any instruction starts again, adopts what still runs, and loses nothing.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import TypeVar

import structlog

from runner.acting import carry_out
from runner.core.job import (
    Allocation,
    Attempt,
    Command,
    Event,
    Finished,
    ImageMissing,
    Launched,
    Placed,
    PrepareImage,
    Preparing,
    Queued,
    RevisionApplied,
    Running,
    Stopping,
)
from runner.core.lifecycle import IllegalTransition, advance, due, implied
from runner.core.placement import Lend, Wait, Waiting, place
from runner.core.queue.snapshot import Device as QueueDevice
from runner.core.queue.snapshot import Host as QueueHost
from runner.core.queue.snapshot import Snapshot
from runner.core.queue.snapshot import Waiting as QueueWaiting
from runner.core.story import refusal
from runner.deciding import judged, looked_into
from runner.errors import Refused, Unavailable
from runner.lending import as_begun, free, worded
from runner.observer import IDLE_S, Leftover, Observer, Over, Undead
from runner.patience import Retries, delay_s, in_words
from runner.ports import DecisionRow, Gone, JobRow
from runner.watching import Watcher, oversee
from runner.world import (
    Asked,
    Entry,
    Examined,
    Happened,
    Lanes,
    Message,
    Moment,
    News,
    Observed,
    Unstarted,
    Watched,
    World,
)

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(slots=True)
class Daemon:
    """Everything that happens to jobs, in one thread."""

    world: World
    entries: dict[str, Entry] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    _queue: SimpleQueue[Message] = field(default_factory=SimpleQueue)
    _stop: Flag = field(default_factory=Flag)
    _deferred: list[News] = field(default_factory=list)
    _threads: list[Thread] = field(default_factory=list)
    _retries: Retries = field(default_factory=Retries)
    _observer: Observer = field(init=False)
    _watcher: Watcher = field(init=False)

    def __post_init__(self) -> None:
        self._observer = Observer(self.world, self.entries, self._queue.put)
        self._watcher = Watcher(self.world, self.entries, self._watched)

    # --- life

    def start(self) -> None:
        """Adopt what is unfinished and begin to look."""
        self.adopt()
        for target in (self._loop, self._observer.run, self._watcher.run):
            thread = Thread(target=target, name=target.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def adopt(self) -> None:
        """Take over every unfinished job, and give again the commands that its state implies."""
        for row in self.world.store.unfinished():
            self._enter(row)
        log.info("daemon.started", unfinished=len(self.entries), executor=self.world.executor.kind)

    def _enter(self, row: JobRow) -> None:
        entry = self.entries[row.job.id] = Entry(row, self.world.moment())
        self._act_all(entry, implied(row.job))

    def stop(self) -> None:
        """Leave; attempts go on, and the next daemon adopts them."""
        self._stop.set()
        self._observer.stop()
        self._watcher.stop()
        self._queue.put(Asked(lambda: None))
        for thread in self._threads:
            thread.join(timeout=10)
        self.world.lanes.close()
        self.world.builds.close()
        self.world.workshop.close()

    def ask(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the loop's thread and return what it returns or raises."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001  (handed to whoever asked, whatever it is)
                answer.set_exception(error)

        self._queue.put(Asked(run))
        return answer.result(timeout=30)

    # --- what others ask for, on the loop's thread

    def submit(self, row: JobRow, text: str, token: str | None = None) -> None:
        self.submit_all((row,), (text,), token)

    def submit_all(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Accept jobs that belong together: all of them, or none."""
        self.world.store.add_all(rows, texts, token)
        for row in rows:
            self._enter(row)
        self.changed()

    def picture(self) -> Snapshot:
        """Return the queue as far as admission needs it: engineer A's takes the place of this one."""
        capacity = self.world.capacity
        lendable = tuple(
            QueueDevice(d.uuid, d.name, d.vendor, d.name, d.memory_bytes or 0) for d in capacity.devices
        )
        waiting = tuple(
            QueueWaiting(e.row.job.id, e.row.owner.name, self.world.workshop.needs(e.row), 0.0)
            for e in self.entries.values()
            if isinstance(e.row.job.state, Preparing | Queued)
        )
        host = QueueHost("here", capacity.cpus, capacity.memory_bytes, lendable)
        return Snapshot(self.world.clock.now().timestamp(), (host,), waiting)

    def happen(self, row: JobRow, event: Event, decision: DecisionRow | None = None) -> JobRow:
        """Bring an event about that a person asked for, and return the job after it.

        Raises:
            Refused: the job is in no state for it.
        """
        entry = self.entries.get(row.job.id) or Entry(row, self.world.moment())
        try:
            self._happened(entry, event, decision)
        except IllegalTransition as error:
            raise Refused(f"job {row.job.id}: {refusal(entry.row.job, event)}") from error
        return entry.row

    def signal(self, row: JobRow, number: int) -> None:
        """Send a signal to the running attempt of a job.

        Raises:
            Refused: nothing of it is running.
        """
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"job {row.job.id}: is {state.kind}; there is nothing to send a signal to")
        key = self.world.key(row.job.id, state.attempt.number)
        self._put(row.job.id, lambda: self.world.executor.signal(key, number))

    def why(self, job_id: str) -> str:
        """Return what an unfinished job waits for; empty when it waits for nothing."""
        entry = self.entries.get(job_id)
        return entry.why if entry else ""

    # --- the loop

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn(0.5 if self.entries else IDLE_S)
            except Exception:  # the one broad except of the daemon: it must outlive any single mistake
                log.exception("daemon.turn_failed")
                self._stop.wait(1)

    def turn(self, patience_s: float) -> None:
        """Take in what has arrived, waiting a while for the first of it, and what time has brought about."""
        for message in self._messages(patience_s):
            try:
                self._take(message)
            except Exception as error:  # a mistake about one message must not lose those behind it
                log.exception("daemon.message_failed", message_kind=type(message).__name__)
                if isinstance(message, Examined | Unstarted):
                    self._mistaken(message.job_id, in_words(error))  # an end is looked into again
        self._tick()

    def _take(self, message: Message) -> None:
        match message:
            case Observed():
                self._observed(message)
            case Happened() | Examined() | Unstarted():
                self._report(message)
            case Asked(work):
                work()

    def _messages(self, patience_s: float) -> list[Message]:
        """Wait for one message, then take what else is there."""
        try:
            messages = [self._queue.get(timeout=patience_s)]
            while not self._queue.empty():
                messages.append(self._queue.get())
        except Empty:
            return []
        return messages

    def _tick(self) -> None:
        """Let time alone bring about what it does: deadlines, retries, starts."""
        now = self.world.moment()
        self._catch_up()
        for entry in list(self.entries.values()):
            event = due(entry.row.job, entry.since.later(now.monotonic))
            if event is not None:
                self._happened(entry, replace(event, at=now.at))
            if self._retries.begin(entry.row.job.id, now.monotonic):
                self._act_all(entry, implied(entry.row.job))
        self._place(now)

    def _report(self, news: News) -> None:
        """Take in what a lane found out; late news about a job that has moved on is no error."""
        entry = self.entries.get(news.job_id)
        if entry is None:
            return
        try:
            self._take_in(entry, news)
        except IllegalTransition as error:
            log.info("daemon.late_event", job_id=news.job_id, problem=str(error))
        except Unavailable as error:
            log.warning("daemon.cannot_record", job_id=news.job_id, problem=str(error))
            entry.why = str(error)
            self._deferred.append(news)

    def _take_in(self, entry: Entry, news: News) -> None:
        """Let what is news happen; about an end the policy is asked first."""
        if isinstance(news, Happened):
            self._happened(entry, news.event)
        elif (judgement := judged(self.world, entry.row, news)) is None:
            log.info("daemon.late_end", job_id=news.job_id, attempt=news.attempt)
        else:
            self._happened(entry, *judgement)

    def _catch_up(self) -> None:
        """Record what could not be recorded before: nothing that happened is forgotten."""
        deferred, self._deferred = self._deferred, []
        for news in deferred:
            self._report(news)

    def _happened(self, entry: Entry, event: Event, decision: DecisionRow | None = None) -> None:
        before = entry.row.job
        after, commands = advance(before, event)
        self.world.store.record(before, after, event, decision)
        revised = self.world.store.get(after.id) if isinstance(event, RevisionApplied) else None
        entry.row = revised or replace(entry.row, job=after)
        entry.why, entry.misses = "", 0
        if after.state.since != before.state.since:
            entry.since = self.world.moment()
        self._retries.forget(after.id)
        entry.imageless += isinstance(event, ImageMissing)
        if isinstance(event, Launched):
            entry.imageless = 0
        if isinstance(after.state, Finished):
            self.entries.pop(after.id, None)
            self._put(after.id, lambda: self.world.workshop.retire(entry.row))
        else:
            self.entries[after.id] = entry
        if decision is not None:
            self._put(after.id, partial(self.world.workshop.keep, entry.row, decision))
        log.info("job.advanced", job_id=after.id, event_kind=event.kind, state=after.state.kind)
        self.changed()
        self._act_all(entry, commands)

    # --- placing

    def _place(self, now: Moment) -> None:
        queue = [
            self._waiting(entry, state, now)
            for entry in self.entries.values()
            if isinstance(state := entry.row.job.state, Queued)
        ]
        if not queue:
            return
        for answer in place(queue, free(self.world, [entry.row for entry in self.entries.values()]), now.at):
            entry = self.entries[answer.job_id]
            match answer:
                case Lend(_, devices):
                    self._happened(entry, Placed(now.at, Allocation(devices), self.world.boot))
                case Wait(_, why):
                    entry.why = worded(self.world, why)

    def _waiting(self, entry: Entry, state: Queued, now: Moment) -> Waiting:
        row, not_before = entry.row, state.not_before
        if not_before is not None:  # a backoff keeps its length when the time of day is set
            not_before += now.at - entry.since.later(now.monotonic)
        needs = replace(self.world.workshop.needs(row), avoid=frozenset(row.job.turned.avoid))
        return Waiting(row.job.id, needs, row.priority, row.submitted_at, not_before)

    # --- acting, in lanes

    def _act_all(self, entry: Entry, commands: tuple[Command, ...]) -> None:
        job = entry.row.job
        for command in commands:
            work = partial(self._carry_out, entry.row, command, entry.imageless)
            self._put(job.id, work, self.world.builds if isinstance(command, PrepareImage) else None)
        if not isinstance(job.state, Queued | Finished):
            self._observer.hint()

    def _put(self, job_id: str, work: Callable[[], None], lanes: Lanes | None = None) -> None:
        """Queue work for another thread; whatever it raises, the loop hears of it."""

        def guarded() -> None:
            try:
                work()
            except Unavailable as error:
                self._queue.put(Asked(partial(self._unanswered, job_id, str(error))))
            except Exception as error:  # the outermost frame of a lane's thread
                log.exception("daemon.work_failed", job_id=job_id)
                self._queue.put(Asked(partial(self._mistaken, job_id, in_words(error))))
            else:
                if job_id in self._retries:
                    self._queue.put(Asked(partial(self._worked, job_id)))

        (lanes or self.world.lanes).put(job_id, guarded)

    def _unanswered(self, job_id: str, why: str) -> None:
        """Remember to try again: a blip is not a death."""
        self._retries.unanswered(job_id, self.world.clock.monotonic())
        self._later(job_id, why)

    def _mistaken(self, job_id: str, why: str) -> None:
        """Remember to try again, ever later: what nobody expected will probably happen again."""
        known = self._retries.mistaken(job_id, self.world.clock.monotonic())
        again = f"tried again after {delay_s(known.mistakes):g} s"
        often = f", {known.mistakes} times in a row" if known.mistakes > 1 else ""
        self._later(job_id, f"{why} ({again}{often})")

    def _later(self, job_id: str, why: str) -> None:
        self._observer.sweep()
        entry = self.entries.get(job_id)
        if entry is None:
            return
        if entry.why != why:
            log.warning("daemon.waiting", job_id=job_id, why=why)
        entry.why, entry.examined = why, 0

    def _worked(self, job_id: str) -> None:
        if self._retries.worked(job_id, self.world.clock.monotonic()) and job_id in self.entries:
            self.entries[job_id].why = ""

    def _carry_out(self, row: JobRow, command: Command, imageless: int) -> None:
        found = carry_out(self.world, row, command, imageless)
        if isinstance(found, Unstarted):
            self._queue.put(found)
        elif found is not None:
            self._queue.put(Happened(row.job.id, found))

    # --- what was seen

    def look(self) -> bool:
        """Observe once, leave what was seen to the loop, and return whether the executor answered."""
        return self._observer.look()

    def watch(self) -> None:
        """Look at what runs once, and leave what was seen to the loop."""
        self._watcher.look()

    def _watched(self, news: Watched) -> None:
        self._queue.put(Asked(partial(oversee, self.world, self.entries, news, self._happened)))

    def _observed(self, observed: Observed) -> None:
        now = self.world.clock.monotonic()
        for finding in self._observer.compare(observed):
            if self._retries.waits(finding.job_id, now):
                self._observer.sweep()  # it will have to be seen again
                continue
            match finding:
                case Over(entry, attempt, gone):
                    self._examine(entry, attempt, gone)
                case Undead(entry):
                    self._act_all(entry, implied(entry.row.job))
                case Leftover(key):  # exhaustive
                    self._put(key.job_id, partial(self.world.executor.remove, key))

    def _examine(self, entry: Entry, attempt: Attempt, gone: Gone) -> None:
        """Look into the end of an attempt, once, in its lane: verifying checkpoints takes time."""
        if entry.examined >= attempt.number:
            return
        entry.examined = attempt.number
        row = as_begun(self.world, entry.row)

        def work() -> None:
            findings = looked_into(self.world, row, attempt, gone)
            self._queue.put(Examined(row.job.id, attempt.number, self.world.clock.now(), findings))

        self._put(row.job.id, work)
