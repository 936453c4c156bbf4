"""The control loop: observe, advance, record, execute.

It is level-triggered and crash-only.  Only the holder of the exclusive section, which is the loop or a
caller, advances jobs and writes the store; the engine and the clock only put messages into the inbox.
A transition is recorded before its commands are executed, and a command that failed is given again from
the state that implies it.  So a daemon that is killed at any instruction loses nothing.

What callers ask for is in ``controller``, and how commands are executed in ``dispatcher``.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog

from runner.base.errors import Unavailable
from runner.base.instant import Instant
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.context import Context, TrackedJob
from runner.control.decisions import decide_exit
from runner.control.dispatcher import CommandDispatcher, ended_unasked
from runner.control.exclusive import ExclusiveSection
from runner.control.inbox import Inbox
from runner.control.launch_failures import LaunchFailures
from runner.control.messages import (
    Call,
    EventReceived,
    Examined,
    JobMessage,
    LaunchRefusal,
    Message,
    Observed,
    Probed,
)
from runner.control.observer import IDLE_S, AttemptBegun, AttemptEnded, Observer, Orphan, Revenant, StillAlive
from runner.control.recovery import Recovery
from runner.control.scheduler import Scheduler
from runner.control.transitions import Transition, batches, record_transitions, transition
from runner.control.watchdog import Watchdog, act_on_findings
from runner.core.job.events import (
    Event,
    Exited,
    HostFailed,
    ImageMissing,
    Launched,
    RevisionApplied,
    SwitchCalledOff,
)
from runner.core.job.lifecycle import IllegalTransition, due_event
from runner.core.job.states import Allocated, Finished, Preparing, Running, Starting, State, Stopping
from runner.core.ports.executor import Alive
from runner.core.ports.store import DecisionRow, JobRow

log = structlog.get_logger()

STOP_S: Final = 10.0
"""Longest wait for each thread when the daemon leaves."""

PLAN_WITHIN_S: Final = 0.02
"""Longest delay of a plan by messages that are in the inbox already: they may change it again."""

LONGEST_WAIT_S: Final = 0.5
"""Between two iterations while there are jobs."""


@dataclass(slots=True, repr=False)  # a traceback that shows the loop should not show every job
class ControlLoop:
    """Advances the tracked jobs, one message after the other."""

    context: Context
    changed: Callable[[Sequence[str]], None] = lambda _: None  # called after each recorded transition
    tracked_jobs: dict[str, TrackedJob] = field(default_factory=dict)
    iteration_hooks: list[Callable[[Instant], None]] = field(default_factory=list)  # called once an iteration
    inbox: Inbox = field(default_factory=Inbox)
    scheduler: Scheduler = field(init=False)
    exclusive: ExclusiveSection = field(init=False)
    observer: Observer = field(init=False)
    watchdog: Watchdog = field(init=False)
    dispatcher: CommandDispatcher = field(init=False)
    recovery: Recovery = field(init=False)
    _thread: PeriodicThread = field(init=False)
    launch_failures: LaunchFailures = field(default_factory=LaunchFailures)
    _unrecorded: list[JobMessage] = field(default_factory=list)
    _plan_by_s: float = 0.0
    _has_observed: bool = False  # an attempt that ended before this daemon began is not due for a stop

    def __post_init__(self) -> None:
        context, tracked, inbox = self.context, self.tracked_jobs, self.inbox
        self.scheduler = Scheduler(context, tracked)
        self.exclusive = ExclusiveSection(inbox)
        self.observer = Observer(
            context, tracked, self.scheduler.jobs.running, inbox.put, inbox.wait_for_work
        )
        self.watchdog = Watchdog(context, tracked, inbox.put)
        self.dispatcher = CommandDispatcher(context, tracked, inbox, self.observer)
        self.recovery = Recovery(context, inbox)
        self._thread = PeriodicThread(
            "control-loop", 0.0, lambda: self.run_once(self._timeout_s()), begin_at_once=True
        )

    # --- its life

    def start(self) -> None:
        """Adopt the unfinished jobs, and start the threads."""
        self.adopt()
        for part in (self._thread, self.observer, self.watchdog.thread):
            part.start()

    def adopt(self) -> None:
        """Track every unfinished job, and give again the commands that its state implies."""
        for row in self.context.store.unfinished():
            self.dispatcher.execute_implied(self.track(row))
        self.recovery.start()
        log.info("daemon.started", unfinished=len(self.tracked_jobs), executor=self.context.executor.kind)

    def stop(self) -> None:
        """Stop the threads; attempts go on, and the next daemon adopts them."""
        parts = (self._thread, self.observer, self.watchdog.thread)
        for part in parts:
            part.stop()
        self.exclusive.wake()
        for part in parts:
            part.join(STOP_S)
        context = self.context
        queues = (context.work_queue, context.build_queue, context.verification_queue, self.watchdog.work)
        for service in (*queues, context.attempt_service):
            service.close()

    def track(self, row: JobRow) -> TrackedJob:
        """Track a job from now on, and return it."""
        tracked = self.tracked_jobs[row.job.id] = TrackedJob(row, self._since(row.job.state))
        self.scheduler.jobs.update(tracked)
        return tracked

    def _since(self, state: State) -> Instant:
        """Return since when a job is in its state, by both clocks; else the present moment."""
        now = self.context.moment()
        if isinstance(state, Stopping):  # whose grace ends, although the clock was set back meanwhile
            return replace(now, at=max(now.at, state.since))
        launched_s = self.context.launched_s(state) if isinstance(state, Running) else None
        return now if launched_s is None else Instant(state.since, launched_s)

    # --- one iteration

    def _timeout_s(self) -> float:
        """Return the longest time to wait for a message."""
        if not self.tracked_jobs:
            return IDLE_S
        return min(self.scheduler.next_plan_in_s(self.context.clock.monotonic()), LONGEST_WAIT_S)

    def run_once(self, timeout_s: float) -> None:
        """Process the messages that have arrived, waiting a while for the first, and what is due by time."""
        messages = self.inbox.receive(timeout_s)
        with self.exclusive.hold():
            for batch in batches(messages):
                self._process_batch(batch)
            self._process_time(self.context.moment())

    def _process_batch(self, batch: list[Message]) -> None:
        """Process messages in one transaction, or one by one if they cannot be recorded together."""
        if len(batch) > 1:
            transitions = run_guarded("batch", partial(self._record_batch, batch), messages=len(batch))
            if transitions is not None:
                self._follow_up(transitions)
                return
        for message in batch:
            run_guarded(
                "message",
                partial(self._process, message),
                partial(self._retry_examination, message),
                message_kind=type(message).__name__,
            )

    def _record_batch(self, batch: list[Message]) -> list[Transition] | None:
        """Record what follows from the messages of different jobs; return None if nothing was recorded."""
        try:
            made = [self._advance(each) for each in batch if isinstance(each, JobMessage)]
            transitions = [each for each in made if each is not None]
            record_transitions(self.context.store, transitions)
        except Unavailable as error:
            log.info("loop.batch_split", messages=len(batch), problem=str(error))
            return None
        return transitions

    def _retry_examination(self, message: Message, error: BaseException) -> None:
        if isinstance(message, Examined | LaunchRefusal):
            self.dispatcher.record_error(message.job_id, error)

    def _process(self, message: Message) -> None:
        match message:
            case Observed():
                self._observe(message)
            case EventReceived() | Examined() | LaunchRefusal():
                self._advance_and_record(message)
            case Probed():
                self.scheduler.jobs.record_probe(message)
                of_queue = self.scheduler.jobs.queue_facts(message.job_id, message.at)
                known = replace(message, facts={**message.facts, **of_queue})
                tracked = self.tracked_jobs.get(message.job_id)
                if not self._has_observed or (tracked and self.dispatcher.is_examining(tracked)):
                    return  # its silence may be that of its end
                act_on_findings(self.context, self.tracked_jobs, known, self._apply)
            case Call(work):
                work()

    def _process_time(self, now: Instant) -> None:
        """Do what is due by time alone: unrecorded messages, deadlines, retries, hooks, a plan."""
        unrecorded, self._unrecorded = self._unrecorded, []
        for message in unrecorded:
            self._advance_and_record(message)
        running = self.scheduler.jobs.running if self._has_observed else ()
        for tracked in [self.tracked_jobs[job_id] for job_id in running]:
            if self.dispatcher.is_examining(tracked):
                continue
            event = due_event(tracked.row.job, tracked.since.later(now.monotonic))
            if event is not None:
                self._apply(tracked, replace(event, at=now.at))
        retries = self.dispatcher.retries
        for job_id in retries.due(now.monotonic):
            if retries.begin(job_id, now.monotonic) and job_id in self.tracked_jobs:
                self.dispatcher.execute_implied(self.tracked_jobs[job_id])
        for hook in self.iteration_hooks:
            hook(now)
        if self.inbox.empty() or now.monotonic >= self._plan_by_s:
            self.scheduler.run(now, self.record)
            self._plan_by_s = now.monotonic + PLAN_WITHIN_S

    # --- observe

    def _observe(self, observed: Observed) -> None:
        """Compare what the executor shows with what is expected, and follow up the differences."""
        now, self._has_observed = self.context.clock.monotonic(), True
        for finding in self.observer.compare(observed):
            if self.dispatcher.retries.is_waiting(finding.job_id, now):
                self.observer.request_round()  # it has to be found again
                continue
            match finding:
                case AttemptBegun(tracked, alive):
                    self._advance_and_record(EventReceived(tracked.row.job.id, self._begun(tracked, alive)))
                case AttemptEnded(tracked, attempt, gone):
                    self.dispatcher.examine(tracked, attempt, gone)
                case StillAlive(tracked):
                    self.dispatcher.execute_implied(tracked)
                case Revenant(key):
                    log.warning("executor.revenant_killed", job_id=key.job_id, attempt=key.attempt)
                    kill = partial(self.context.executor.signal, key, signal.SIGKILL)
                    self.dispatcher.put(key.job_id, kill)
                case Orphan(key):  # exhaustive
                    self.dispatcher.put(key.job_id, partial(self.context.executor.remove, key))

    def _begun(self, tracked: TrackedJob, alive: Alive) -> Launched:
        """Return the start of an attempt that the engine had accepted earlier."""
        number, resumed = tracked.accepted or (0, None)
        return Launched(
            self.context.clock.now(),
            resumed=resumed if number == tracked.row.job.attempts else None,
            host=alive.host,
            devices=alive.devices,
        )

    # --- advance

    def _advance(self, message: JobMessage) -> Transition | None:
        """Return the transition that follows from a message, None if the job has moved on.

        About the exit of an attempt the policy decides.
        """
        tracked = self.tracked_jobs.get(message.job_id)
        if tracked is None:
            return None
        try:
            if isinstance(message, EventReceived):
                return self._with_usage(transition(tracked, self._paced(tracked, message.event)))
            if isinstance(message, Examined):
                message = replace(message, unasked=ended_unasked(tracked, message))
            if isinstance(message, LaunchRefusal) and (again := self._host_refuses(message)) is not None:
                return transition(tracked, HostFailed(message.at, message.why, again))
            of_queue = self.scheduler.jobs.queue_facts(message.job_id, message.at)
            decided = decide_exit(self.context, tracked.row, message, of_queue)
            if decided is not None:
                return self._with_usage(transition(tracked, *decided))
            log.info("job.exit_ignored", job_id=message.job_id, attempt=message.attempt)
        except IllegalTransition as error:
            log.info("job.event_ignored", job_id=message.job_id, problem=str(error))
        return None

    def _with_usage(self, made: Transition) -> Transition:
        """Return a transition with the usage record of an attempt that has begun in the engine's own queue.

        Of one that ended while no daemon ran nobody knows the begin: it counts from when it was handed over.
        """
        before = made.tracked.row.job
        match before.state, made.event:
            case Starting() | Stopping(), Launched(at=at):
                pass
            case Starting(since=at), Exited(ended=ended) if ended.exit_code is not None:
                pass
            case _:
                return made
        if not self.context.executor.queues:
            return made
        return replace(made, usage=self.scheduler.usage(made.tracked.row, before.attempts, (), at))

    def _host_refuses(self, refusal: LaunchRefusal) -> datetime | None:
        """Return the time of the next launch if the launch fails as that of another job did, else None."""
        return None if refusal.hold or refusal.own else self._next_launch(refusal.job_id, refusal)

    def _paced(self, tracked: TrackedJob, event: Event) -> Event:
        """Return an event; a job without devices, whose quarantine would be its pace, waits after a fault."""
        if not isinstance(event, HostFailed):
            return event
        again, state = self._next_launch(tracked.row.job.id, event, of_host=True), tracked.row.job.state
        has_devices = isinstance(state, Allocated) and bool(state.allocation.devices)
        return event if has_devices else replace(event, not_before=again)

    def _next_launch(
        self, job_id: str, failure: LaunchRefusal | HostFailed, *, of_host: bool = False
    ) -> datetime | None:
        """Return the time of the next launch after a failure of the host, None if it may be the job's."""
        found = self.launch_failures.note(job_id, failure.why, failure.at, of_host=of_host)
        if found is None:
            return None
        if found.first != job_id:
            log.warning("launch.fails_for_all", job_id=job_id, like_job=found.first, why=failure.why)
        return failure.at + timedelta(seconds=found.wait_s)

    def _advance_and_record(self, message: JobMessage) -> None:
        """Advance a job by one message; a message that cannot be recorded now is kept for later."""
        try:
            made = self._advance(message)
            self.record([made] if made else [])
        except Unavailable as error:
            log.warning("job.not_recorded", job_id=message.job_id, problem=str(error))
            self.tracked_jobs[message.job_id].why = str(error)
            self._unrecorded.append(message)

    def _apply(self, tracked: TrackedJob, event: Event, decision: DecisionRow | None = None) -> None:
        self.record([transition(tracked, event, decision)])

    # --- record

    def record(self, transitions: Sequence[Transition]) -> None:
        """Record transitions of different jobs, all or none, and execute what follows from them.

        Raises:
            Unavailable: none was recorded.
        """
        record_transitions(self.context.store, transitions)
        self._follow_up(transitions)

    def _follow_up(self, transitions: Sequence[Transition]) -> None:
        for each in transitions:
            self._update(each)
            self._execute(each)

    def _update(self, made: Transition) -> None:
        """Bring what is tracked of a job up to its recorded transition."""
        tracked, before, after, event = made.tracked, made.tracked.row.job, made.after, made.event
        revised = self.context.store.get(after.id) if isinstance(event, RevisionApplied) else None
        tracked.row = revised or replace(tracked.row, job=after)
        tracked.why, tracked.misses = "", 0
        if after.state.since != before.state.since:
            tracked.since = self.context.moment()
        if isinstance(event, Launched):
            tracked.image_misses = 0
            self.launch_failures.forget(after.id)
        if isinstance(event, Launched | HostFailed) and isinstance(before.state, Starting | Stopping):
            fault = event.why if isinstance(event, HostFailed) and event.not_before is None else None
            self.context.inventory.record_launch(
                before.state.allocation.devices, fault, self.context.moment()
            )
        elif isinstance(event, ImageMissing):
            tracked.image_misses += 1
        elif isinstance(event, SwitchCalledOff) and not event.could_save:
            self.scheduler.jobs.switching.keep(after.id, self.context.clock.monotonic())
        self.dispatcher.retries.forget(after.id)
        if isinstance(after.state, Finished):
            self.tracked_jobs.pop(after.id, None)
        else:
            self.tracked_jobs[after.id] = tracked
        self.scheduler.jobs.update(tracked)

    # --- execute

    def _execute(self, made: Transition) -> None:
        """Execute what follows from a recorded transition, on other threads."""
        row, attempts = made.tracked.row, self.context.attempt_service
        if isinstance(row.job.state, Finished):
            self.dispatcher.put(row.job.id, partial(attempts.clean_up, row), row.owner.name)
        if made.decision is not None:
            self.dispatcher.put(
                row.job.id, partial(attempts.save_decision, row, made.decision), row.owner.name
            )
        log.info("job.transition", job_id=row.job.id, event_kind=made.event.kind, state=row.job.state.kind)
        self.changed((row.job.id,))
        if isinstance(made.after.state, Preparing) and made.tracked.image_misses > 1:
            self.dispatcher.postpone_preparation(made.tracked)
        else:
            self.dispatcher.execute(made.tracked, made.commands, was_told=False)
