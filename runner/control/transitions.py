"""Transitions of jobs before they are recorded, and which of them are recorded together.

A transaction waits for the disk, and that wait is what recording costs.  So the messages about different jobs
that arrive together become one transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from runner.base.errors import Refused
from runner.base.threads import run_to_future
from runner.control.context import TrackedJob
from runner.control.messages import Call, EventReceived, Examined, LaunchRefusal, Message
from runner.core.job.commands import Command
from runner.core.job.describe import describe_refusal
from runner.core.job.events import Event
from runner.core.job.lifecycle import IllegalTransition, advance
from runner.core.job.model import Job
from runner.core.ports.store import DecisionRow, RecordedTransition, Store, UsageRecord

T = TypeVar("T")

ANSWER_S: Final = 30.0
"""Longest wait of a caller for the loop."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of an event for a job, and the commands that follow; not recorded yet."""

    tracked: TrackedJob
    event: Event
    after: Job
    commands: tuple[Command, ...]
    decision: DecisionRow | None = None
    usage: UsageRecord | None = None


def transition(
    tracked: TrackedJob, event: Event, decision: DecisionRow | None = None, usage: UsageRecord | None = None
) -> Transition:
    """Return the transition of a job by an event.

    Raises:
        IllegalTransition: the job is in no state for the event.
    """
    return Transition(tracked, event, *advance(tracked.row.job, event), decision, usage)


def requested_transition(
    tracked: TrackedJob, event: Event, decision: DecisionRow | None = None
) -> Transition:
    """Return the transition of a job by an event that a person asked for.

    Raises:
        Refused: the job is in no state for it.
    """
    try:
        return transition(tracked, event, decision)
    except IllegalTransition as error:
        job = tracked.row.job
        raise Refused(f"job {job.id}: {describe_refusal(job, event)}") from error


def record_transitions(store: Store, transitions: Sequence[Transition]) -> None:
    """Write transitions of different jobs, durably, all or none.

    Raises:
        Unavailable: none was written.
    """
    if transitions:
        store.record_all(
            [
                RecordedTransition(each.tracked.row.job, each.after, each.event, each.decision, each.usage)
                for each in transitions
            ]
        )


def call_on_loop(work: Callable[[], T]) -> tuple[Call, Future[T]]:
    """Return a message that has the loop do ``work``, and the future of its result."""
    answer: Future[T] = Future()
    return Call(lambda: run_to_future(answer, work)), answer


def batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages in order; consecutive messages that advance different jobs come together."""
    run: list[Message] = []
    jobs: set[str] = set()
    for message in messages:
        if not isinstance(message, EventReceived | Examined | LaunchRefusal):
            yield from [run] if run else []
            yield [message]
            run, jobs = [], set()
            continue
        if message.job_id in jobs:
            yield run
            run, jobs = [], set()
        run.append(message)
        jobs.add(message.job_id)
    yield from [run] if run else []
