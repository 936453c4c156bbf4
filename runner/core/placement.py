"""Who starts now, and why the others wait: a pure function of the queue and what is free.

Order is priority, then age.  A job that does not fit keeps what is free of the things it
waits for, so that a stream of small jobs cannot starve it; others may use the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from runner.core.queue.snapshot import Needs

__all__ = ["Free", "Lend", "Needs", "Wait", "Waiting", "place"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job, as far as placement cares."""

    job_id: str
    needs: Needs
    priority: int
    submitted_at: datetime
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """What nobody uses: devices as (uuid, vendor), in the order in which they are lent."""

    cpus: float
    memory_bytes: int
    devices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Lend:
    """Start this job on these devices."""

    job_id: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this job wait; ``why`` is for its owner."""

    job_id: str
    why: str


def place(queue: Iterable[Waiting], free: Free, now: datetime) -> tuple[Lend | Wait, ...]:
    """Return an answer for every queued job, in queue order."""
    answers: list[Lend | Wait] = []
    for waiting in sorted(queue, key=lambda w: (-w.priority, w.submitted_at, w.job_id)):
        answer, free = _place_one(waiting, free, now)
        answers.append(answer)
    return tuple(answers)


def _place_one(waiting: Waiting, free: Free, now: datetime) -> tuple[Lend | Wait, Free]:
    if waiting.not_before is not None and now < waiting.not_before:
        left = (waiting.not_before - now).total_seconds()
        return Wait(waiting.job_id, f"backoff, {left:.0f} s left"), free
    needs = waiting.needs
    suitable = [
        uuid for uuid, vendor in free.devices if needs.vendor in {None, vendor} and uuid not in needs.avoid
    ]
    lacks = _lacks(needs, free, len(suitable))
    taken = set(suitable[: needs.gpus])
    rest = replace(
        free,
        cpus=max(free.cpus - needs.cpus, 0.0),
        memory_bytes=max(free.memory_bytes - needs.memory_bytes, 0),
        devices=tuple(device for device in free.devices if device[0] not in taken),
    )
    if lacks:
        return Wait(waiting.job_id, f"waits for {' and '.join(lacks)}"), rest
    return Lend(waiting.job_id, tuple(suitable[: needs.gpus])), rest


def _lacks(needs: Needs, free: Free, devices: int) -> list[str]:
    lacks = []
    if needs.gpus > devices:
        lacks.append(f"{needs.gpus} gpus ({devices} free)")
    if needs.cpus > free.cpus:
        lacks.append(f"{needs.cpus:g} cpus ({free.cpus:g} free)")
    if needs.memory_bytes > free.memory_bytes:
        lacks.append(f"{_gib(needs.memory_bytes)} of memory ({_gib(free.memory_bytes)} free)")
    return lacks


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"
