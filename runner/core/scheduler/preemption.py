"""Whose devices a blocked job of a higher class may have, and whether that pays.

Won is the waiting that the job is spared, lost is the work that its victims must do again,
both in device-seconds and weighed by class:

``w_job * n_job * (t_wait - grace)  >  hurdle * sum of w_v * n_v * lost_v``
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.core.scheduler.calendar import Calendar, DeviceSlot, HostCalendar
from runner.core.scheduler.config import PriorityClass, SchedulingOrder
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.placement import Placement, RequestClass, fit_host
from runner.core.scheduler.snapshot import PendingJob, RunningJob
from runner.core.scheduler.timeline import Span


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """Who gives way, where the job then starts, and what that costs and wins in device-seconds."""

    victims: tuple[RunningJob, ...]
    placement: Placement
    lost_device_s: float
    gained_device_s: float


def find_preemption(
    book: Calendar, job: PendingJob, shape: RequestClass, place: Placement, stay: Span
) -> PreemptionCandidate | None:
    """Return the cheapest preemption that pays for a job that would else start at ``place``."""
    rules, now_s = book.snapshot.config, book.snapshot.now_s
    own = rules.priority_class(job.priority_class)
    at_s = now_s + rules.preemption.grace_s
    if (
        rules.order not in {SchedulingOrder.FAIR, SchedulingOrder.PRIORITY}
        or not own.preempts
        or place.at_s <= at_s
    ):
        return None
    spared_s = min(place.at_s - at_s, rules.default_duration_s)
    won = own.weight * max(billed_devices(job.request, rules), rules.cpu_weight) * spared_s
    offers = [
        PreemptionCandidate(victims, at, _lost(victims, book), won)
        for host in book.hosts
        for victims, at in _victims(book, host, shape, own, stay)
    ]
    paying = [
        offer for offer in offers if offer.gained_device_s > rules.preemption.min_gain * offer.lost_device_s
    ]
    return min(paying, key=lambda offer: (offer.lost_device_s, offer.placement.selection.score), default=None)


def _lost(victims: Sequence[RunningJob], book: Calendar) -> float:
    return sum(_cost(victim, book) for victim in victims)


def _cost(victim: RunningJob, book: Calendar) -> float:
    rules = book.snapshot.config
    weight = rules.priority_class(victim.priority_class).weight
    return weight * billed_devices(victim.request, rules) * victim.lost_s(book.snapshot.now_s)


def _victims(
    book: Calendar, host: HostCalendar, shape: RequestClass, own: PriorityClass, stay: Span
) -> Iterator[tuple[tuple[RunningJob, ...], Placement]]:
    """Yield a set of jobs of a host of which none is superfluous, if its going makes room."""
    wanted = {slot.device.uuid for slot in shape.pool.slots[host.number]}
    candidates = sorted(
        (
            job
            for job in book.snapshot.running
            if _may_go(job, host, own, book) and _helps(job, shape, wanted)
        ),
        key=lambda job: (
            book.snapshot.config.priority_class(job.priority_class).rank,
            _cost(job, book),
            job.job_id,
        ),
    )
    chosen: list[RunningJob] = []
    for job in candidates:
        chosen.append(job)
        if _without(book, host, shape, chosen, stay):
            break
    else:
        return
    for job in chosen[-2::-1]:
        fewer = [each for each in chosen if each is not job]
        if _without(book, host, shape, fewer, stay):
            chosen = fewer
    place = _without(book, host, shape, chosen, stay)
    yield from [(tuple(chosen), place)] if place else []


def _helps(job: RunningJob, shape: RequestClass, wanted: set[str]) -> bool:
    return not shape.request.gpus or any(uuid in wanted for uuid in job.devices)


def _may_go(job: RunningJob, host: HostCalendar, own: PriorityClass, book: Calendar) -> bool:
    rules, now_s = book.snapshot.config, book.snapshot.now_s
    its = rules.priority_class(job.priority_class)
    return (
        job.host == host.host.name
        and its.preemptible
        and its.rank < own.rank
        and not job.stopping
        and book.ends_s[job.job_id] > now_s + rules.preemption.grace_s
        and now_s - job.started_s >= rules.preemption.min_runtime_s
        and job.preempted < rules.preemption.max_preemptions
    )


def _without(
    book: Calendar, host: HostCalendar, shape: RequestClass, gone: Sequence[RunningJob], stay: Span
) -> Placement | None:
    """Return the place on a host once some jobs have left it."""
    at_s = book.snapshot.now_s + book.snapshot.config.preemption.grace_s
    twin = host.copy()
    for job in gone:
        book_release(book, twin, job, at_s)
    choice = fit_host(shape, twin, _same(twin, shape, host), at_s, stay.end_s(at_s))
    return Placement(at_s, choice) if choice else None


def _same(twin: HostCalendar, shape: RequestClass, host: HostCalendar) -> list[DeviceSlot]:
    return [twin.slots[slot.number] for slot in shape.pool.slots[host.number]]


def book_release(book: Calendar, host: HostCalendar, job: RunningJob, at_s: float) -> None:
    """Write in that a job leaves at a time, before the end that it is booked to."""
    host.release(job.request, job.devices, at_s, book.ends_s[job.job_id])
