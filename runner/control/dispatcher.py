"""Execution of commands outside of the loop's thread: one at a time per job, retried until they succeed.

The engine and the disk block, so commands run in keyed executors.  What they bring about comes back to the
loop as messages.  A command that failed is given again from the state of its job that implies it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from runner.agent.interface import ExitFindings
from runner.base.errors import Unavailable
from runner.base.instant import Instant
from runner.base.readable import readable_duration
from runner.base.retry import RetryTable, delay_s, describe_error
from runner.base.threads import run_guarded
from runner.control.commands import execute
from runner.control.context import Context, TrackedJob, as_started
from runner.control.decisions import examine_exit
from runner.control.inbox import Inbox
from runner.control.messages import Call, EventReceived, Examined, LaunchAccepted, LaunchRefusal
from runner.control.observer import Observer
from runner.core.job.attempt import Attempt
from runner.core.job.commands import Command, PrepareImage, Terminate
from runner.core.job.events import SwitchCalledOff
from runner.core.job.lifecycle import implied_commands
from runner.core.job.states import Allocated, Queued, Running, Starting, State, Stopping, StopReason
from runner.core.ports.executor import Gone
from runner.core.ports.store import JobRow

log = structlog.get_logger()


def _end(state: State, gone: Gone, findings: ExitFindings, context: Context) -> Instant:
    """Return the end of an attempt: by the engine's clock, not when somebody found out.

    What an engine says of an attempt without an exit code is when it noticed; the program's last sign of life
    is nearer.  An engine with nodes has other clocks, so there an attempt never ends before its last request.
    """
    now = context.moment()
    signs = (gone.at, findings.last_sign if gone.exit_code is None else None)
    at = min((each for each in signs if each is not None), default=now.at)
    begun = getattr(state, "started", None) if not context.executor.queues else None
    at = min(max(at, begun or state.since), now.at)
    return Instant(at, now.monotonic - (now.at - at).total_seconds())


def ended_unasked(tracked: TrackedJob, message: Examined) -> bool:
    """Return True if an attempt ended before it was told to stop, by both clocks: one of them may be set."""
    state = tracked.row.job.state
    if not isinstance(state, Stopping) or state.started is None or state.killed or message.monotonic is None:
        return False
    return message.at + CLOCK_GRAIN < state.since and message.monotonic < tracked.since.monotonic


CLOCK_GRAIN: Final = timedelta(milliseconds=20)
"""Times of files, as which some executors know an end, are behind the clock by up to this."""

Work = Callable[[], object]


@dataclass(slots=True, repr=False)
class CommandDispatcher:
    """Hands the commands of jobs to other threads, and remembers which jobs wait for a retry."""

    context: Context
    tracked_jobs: Mapping[str, TrackedJob]  # the loop changes it
    inbox: Inbox
    observer: Observer
    retries: RetryTable = field(default_factory=RetryTable)
    _examined: set[tuple[str, int]] = field(default_factory=set)  # job and attempt; any thread removes

    def execute_implied(self, tracked: TrackedJob) -> None:
        """Give the commands that the state of a job implies: they are idempotent."""
        self.execute(tracked, implied_commands(tracked.row.job))

    def execute(self, tracked: TrackedJob, commands: tuple[Command, ...], *, was_told: bool = True) -> None:
        """Give commands for a job; what they bring about becomes messages.

        ``was_told``: an attempt that is to be preempted may know it already, from an earlier try.
        """
        for command in commands:
            execute_one = self._execute if was_told else self._execute_unless_called_off
            work = partial(execute_one, tracked.row, command)
            if isinstance(command, PrepareImage):
                self._put_build(tracked.row, work)
            else:
                self.put(tracked.row.job.id, work, tracked.row.owner.name)
        seen = Running | Stopping | Starting if self.context.executor.queues else Running | Stopping
        if isinstance(tracked.row.job.state, seen):  # only those can be observed
            self.observer.hint()

    def examine(self, tracked: TrackedJob, attempt: Attempt, gone: Gone) -> None:
        """Examine the exit of an attempt, once: verifying checkpoints takes time.

        It is done in turns between owners, apart from all other work of jobs.
        """
        row, key = as_started(self.context, tracked.row), (tracked.row.job.id, attempt.number)
        if tracked.examined >= attempt.number or key in self._examined:
            return
        tracked.examined = attempt.number
        self._examined.add(key)

        def work() -> None:
            try:
                findings = examine_exit(self.context, row, attempt, gone)
            finally:
                self._examined.discard(key)
            ended = _end(row.job.state, gone, findings, self.context)
            self.inbox.put(Examined(row.job.id, attempt.number, ended.at, findings, ended.monotonic))

        tracked_work = self.inbox.track(partial(self._run, row.job.id, work))
        self.context.verification_queue.put(row.owner.name, tracked_work)

    def is_examining(self, tracked: TrackedJob) -> bool:
        """Return True if the attempt of a job has ended, and is being examined."""
        state = tracked.row.job.state
        return isinstance(state, Allocated) and tracked.examined >= state.attempt.number

    def put(self, job_id: str, work: Work, user: str = "") -> None:
        """Queue work for a job, behind its earlier work; the loop waits a moment for what it reports.

        ``user`` is its owner, whose turn it is; without one the work waits for no files of a user.
        """
        self.context.work_queue.put(job_id, self.inbox.track(partial(self._run, job_id, work)), user)

    def record_error(self, job_id: str, error: BaseException) -> None:
        """Schedule a retry after an unexpected error, ever later: it will probably happen again."""
        state = self.retries.record_error(job_id, self.context.clock.monotonic())
        again = f"tried again after {readable_duration(delay_s(state.errors))}"
        times = f", {state.errors} times in a row" if state.errors > 1 else ""
        self._set_waiting(job_id, f"{describe_error(error)} ({again}{times})")

    def postpone_preparation(self, tracked: TrackedJob) -> None:
        """Prepare an image later, and ever later, that several launches in a row did not find."""
        job_id, misses = tracked.row.job.id, tracked.image_misses
        wait_s = self.retries.postpone(job_id, self.context.clock.monotonic(), misses - 1)
        fact = f"its image was not in the engine at {misses} launches in a row, although it was prepared"
        self._set_waiting(job_id, f"{fact}; it is prepared again after {readable_duration(wait_s)}")

    # --- on a thread of an executor

    def _put_build(self, row: JobRow, work: Work) -> None:
        self.context.build_queue.put(row.job.id, partial(self._run, row.job.id, work), row.owner.name)

    def _run(self, job_id: str, work: Work) -> None:
        """Do work and tell the loop whether it succeeded."""

        def failed(error: BaseException) -> None:
            self.inbox.put(Call(partial(self.record_error, job_id, error)))

        run_guarded("command", partial(self._run_expecting_unavailable, job_id, work), failed, job_id=job_id)

    def _run_expecting_unavailable(self, job_id: str, work: Work) -> None:
        try:
            work()
        except Unavailable as error:
            self.inbox.put(Call(partial(self._record_unavailable, job_id, str(error))))
            return
        if job_id in self.retries:
            self.inbox.put(Call(partial(self._record_success, job_id)))

    def _execute_unless_called_off(self, row: JobRow, command: Command) -> None:
        """Execute a command; an attempt that need not be preempted any more, or cannot save, is not told."""
        state = row.job.state
        if isinstance(command, Terminate) and isinstance(state, Stopping) and state.started is not None:
            called_off = self._called_off(row, state)
            if called_off is not None:
                log.info("job.switch_called_off", job_id=row.job.id, why=called_off.why)
                self.inbox.put(EventReceived(row.job.id, called_off))
                return
        self._execute(row, command)

    def _called_off(self, row: JobRow, state: Stopping) -> SwitchCalledOff | None:
        """Return that an attempt need not be preempted, or could not save; None if it is to be told."""
        if state.reason is not StopReason.PREEMPTION:
            return None
        now, number = self.context.clock.now(), state.attempt.number
        other = self.tracked_jobs.get(state.by or "")
        if other is None or not isinstance(other.row.job.state, Queued):
            is_now = "has ended" if other is None else f"is {other.row.job.state.kind}"
            return SwitchCalledOff(now, number, f"job {state.by}, for which it was to be preempted, {is_now}")
        lacks = self.context.attempt_service.lacks_room_to_save(row, state.attempt)
        if not lacks:
            return None
        why = f"it could not save for job {state.by}: {lacks}"
        return SwitchCalledOff(now, number, why, could_save=False)

    def _execute(self, row: JobRow, command: Command) -> None:
        result = execute(self.context, row, command)
        if isinstance(result, LaunchRefusal):
            self.inbox.put(result)
        elif isinstance(result, LaunchAccepted):
            self.inbox.put(Call(partial(self._record_accepted, row.job.id, result)))
        elif result is not None:
            self.inbox.put(EventReceived(row.job.id, result))

    # --- in the exclusive section

    def _record_accepted(self, job_id: str, accepted: LaunchAccepted) -> None:
        """Remember what is recorded once the attempt has begun."""
        tracked = self.tracked_jobs.get(job_id)
        if tracked is not None:
            tracked.accepted = accepted.attempt, accepted.resumed

    def _record_unavailable(self, job_id: str, why: str) -> None:
        """Schedule a retry: an engine that does not answer for a moment ends no job."""
        self.retries.record_unavailable(job_id, self.context.clock.monotonic())
        self._set_waiting(job_id, why)

    def _record_success(self, job_id: str) -> None:
        if (
            self.retries.record_success(job_id, self.context.clock.monotonic())
            and job_id in self.tracked_jobs
        ):
            self.tracked_jobs[job_id].why = ""

    def _set_waiting(self, job_id: str, why: str) -> None:
        self.observer.request_round()
        tracked = self.tracked_jobs.get(job_id)
        if tracked is None:
            return
        if tracked.why != why:
            log.warning("job.waiting", job_id=job_id, why=why)
        tracked.why, tracked.examined = why, 0
