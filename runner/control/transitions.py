"""The changes that follow from what has reached the loop, before they are written down together.

A transaction waits for the disk, and that wait is what recording costs: what several jobs have
brought news of at the same time is one transaction.
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
"""Longest wait for the loop to answer."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What has happened to a job, and what follows from it; not recorded yet."""

    entry: TrackedJob
    event: Event
    after: Job
    commands: tuple[Command, ...]
    decision: DecisionRow | None = None
    usage: UsageRecord | None = None


def transition(
    entry: TrackedJob, event: Event, decision: DecisionRow | None = None, usage: UsageRecord | None = None
) -> Transition:
    """Return what follows from an event.

    Raises:
        IllegalTransition: it cannot happen to the job as it is.
    """
    return Transition(entry, event, *advance(entry.row.job, event), decision, usage)


def requested_transition(entry: TrackedJob, event: Event, decision: DecisionRow | None = None) -> Transition:
    """Return what follows from an event that a person asked for.

    Raises:
        Refused: the job is in no state for it.
    """
    try:
        return transition(entry, event, decision)
    except IllegalTransition as error:
        raise Refused(f"job {entry.row.job.id}: {describe_refusal(entry.row.job, event)}") from error


def record_transitions(store: Store, changes: Sequence[Transition]) -> None:
    """Write all of some changes to different jobs, durably, or none.

    Raises:
        Unavailable: none was written.
    """
    if not changes:
        return
    store.record_all(
        [
            RecordedTransition(each.entry.row.job, each.after, each.event, each.decision, each.usage)
            for each in changes
        ]
    )


def call_on_loop(work: Callable[[], T]) -> tuple[Call, Future[T]]:
    """Return a message that has the loop do ``work``, and where what it returns or raises will be."""
    answer: Future[T] = Future()
    return Call(lambda: run_to_future(answer, work)), answer


def batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages in order, news of different jobs that come one after another together."""
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
