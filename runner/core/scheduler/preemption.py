"""Preemption: which running jobs a blocked job of a higher class may displace, and whether that pays.

The gain is the waiting time that the job is spared, the loss is the work that its victims repeat.  Both are
in device-seconds, weighted by class:

``w_job * n_job * (t_wait - grace)  >  min_gain * sum of w_victim * n_victim * lost_victim``
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.core.scheduler.calendar import Calendar, HostCalendar
from runner.core.scheduler.config import PriorityClass, SchedulingOrder
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.placement import Placement, RequestClass, fit_host
from runner.core.scheduler.snapshot import PendingJob, RunningJob
from runner.core.scheduler.timeline import Span


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A set of victims, the placement that they make room for, and its loss and gain in device-seconds."""

    victims: tuple[RunningJob, ...]
    placement: Placement
    lost_device_s: float
    gained_device_s: float


def find_preemption(
    calendar: Calendar, job: PendingJob, request_class: RequestClass, placement: Placement, span: Span
) -> PreemptionCandidate | None:
    """Return the preemption with the least loss that pays for a job that would otherwise wait."""
    config, now_s = calendar.snapshot.config, calendar.snapshot.now_s
    own_class = config.priority_class(job.priority_class)
    at_s = now_s + config.preemption.grace_s
    has_classes = config.order in {
        SchedulingOrder.FAIR, SchedulingOrder.ATTAINED, SchedulingOrder.PRIORITY
    }  # fmt: skip
    if not has_classes or not own_class.preempts or placement.at_s <= at_s:
        return None
    spared_s = min(placement.at_s - at_s, config.default_duration_s)
    devices = max(billed_devices(job.request, config), config.cpu_weight)
    gained_device_s = own_class.weight * devices * spared_s
    candidates: list[PreemptionCandidate] = []
    for host in calendar.hosts:
        possible = [
            each
            for each in calendar.running_by_host.get(host.host.name, ())
            if _is_preemptible(each, own_class, calendar)
        ]
        possible.sort(
            key=lambda each: (
                config.priority_class(each.priority_class).rank, _loss(each, calendar), each.job_id
            )
        )  # fmt: skip
        victims = choose_victims(calendar, host, request_class, possible, span)
        earlier = place_without(calendar, host, request_class, victims, span) if victims else None
        if earlier is None:
            continue
        lost_device_s = sum(_loss(victim, calendar) for victim in victims)
        if gained_device_s > config.preemption.min_gain * lost_device_s:
            candidates.append(PreemptionCandidate(victims, earlier, lost_device_s, gained_device_s))
    return min(
        candidates,
        key=lambda candidate: (candidate.lost_device_s, candidate.placement.selection.score),
        default=None,
    )


def _loss(victim: RunningJob, calendar: Calendar) -> float:
    """Return the device-seconds that a victim loses, weighted by its class."""
    config = calendar.snapshot.config
    weight = config.priority_class(victim.priority_class).weight
    return weight * billed_devices(victim.request, config) * victim.lost_s(calendar.snapshot.now_s)


def choose_victims(
    calendar: Calendar,
    host: HostCalendar,
    request_class: RequestClass,
    possible: Sequence[RunningJob],
    span: Span,
) -> tuple[RunningJob, ...]:
    """Return jobs of a host that make room together, none of them superfluous; empty: none can.

    The first of the possible victims are taken first.
    """
    wanted = {slot.device.uuid for slot in request_class.slots[host.number]}
    victims: list[RunningJob] = []
    for job in possible:
        if not _frees_something(job, request_class, wanted):
            continue
        victims.append(job)
        if place_without(calendar, host, request_class, victims, span):
            break
    else:
        return ()
    for job in victims[-2::-1]:  # the last one is needed; leave out those that are not
        fewer = [each for each in victims if each is not job]
        if place_without(calendar, host, request_class, fewer, span):
            victims = fewer
    return tuple(victims)


def _frees_something(job: RunningJob, request_class: RequestClass, wanted: set[str]) -> bool:
    return not request_class.request.gpus or any(uuid in wanted for uuid in job.devices)


def _is_preemptible(job: RunningJob, own_class: PriorityClass, calendar: Calendar) -> bool:
    config, now_s = calendar.snapshot.config, calendar.snapshot.now_s
    its_class = config.priority_class(job.priority_class)
    return (
        its_class.preemptible
        and its_class.rank < own_class.rank
        and not job.stopping
        and job.stays_until_s <= now_s
        and calendar.ends_s[job.job_id] > now_s + config.preemption.grace_s
        and now_s - job.started_s >= config.preemption.min_runtime_s
        and job.preempted < config.preemption.max_preemptions
    )


def place_without(
    calendar: Calendar,
    host: HostCalendar,
    request_class: RequestClass,
    victims: Sequence[RunningJob],
    span: Span,
) -> Placement | None:
    """Return the placement on a host once some jobs have left it."""
    at_s = max(leaves_s(victim, calendar) for victim in victims)
    trial = host.copy()
    for victim in victims:
        book_release(calendar, trial, victim, at_s)
    slots = [trial.slots[slot.number] for slot in request_class.slots[host.number]]
    selection = fit_host(request_class, trial, slots, at_s, span.end_s(at_s))
    return Placement(at_s, selection) if selection else None


def leaves_s(victim: RunningJob, calendar: Calendar) -> float:
    """Return the time at which a running job leaves its devices if it is told to stop now."""
    grace_s = calendar.snapshot.config.preemption.grace_s
    return calendar.snapshot.now_s + (grace_s if victim.save_s is None else victim.save_s)


def book_release(calendar: Calendar, host: HostCalendar, job: RunningJob, at_s: float) -> None:
    """Book that a running job leaves a host at a time, before its expected end."""
    host.book(job.request, job.devices, at_s, calendar.ends_s[job.job_id], sign=-1)
