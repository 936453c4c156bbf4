"""The changes that follow from what has reached the loop, before they are written down together.

A transaction waits for the disk, and that wait is what recording costs: what several jobs have
brought news of at the same time is one transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from runner.base.errors import Refused
from runner.control.context import Asked, Entry, Examined, Happened, Message, Unstarted
from runner.core.job.describe import refusal
from runner.core.job.lifecycle import IllegalTransition, advance
from runner.core.job.model import Command, Event, Job
from runner.core.ports.all import DecisionRow, Lending, Recorded, Store

T = TypeVar("T")

ANSWER_S: Final = 30.0
"""Longest wait for the loop to answer."""


@dataclass(frozen=True, slots=True)
class Change:
    """What has happened to a job, and what follows from it; not recorded yet."""

    entry: Entry
    event: Event
    after: Job
    commands: tuple[Command, ...]
    decision: DecisionRow | None = None
    lending: Lending | None = None


def change(
    entry: Entry, event: Event, decision: DecisionRow | None = None, lending: Lending | None = None
) -> Change:
    """Return what follows from an event.

    Raises:
        IllegalTransition: it cannot happen to the job as it is.
    """
    return Change(entry, event, *advance(entry.row.job, event), decision, lending)


def asked(entry: Entry, event: Event, decision: DecisionRow | None = None) -> Change:
    """Return what follows from an event that a person asked for.

    Raises:
        Refused: the job is in no state for it.
    """
    try:
        return change(entry, event, decision)
    except IllegalTransition as error:
        raise Refused(f"job {entry.row.job.id}: {refusal(entry.row.job, event)}") from error


def record(store: Store, changes: Sequence[Change]) -> None:
    """Write all of some changes to different jobs, durably, or none.

    Raises:
        Unavailable: none was written.
    """
    if not changes:
        return
    store.record_all(
        [
            Recorded(each.entry.row.job, each.after, each.event, each.decision, each.lending)
            for each in changes
        ]
    )


def question(work: Callable[[], T]) -> tuple[Asked, Future[T]]:
    """Return a message that has the loop do ``work``, and where what it returns or raises will be."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001  (handed to whoever asked, whatever it is)
            answer.set_exception(error)

    return Asked(run), answer


def runs(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages in order, news of different jobs that come one after another together."""
    run: list[Message] = []
    jobs: set[str] = set()
    for message in messages:
        if not isinstance(message, Happened | Examined | Unstarted):
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
