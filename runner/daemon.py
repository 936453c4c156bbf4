"""The loop: observe, advance, record, act.

Level-triggered and crash-only.  One thread owns the store and calls ``advance``; the engine,
the clock and HTTP calls only put messages on its queue.  A command that could not be carried
out, because the engine does not answer, is given again from the state that implies it.  A
daemon killed at any instruction starts again, adopts what still runs, and loses nothing.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Final, Protocol, TypeAlias, TypeVar

import structlog

from runner.core.lifecycle import (
    Allocation,
    Attempt,
    Command,
    Event,
    Exited,
    Finished,
    IllegalTransition,
    ImageFailed,
    ImageMissing,
    ImageReady,
    Job,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Placed,
    PrepareImage,
    Queued,
    Remove,
    Running,
    Starting,
    Stopping,
    Terminate,
    advance,
    due,
    implied,
)
from runner.core.placement import Free, Lend, Needs, Wait, Waiting, place
from runner.core.retry import Ended
from runner.errors import Refused, Unavailable, UsageError
from runner.ports import (
    Alive,
    BuildFailed,
    Clock,
    Created,
    Device,
    Executor,
    Gone,
    ImageGone,
    JobRow,
    Key,
    LaunchRefused,
    LaunchRequest,
    Observation,
    Store,
)

log = structlog.get_logger()

T = TypeVar("T")


class Lanes(Protocol):
    """Work for other threads: in order per key, side by side between keys."""

    def put(self, key: str, work: Callable[[], None]) -> None: ...

    def busy(self, key: str) -> bool: ...

    def close(self) -> None: ...


RETRY_S: Final = 2.0  # between two tries of a command that the engine did not answer
SURE: Final = 3  # looks in a row that must see an unknown attempt before it is worth a warning
MISSES: Final = 2  # looks in a row that must miss an attempt before it counts as vanished


class Workshop(Protocol):
    """What the daemon asks others to do with a job: slow, blocking, in lanes of their own."""

    def needs(self, row: JobRow) -> Needs: ...

    def prepare_image(self, row: JobRow) -> str:
        """Return the id of the job's image, building it if need be; may raise BuildFailed, Unavailable."""

    def request(
        self, row: JobRow, attempt: Attempt, image: str, devices: tuple[Device, ...]
    ) -> LaunchRequest:
        """Return what to launch, with the attempt's directory made; may raise Unavailable, Refused."""

    def let_go(self, row: JobRow) -> None:
        """Take back what was held for a launch alone; the next try holds it anew."""

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> Ended:
        """Return the evidence about an attempt that has ended."""

    def tend(self, row: JobRow, attempt: Attempt) -> None:
        """Look after a running attempt: keep its log within the quota."""

    def retire(self, row: JobRow) -> None:
        """Take back what a job must not keep once it has ended."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What this daemon lends."""

    cpus: float
    memory_bytes: int
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """The parts of the daemon, made elsewhere."""

    store: Store
    executor: Executor
    workshop: Workshop
    clock: Clock
    capacity: Capacity
    lanes: Lanes
    builds: Lanes  # of their own: whoever waits for an image must not keep launches waiting
    observe_every_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at the executor, with the time when it began."""

    began: datetime
    found: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Happened:
    job_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Asked:
    """A call from another thread, to be answered on the loop's."""

    work: Callable[[], None]


Message: TypeAlias = Observed | Happened | Asked


@dataclass(slots=True)
class Entry:
    """A job that is not finished, with what only this process knows about it."""

    row: JobRow
    why: str = ""
    misses: int = 0
    again_at: float | None = None  # monotonic; when to give the implied commands again
    examined: int = 0  # attempt whose end is being looked into
    imageless: int = 0  # launches in a row that did not find the image


@dataclass(slots=True)
class Daemon:
    """Everything that happens to jobs, in one thread."""

    world: World
    entries: dict[str, Entry] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    _queue: SimpleQueue[Message] = field(default_factory=SimpleQueue)
    _stop: Flag = field(default_factory=Flag)
    _look: Flag = field(default_factory=Flag)
    _deferred: list[Happened] = field(default_factory=list)
    _strays: dict[Key, int] = field(default_factory=dict)
    _sweep: bool = True  # something may be left over even when no job is unfinished
    _threads: list[Thread] = field(default_factory=list)

    # --- life

    def start(self) -> None:
        """Adopt what is unfinished and begin to look."""
        self.adopt()
        for target in (self._loop, self._observe):
            thread = Thread(target=target, name=target.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)

    def adopt(self) -> None:
        """Take over every unfinished job, and give again the commands that its state implies."""
        for row in self.world.store.unfinished():
            self.entries[row.job.id] = Entry(row)
            self._act_all(row.job, implied(row.job))
        log.info("daemon.started", unfinished=len(self.entries), executor=self.world.executor.kind)

    def stop(self) -> None:
        """Leave; attempts go on, and the next daemon adopts them."""
        self._stop.set()
        self._look.set()
        self._queue.put(Asked(lambda: None))
        for thread in self._threads:
            thread.join(timeout=10)
        self.world.lanes.close()
        self.world.builds.close()

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
        self.world.store.add(row, text, token)
        self.entries[row.job.id] = Entry(row)
        self._act_all(row.job, implied(row.job))
        self.changed()

    def happen(self, row: JobRow, event: Event) -> JobRow:
        """Bring an event about that a person asked for, and return the job after it.

        Raises:
            Refused: the job is in no state for it.
        """
        entry = self.entries.get(row.job.id) or Entry(row)
        try:
            self._happened(entry, event)
        except IllegalTransition as error:
            state = entry.row.job.state.kind
            raise Refused(
                f"job {row.job.id}: is {state}; {event.kind.replace('_', ' ')} has no effect"
            ) from error
        return entry.row

    def signal(self, row: JobRow, number: int) -> None:
        """Send a signal to the running attempt of a job.

        Raises:
            Refused: nothing of it is running.
        """
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"job {row.job.id}: is {state.kind}; there is nothing to send a signal to")
        key = self._key(row.job.id, state.attempt.number)
        self._put(row.job.id, lambda: self.world.executor.signal(key, number))

    def why(self, job_id: str) -> str:
        """Return what an unfinished job waits for; empty when it waits for nothing."""
        entry = self.entries.get(job_id)
        return entry.why if entry else ""

    # --- the loop

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn(self._patience())
            except Exception:  # the one broad except of the daemon: it must outlive any single mistake
                log.exception("daemon.turn_failed")
                self._stop.wait(1)

    def turn(self, patience_s: float) -> None:
        """Take in what has arrived, waiting a while for the first of it, and what time has brought about."""
        for message in self._messages(patience_s):
            match message:
                case Observed():
                    self._observed(message)
                case Happened():
                    self._report(message)
                case Asked(work):
                    work()
        self._tick()

    def _messages(self, patience_s: float) -> list[Message]:
        """Wait for one message, then take what else is there."""
        try:
            messages = [self._queue.get(timeout=patience_s)]
            while not self._queue.empty():
                messages.append(self._queue.get())
        except Empty:
            return []
        return messages

    def _patience(self) -> float:
        return 0.5 if self.entries else 60.0

    def _tick(self) -> None:
        """Let time alone bring about what it does: deadlines, retries, starts."""
        now, monotonic = self.world.clock.now(), self.world.clock.monotonic()
        self._catch_up()
        for entry in list(self.entries.values()):
            event = due(entry.row.job, now)
            if event is not None:
                self._happened(entry, event)
            if entry.again_at is not None and monotonic >= entry.again_at:
                entry.again_at = None
                self._act_all(entry.row.job, implied(entry.row.job))
        self._place(now)

    def _report(self, news: Happened) -> None:
        """Take in what a lane found out; late news about a job that has moved on is no error."""
        entry = self.entries.get(news.job_id)
        if entry is None:
            return
        try:
            self._happened(entry, news.event)
        except IllegalTransition as error:
            log.info("daemon.late_event", job_id=news.job_id, problem=str(error))
        except Unavailable as error:
            log.warning("daemon.cannot_record", job_id=news.job_id, problem=str(error))
            entry.why = str(error)
            self._deferred.append(news)

    def _catch_up(self) -> None:
        """Record what could not be recorded before: nothing that happened is forgotten."""
        deferred, self._deferred = self._deferred, []
        for news in deferred:
            self._report(news)

    def _happened(self, entry: Entry, event: Event) -> None:
        before = entry.row.job
        after, commands = advance(before, event)
        self.world.store.record(before, after, event)
        entry.row = _with_job(entry.row, after)
        entry.why, entry.misses, entry.again_at = "", 0, None
        entry.imageless += isinstance(event, ImageMissing)
        if isinstance(event, Launched):
            entry.imageless = 0
        if isinstance(after.state, Finished):
            self.entries.pop(after.id, None)
            self._put(after.id, lambda: self.world.workshop.retire(entry.row))
        else:
            self.entries[after.id] = entry
        log.info("job.advanced", job_id=after.id, event_kind=event.kind, state=after.state.kind)
        self.changed()
        self._act_all(after, commands)

    # --- placing

    def _place(self, now: datetime) -> None:
        queue = [
            self._waiting(e.row, e.row.job.state) for e in self.entries.values() if _is_queued(e.row.job)
        ]
        if not queue:
            return
        for answer in place(queue, self._free(), now):
            entry = self.entries[answer.job_id]
            match answer:
                case Lend(_, devices):
                    self._happened(entry, Placed(now, Allocation(devices)))
                case Wait(_, why):
                    entry.why = why

    def _waiting(self, row: JobRow, state: object) -> Waiting:
        not_before = state.not_before if isinstance(state, Queued) else None
        return Waiting(row.job.id, self.world.workshop.needs(row), row.priority, row.submitted_at, not_before)

    def _free(self) -> Free:
        """Return what is not lent: lending is nothing but the states of the jobs."""
        capacity = self.world.capacity
        lent = [
            e.row for e in self.entries.values() if isinstance(e.row.job.state, Starting | Running | Stopping)
        ]
        needs = [self.world.workshop.needs(row) for row in lent]
        used = {uuid for row in lent for uuid in _devices(row.job)}
        return Free(
            cpus=capacity.cpus - sum(n.cpus for n in needs),
            memory_bytes=capacity.memory_bytes - sum(n.memory_bytes for n in needs),
            devices=tuple((d.uuid, d.vendor) for d in capacity.devices if d.uuid not in used),
        )

    # --- acting, in lanes

    def _act_all(self, job: Job, commands: tuple[Command, ...]) -> None:
        for command in commands:
            row = self.entries[job.id].row if job.id in self.entries else None
            work = partial(self._carry_out, job.id, row, command)
            self._put(
                job.id, work, self.world.builds if isinstance(command, PrepareImage) else self.world.lanes
            )
        if not isinstance(job.state, Queued | Finished):
            self._look.set()

    def _put(self, job_id: str, work: Callable[[], None], lanes: Lanes | None = None) -> None:
        """Queue work for another thread; whatever it raises, the loop hears of it."""

        def guarded() -> None:
            try:
                work()
            except Unavailable as error:
                self._queue.put(Asked(partial(self._later, job_id, str(error))))
            except Exception as error:  # the outermost frame of a lane's thread
                log.exception("daemon.work_failed", job_id=job_id)
                self._queue.put(Asked(partial(self._later, job_id, f"{type(error).__name__}: {error}")))

        (lanes or self.world.lanes).put(job_id, guarded)

    def _later(self, job_id: str, why: str) -> None:
        """Remember to try again: a blip is not a death."""
        self._sweep = True
        entry = self.entries.get(job_id)
        if entry is None:
            return
        if entry.why != why:
            log.warning("daemon.waiting", job_id=job_id, why=why)
        entry.why, entry.examined = why, 0
        entry.again_at = self.world.clock.monotonic() + RETRY_S

    def _carry_out(self, job_id: str, row: JobRow | None, command: Command) -> None:
        match command:
            case PrepareImage() if row is not None:
                self._happen_later(job_id, self._prepared(row))
            case Launch(attempt, image, allocation) if row is not None:
                self._happen_later(job_id, self._launched(row, attempt, image, allocation))
            case Terminate(number):
                self.world.executor.signal(self._key(job_id, number), 15)
            case Kill(number):
                self.world.executor.signal(self._key(job_id, number), 9)
            case Remove(number):
                self.world.executor.remove(self._key(job_id, number))
            case _:
                log.warning("daemon.command_without_job", job_id=job_id, command=type(command).__name__)

    def _prepared(self, row: JobRow) -> Event:
        try:
            image = self.world.workshop.prepare_image(row)
        except BuildFailed as error:
            return ImageFailed(self.world.clock.now(), str(error))
        return ImageReady(self.world.clock.now(), image)

    def _launched(self, row: JobRow, attempt: Attempt, image: str, allocation: Allocation) -> Event:
        devices = tuple(d for d in self.world.capacity.devices if d.uuid in allocation.devices)
        try:
            self.world.executor.launch(self.world.workshop.request(row, attempt, image, devices))
        except ImageGone:
            return self._imageless(row.job.id, image)
        except (LaunchRefused, Refused, UsageError) as error:
            return LaunchFailed(self.world.clock.now(), str(error))
        finally:
            self.world.workshop.let_go(row)
        return Launched(self.world.clock.now())

    def _imageless(self, job_id: str, image: str) -> Event:
        """Prepare a missing image again, once: one that is missing again will not appear by itself."""
        now, entry = self.world.clock.now(), self.entries.get(job_id)
        if entry is None or entry.imageless == 0:
            return ImageMissing(now)
        return LaunchFailed(now, f"image {image}: is not in the engine, although it was prepared")

    def _happen_later(self, job_id: str, event: Event) -> None:
        self._queue.put(Happened(job_id, event))

    def _key(self, job_id: str, attempt: int) -> Key:
        return Key(self.world.store.instance, job_id, attempt)

    # --- observing

    def _observe(self) -> None:
        """Look at the executor: soon after a hint, and every now and then without one."""
        close = self.world.executor.watch(self._look.set)
        while not self._stop.is_set():
            self._look.wait(self.world.observe_every_s if self.entries or self._sweep else 60.0)
            self._look.clear()
            if (self.entries or self._sweep) and not self._stop.is_set():
                self._sweep = False
                if not self.look():
                    self._sweep = True
                    self._stop.wait(RETRY_S)
                self._tend()
        close()

    def _tend(self) -> None:
        for entry in list(self.entries.values()):
            state = entry.row.job.state
            if isinstance(state, Running | Stopping):
                self.world.workshop.tend(entry.row, state.attempt)

    def look(self) -> bool:
        """Observe once, leave what was seen to the loop, and return whether the executor answered."""
        began = self.world.clock.now()
        try:
            self._queue.put(Observed(began, self.world.executor.observe()))
        except Unavailable as error:
            log.warning("daemon.blind", problem=str(error))
            return False
        return True

    def _observed(self, observed: Observed) -> None:
        found = {(o.key.job_id, o.key.attempt): o for o in observed.found}
        for entry in list(self.entries.values()):
            state = entry.row.job.state
            if isinstance(state, Starting | Running | Stopping):
                self._compare(
                    entry, state.attempt, found.pop((entry.row.job.id, state.attempt.number), None), observed
                )
        self._strays = {key: self._strays.get(key, 0) + 1 for key in (o.key for o in found.values())}
        if any(count < SURE for count in self._strays.values()):
            self._sweep = True  # look again: one look may be older than what is recorded
        for stray in found.values():
            self._stray(stray)

    def _compare(self, entry: Entry, attempt: Attempt, seen: Observation | None, observed: Observed) -> None:
        """Hold one attempt against what was seen; only evidence ends it."""
        if self.world.lanes.busy(entry.row.job.id):
            return
        state = entry.row.job.state
        match seen:
            case Gone():
                self._examine(entry, attempt, seen)
            case Alive():
                entry.misses = 0
                if isinstance(state, Stopping) and state.killed:
                    self._act_all(entry.row.job, implied(entry.row.job))
            case Created() | None if isinstance(state, Running | Stopping) and state.since < observed.began:
                entry.misses += 1
                if entry.misses >= MISSES:
                    self._examine(entry, attempt, Gone(self._key(entry.row.job.id, attempt.number), None))
            case _:
                pass

    def _examine(self, entry: Entry, attempt: Attempt, gone: Gone) -> None:
        """Look into the end of an attempt, once, in its lane: verifying checkpoints takes time."""
        if entry.examined >= attempt.number:
            return
        entry.examined = attempt.number
        row = entry.row

        def work() -> None:
            ended = self.world.workshop.examine(row, attempt, gone)
            self._happen_later(row.job.id, Exited(self.world.clock.now(), attempt.number, ended))

        self._put(row.job.id, work)

    def _stray(self, seen: Observation) -> None:
        """Clear away what has ended and is recorded; leave alone what is alive and not ours to judge."""
        key = seen.key
        if not isinstance(seen, Alive):
            if not self.world.lanes.busy(key.job_id):
                self._put(key.job_id, lambda: self.world.executor.remove(key))
        elif self._strays[key] == SURE:  # once, and not for a look that is only older than the record
            log.warning("daemon.unknown_attempt_alive", job_id=key.job_id, attempt=key.attempt)


def _with_job(row: JobRow, job: Job) -> JobRow:
    return JobRow(job, row.name, row.owner, row.submitted_at, row.priority, row.revision, row.labels)


def _is_queued(job: Job) -> bool:
    return isinstance(job.state, Queued)


def _devices(job: Job) -> tuple[str, ...]:
    return job.state.allocation.devices if isinstance(job.state, Starting | Running | Stopping) else ()
