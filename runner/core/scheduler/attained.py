"""Attained service: jobs that have had little of the machine go before jobs that have had much.

Nobody has to say how long a job will take.  A job begins in the lowest service level and rises as its
lineage holds devices; a job of a lower level may take the place of one of a higher level.  Short jobs
therefore end in the lowest level, whatever else runs.  J. Gu et al., Tiresias, NSDI 2019, call this
discretised two-dimensional least attained service; the two dimensions are devices and time.

Where the steps that a job reports tell its remaining time, that takes the place of what it has had: of the
lengths that jobs have here, one goes on for about as long as it has run, so both are of one scale.  Jobs that
end soon go first, however long they have run; jobs that turn out to be long give way sooner.

Nobody starves: a job that has waited longer than the starvation limit of its class is in the lowest level
again until it has held devices for as long as a new job may.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, log
from typing import Final

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.snapshot import EstimateSource, PendingJob, RunningJob

LEARNED_PART: Final = 0.05
"""So much of all device-seconds is held below the first limit: the lowest level is hardly ever full."""

LEARNED_FACTORS: Final = (1.0, 6.0, 48.0)
"""The limits as multiples of the first one.  Higher ones cannot be learned from jobs that have ended: the
longest are still running.
"""

LEAST_PART_OF_JOBS: Final = 0.2
"""So many of the jobs end below each limit at least: jobs of equal length do not take turns."""

LEARNS_EVERY_S: Final = 3600.0
"""Time after which the limits are learned anew."""

LATEST_JOBS: Final = 2000
"""Ended jobs from which they are learned, the latest ones."""

LEAST_JOBS: Final = 100
"""Earlier jobs without which nothing is learned."""

LEAST_LIMIT_S: Final = 600.0
"""The least limit in device-seconds: below, jobs would be preempted before that can pay."""

PARTS: Final = 4
"""By so many parts of a level remaining times are told apart: finer ones make jobs take turns for little."""

OUTER_FACTOR: Final = 8.0
"""Below the first limit and above the last one the parts go so far; what is beyond is alike."""

UNIT_S: Final = 60.0
"""The first limit is a whole multiple of it, so that it does not change with each job."""


def learned_levels(held_device_s: Sequence[float]) -> tuple[float, ...] | None:
    """Return the limits of the levels that follow from what earlier jobs held; None: there are too few.

    What jobs hold below the first limit is a small part of all that they hold: most jobs are short, and most
    device-seconds are those of a few long ones.
    """
    held = sorted(held_device_s)
    if len(held) < LEAST_JOBS:
        return None
    least = max(held[int(LEAST_PART_OF_JOBS * len(held))], LEAST_LIMIT_S)
    limit = max(_limit_below_which(held, LEARNED_PART * sum(held)), least)
    return tuple(factor * UNIT_S * ceil(limit / UNIT_S) for factor in LEARNED_FACTORS)


def _limit_below_which(held: Sequence[float], wanted: float) -> float:
    """Return the limit below which jobs hold so many device-seconds, fewer than all; ``held`` is sorted."""
    shorter, number = 0.0, 0  # what those jobs hold that end below the limit, and how many they are
    while shorter + held[number] * (len(held) - number) < wanted:
        shorter += held[number]
        number += 1
    return (wanted - shorter) / (len(held) - number)


def service_level(device_s: float, config: SchedulerConfig) -> int:
    """Return the service level of a job that has held this many device-seconds."""
    return bisect_right(config.switching.levels_device_s, device_s)


def pending_standing(job: PendingJob, config: SchedulerConfig, *, promoted: bool = False) -> float:
    """Return the standing of a pending job: the lower goes first, and may displace the higher.

    It is the service level, or its like for the remaining time; where the order is by remaining time, that.
    """
    if config.order is SchedulingOrder.SRPT:
        return job.planned_duration_s(config)
    if promoted:
        return 0
    if job.estimated_by is EstimateSource.PROGRESS and job.time_limit_s is None:
        return _remaining_standing(job.planned_duration_s(config), config)
    return service_level(job.ran_s * billed_devices(job.request, config), config)


def running_standing(job: RunningJob, ends_s: float, now_s: float, config: SchedulerConfig) -> float:
    """Return the standing of a running job that is expected to end at ``ends_s``."""
    if config.order is SchedulingOrder.SRPT:
        return ends_s - now_s
    if goes_by_remaining_time(job, config):
        return _remaining_standing(ends_s - now_s, config)
    return service_level(_service_device_s(job, now_s, config), config)


def goes_by_remaining_time(job: RunningJob, config: SchedulerConfig) -> bool:
    """Return True if the standing of a running job follows from the end that its steps tell.

    A job that had waited for too long has the level of a new one instead.
    """
    return job.ends_by is EstimateSource.PROGRESS and not _was_promoted(job, config)


def _remaining_standing(remaining_s: float, config: SchedulerConfig) -> float:
    """Return the standing of a job that goes on for a time: its level with parts of one.

    Each level is divided evenly by the logarithm of the time.
    """
    limits = config.switching.levels_device_s
    if not limits:
        return 0
    level = bisect_right(limits, remaining_s)
    edges = (limits[0] / OUTER_FACTOR, *limits, limits[-1] * OUTER_FACTOR)
    low, high = edges[level], edges[level + 1]
    part = log(max(remaining_s, low) / low) / log(high / low)
    return level + int(min(PARTS * part, PARTS - 1)) / PARTS


def next_rise_s(job: RunningJob, now_s: float, config: SchedulerConfig) -> float | None:
    """Return in how many seconds a running job reaches the next service level; None: never."""
    if goes_by_remaining_time(job, config):
        return None
    devices = billed_devices(job.request, config)
    device_s = _service_device_s(job, now_s, config)
    limits = config.switching.levels_device_s[service_level(device_s, config) :]
    return (limits[0] - device_s) / devices if limits and devices else None


def _service_device_s(job: RunningJob, now_s: float, config: SchedulerConfig) -> float:
    """Return the device-seconds that decide the level of a running job."""
    held_s = now_s - job.started_s if _was_promoted(job, config) else job.held_s(now_s)
    return held_s * billed_devices(job.request, config)


def _was_promoted(job: RunningJob, config: SchedulerConfig) -> bool:
    """Return True if a running job had waited longer than the starvation limit of its class."""
    waited_s = 0.0 if job.queued_s is None else job.started_s - job.queued_s
    return waited_s > config.priority_class(job.priority_class).starvation_limit_s
