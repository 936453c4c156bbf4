"""The loop: observe, advance, record, act.

Level-triggered and crash-only.  Whoever has the turn, the loop or somebody who asks, is the only
one to call ``advance`` and to write the store; the engine and the clock only put messages on a queue.
A command that could not be carried out is given again from the state that implies it.  A daemon killed
at any instruction loses nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import structlog

from runner.base.errors import Refused, Unavailable
from runner.base.retry import PLAN_WITHIN_S, RetryTable, delay_s, describe_error
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.commands import execute
from runner.control.context import Context, Instant, KeyedWork, TrackedJob
from runner.control.decisions import decide_exit, examine_exit
from runner.control.exclusive import ExclusiveSection
from runner.control.inbox import Inbox
from runner.control.messages import (
    Call,
    EventReceived,
    Examined,
    LaunchRefusal,
    Message,
    News,
    Observed,
    Probed,
)
from runner.control.observer import IDLE_S, AttemptEnded, Observer, Orphan, StillAlive
from runner.control.schedulable import as_started
from runner.control.scheduler import Scheduler
from runner.control.transitions import (
    Transition,
    batches,
    record_transitions,
    requested_transition,
    transition,
)
from runner.control.watchdog import Watchdog, act_on_findings
from runner.core.job.attempt import Attempt
from runner.core.job.commands import Command, PrepareImage
from runner.core.job.events import Event, ImageMissing, Launched, RevisionApplied
from runner.core.job.lifecycle import IllegalTransition, due_event, implied_commands
from runner.core.job.states import Finished, Running, Stopping
from runner.core.ports.executor import Gone
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.scheduler.snapshot import Snapshot

log = structlog.get_logger()

T = TypeVar("T")

STOP_S: Final = 10.0
"""Longest wait for each thread when the daemon leaves."""


@dataclass(slots=True, repr=False)  # a traceback that shows it should not show the whole world
class ControlLoop:
    """Everything that happens to jobs, one thing after the other."""

    context: Context
    entries: dict[str, TrackedJob] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None
    ticks: list[Callable[[Instant], None]] = field(default_factory=list)  # what else time brings about
    _news: Inbox = field(default_factory=Inbox)
    _deferred: list[News] = field(default_factory=list)
    _retries: RetryTable = field(default_factory=RetryTable)
    _plan_by_s: float = 0.0
    queue: Scheduler = field(init=False)
    exclusive: ExclusiveSection = field(init=False)
    _observer: Observer = field(init=False)
    _watcher: Watchdog = field(init=False)
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self.queue = Scheduler(self.context, self.entries)
        self.exclusive = ExclusiveSection(self._news, self.context.work_queue, self.context.build_queue)
        held, news = self.queue.running, self._news
        self._observer = Observer(self.context, self.entries, held, news.put, news.calm)
        self._watcher = Watchdog(self.context, self.entries, self._news.put)
        self._thread = PeriodicThread("control-loop", 0.0, self._turn, begin_at_once=True)

    def start(self) -> None:
        """Adopt what is unfinished and begin to look."""
        self.adopt()
        for part in (self._thread, self._observer, self._watcher.thread):
            part.start()

    def adopt(self) -> None:
        """Take over every unfinished job, and give again the commands that its state implies."""
        for row in self.context.store.unfinished():
            self._begin(self._known(row))
        log.info("daemon.started", unfinished=len(self.entries), executor=self.context.executor.kind)

    def _known(self, row: JobRow) -> TrackedJob:
        entry = self.entries[row.job.id] = TrackedJob(row, self.context.moment())
        self.queue.know(entry)
        return entry

    def _begin(self, entry: TrackedJob) -> None:
        self._act_all(entry, implied_commands(entry.row.job))

    def stop(self) -> None:
        """Leave; attempts go on, and the next daemon adopts them."""
        parts = (self._thread, self._observer, self._watcher.thread)
        for part in parts:
            part.stop()
        self.wake()
        for part in parts:
            part.join(STOP_S)
        for user in (self.context.work_queue, self.context.build_queue, self.context.attempt_service):
            user.close()

    def ask(self, work: Callable[[], T]) -> T:
        """Do ``work`` between two turns of the loop and return what it returns or raises."""
        return self.exclusive.ask(work)

    def wake(self) -> None:
        """Let the loop look at everything again, soon; from any thread."""
        self.exclusive.wake()

    # --- what others ask for, with the turn
    def submit_all(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Accept jobs that belong together, all or none; the first carries the token of the submission."""
        self.context.store.add_all(rows, texts, token)
        for row in rows:  # whoever asked is answered before anything is begun
            self._news.put(Call(partial(self._begin, self._known(row))))
        self.changed()

    def happen(self, row: JobRow, event: Event, decision: DecisionRow | None = None) -> JobRow:
        """Bring an event about that a person asked for, and return the job after it; see ``happen_all``."""
        return self.happen_all((row,), event, decision)[0]

    def happen_all(
        self, rows: Iterable[JobRow], event: Event, decision: DecisionRow | None = None
    ) -> tuple[JobRow, ...]:
        """Bring an event about in several jobs, together or in none, and return them after it.

        Raises:
            Refused: one of them is in no state for it.
        """
        entries = [self.entries.get(row.job.id) or TrackedJob(row, self.context.moment()) for row in rows]
        self._all_happened([requested_transition(entry, event, decision) for entry in entries])
        return tuple(entry.row for entry in entries)

    def signal(self, row: JobRow, number: int) -> None:
        """Send a signal to the running attempt of a job; it is ``Refused`` if nothing of it is running."""
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"job {row.job.id}: is {state.kind}; there is nothing to send a signal to")
        key = self.context.key(row.job.id, state.attempt.number)
        self._put(row.job.id, lambda: self.context.executor.signal(key, number))

    def picture(self) -> Snapshot:
        """Return the queue as it is now, with the jobs that will be in it once they have an image."""
        return self.queue.picture(self.context.moment(), admitted=True)

    def why(self, job_id: str) -> str:
        """Return what an unfinished job waits for; empty when it waits for nothing.  From any thread."""
        entry = self.entries.get(job_id)
        return entry.why or self.queue.why(entry) if entry else ""

    # --- the loop
    def _turn(self) -> None:
        self.turn(self._patience_s())

    def _patience_s(self) -> float:
        """Return how long nothing has to be done if nothing happens."""
        return min(self.queue.patience_s(self.context.clock.monotonic()), 0.5) if self.entries else IDLE_S

    def turn(self, patience_s: float) -> None:
        """Take in what has arrived, waiting a while for the first of it, and what time has brought about."""
        messages = self._news.arrived(patience_s)
        with self.exclusive.mine():
            for run in batches(messages):
                if len(run) == 1 or not self._taken_together(run):
                    for message in run:
                        self._taken(message)
            self._tick()

    def _taken_together(self, run: list[Message]) -> bool:
        """Take in news of several jobs in one transaction; if anything stands against that, none of it."""
        changes = run_guarded("batch", partial(self._record_together, run), messages=len(run))
        for each in changes or ():
            self._follow(each)
        return changes is not None

    def _record_together(self, run: list[Message]) -> list[Transition] | None:
        changes = list(filter(None, map(self._change, run)))
        try:
            record_transitions(self.context.store, changes)
        except Unavailable as error:
            log.info("loop.batch_split", messages=len(run), problem=str(error))
            return None
        return changes

    def _taken(self, message: Message) -> None:
        """Take in one message; an error about it must not lose those behind it."""

        def failed(error: Exception) -> None:
            if isinstance(message, Examined | LaunchRefusal):
                self._mistaken(message.job_id, describe_error(error))  # an end is looked into again

        run_guarded("message", partial(self._take, message), failed, message_kind=type(message).__name__)

    def _take(self, message: Message) -> None:
        match message:
            case Observed():
                self._observed(message)
            case EventReceived() | Examined() | LaunchRefusal():
                self._report(message)
            case Probed():
                self._oversee(message)
            case Call(work):
                work()

    def _tick(self) -> None:
        """Let time alone bring about what it does: deadlines, retries, starts."""
        now = self.context.moment()
        deferred, self._deferred = self._deferred, []
        for news in deferred:  # what could not be recorded before: nothing that happened is forgotten
            self._report(news)
        for entry in [self.entries[job_id] for job_id in self.queue.running]:
            event = due_event(entry.row.job, entry.since.later(now.monotonic))
            if event is not None:
                self._happened(entry, replace(event, at=now.at))
        for job_id in self._retries.due(now.monotonic):
            if self._retries.begin(job_id, now.monotonic) and job_id in self.entries:
                self._begin(self.entries[job_id])
        for tick in self.ticks:
            tick(now)
        if self._news.empty() or now.monotonic >= self._plan_by_s:  # more news may change the plan again
            self.queue.act(now, self._all_happened)
            self._plan_by_s = now.monotonic + PLAN_WITHIN_S

    def _report(self, news: News) -> None:
        """Take in what a lane found out; late news about a job that has moved on is no error."""
        try:
            self._all_happened(list(filter(None, [self._change(news)])))
        except Unavailable as error:
            log.warning("daemon.cannot_record", job_id=news.job_id, problem=str(error))
            self.entries[news.job_id].why = str(error)
            self._deferred.append(news)

    def _change(self, news: Message) -> Transition | None:
        """Return what follows from news, None if nothing does any more; about an end the policy is asked."""
        entry = self.entries.get(news.job_id) if isinstance(news, News) else None
        if entry is None or not isinstance(news, News):
            return None
        try:
            if isinstance(news, EventReceived):
                return transition(entry, news.event)
            judgement = decide_exit(self.context, entry.row, news)
            if judgement is not None:
                return transition(entry, *judgement)
            log.info("daemon.late_end", job_id=news.job_id, attempt=news.attempt)
        except IllegalTransition as error:
            log.info("daemon.late_event", job_id=news.job_id, problem=str(error))
        return None

    def _happened(self, entry: TrackedJob, event: Event, decision: DecisionRow | None = None) -> None:
        self._all_happened([transition(entry, event, decision)])

    def _all_happened(self, changes: list[Transition]) -> None:
        record_transitions(self.context.store, changes)
        for each in changes:
            self._follow(each)

    def _follow(self, change: Transition) -> None:
        """Do what follows from a change, now that it is recorded."""
        entry, before, after, event = change.entry, change.entry.row.job, change.after, change.event
        revised = self.context.store.get(after.id) if isinstance(event, RevisionApplied) else None
        entry.row = revised or replace(entry.row, job=after)
        entry.why, entry.misses = "", 0
        entry.since = entry.since if after.state.since == before.state.since else self.context.moment()
        self._retries.forget(after.id)
        entry.imageless = (
            0 if isinstance(event, Launched) else entry.imageless + isinstance(event, ImageMissing)
        )
        if isinstance(after.state, Finished):
            self.entries.pop(after.id, None)
            self._put(after.id, lambda: self.context.attempt_service.clean_up(entry.row))
        else:
            self.entries[after.id] = entry
        self.queue.know(entry)
        if change.decision is not None:
            self._put(
                after.id, partial(self.context.attempt_service.save_decision, entry.row, change.decision)
            )
        log.info("job.advanced", job_id=after.id, event_kind=event.kind, state=after.state.kind)
        self.changed()
        self._act_all(entry, change.commands)

    # --- acting, in lanes
    def _act_all(self, entry: TrackedJob, commands: tuple[Command, ...]) -> None:
        job = entry.row.job
        for command in commands:
            work = partial(self._carry_out, entry.row, command, entry.imageless)
            self._put(job.id, work, self.context.build_queue if isinstance(command, PrepareImage) else None)
        if isinstance(job.state, Running | Stopping):  # of nobody else there is anything to be seen
            self._observer.hint()

    def _put(self, job_id: str, work: Callable[[], None], work_queue: KeyedWork | None = None) -> None:
        """Queue work for another thread; whatever it raises, the loop hears of it."""

        def answered() -> None:
            try:
                work()
            except Unavailable as error:
                self._news.put(Call(partial(self._unanswered, job_id, str(error))))
                return
            if job_id in self._retries:
                self._news.put(Call(partial(self._worked, job_id)))

        def failed(error: Exception) -> None:
            self._news.put(Call(partial(self._mistaken, job_id, describe_error(error))))

        def guarded() -> None:
            run_guarded("command", answered, failed, job_id=job_id)

        (work_queue or self.context.work_queue).put(
            job_id, guarded if work_queue else self._news.awaiting(guarded)
        )

    def _unanswered(self, job_id: str, why: str) -> None:
        """Remember to try again: a blip is not a death."""
        self._retries.unanswered(job_id, self.context.clock.monotonic())
        self._later(job_id, why)

    def _mistaken(self, job_id: str, why: str) -> None:
        """Remember to try again, ever later: what nobody expected will probably happen again."""
        known = self._retries.mistaken(job_id, self.context.clock.monotonic())
        again = f"tried again after {delay_s(known.mistakes):g} s"
        often = f", {known.mistakes} times in a row" if known.mistakes > 1 else ""
        self._later(job_id, f"{why} ({again}{often})")

    def _later(self, job_id: str, why: str) -> None:
        self._observer.sweep()
        if (entry := self.entries.get(job_id)) is None:
            return
        if entry.why != why:
            log.warning("daemon.waiting", job_id=job_id, why=why)
        entry.why, entry.examined = why, 0

    def _worked(self, job_id: str) -> None:
        if self._retries.worked(job_id, self.context.clock.monotonic()) and job_id in self.entries:
            self.entries[job_id].why = ""

    def _carry_out(self, row: JobRow, command: Command, imageless: int) -> None:
        found = execute(self.context, row, command, imageless)
        if isinstance(found, LaunchRefusal):
            self._news.put(found)
        elif found is not None:
            self._news.put(EventReceived(row.job.id, found))

    # --- what was seen
    def look(self) -> bool:
        """Observe once, leave what was seen to the loop; return whether the executor answered."""
        return self._observer.look()

    def watch(self) -> None:
        """Look at what runs once, and leave what was seen to the loop."""
        self._watcher.look()

    def _oversee(self, news: Probed) -> None:
        self.queue.seen(news)
        act_on_findings(self.context, self.entries, news, self._happened)

    def _observed(self, observed: Observed) -> None:
        now = self.context.clock.monotonic()
        for finding in self._observer.compare(observed):
            if self._retries.waits(finding.job_id, now):
                self._observer.sweep()  # it will have to be seen again
                continue
            match finding:
                case AttemptEnded(entry, attempt, gone):
                    self._examine(entry, attempt, gone)
                case StillAlive(entry):
                    self._act_all(entry, implied_commands(entry.row.job))
                case Orphan(key):  # exhaustive
                    self._put(key.job_id, partial(self.context.executor.remove, key))

    def _examine(self, entry: TrackedJob, attempt: Attempt, gone: Gone) -> None:
        """Look into the end of an attempt, once, in its lane: verifying checkpoints takes time."""
        if entry.examined >= attempt.number:
            return
        entry.examined = attempt.number
        row = as_started(self.context, entry.row)

        def work() -> None:
            findings = examine_exit(self.context, row, attempt, gone)
            self._news.put(Examined(row.job.id, attempt.number, self.context.clock.now(), findings))

        self._put(row.job.id, work)
