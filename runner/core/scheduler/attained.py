"""Attained service: jobs that have had little of the machine go before jobs that have had much.

Nobody has to say how long a job will take.  A job begins in the lowest service level and rises as its
lineage holds devices; a job of a lower level may take the place of one of a higher level.  Short jobs
therefore end in the lowest level, whatever else runs.  J. Gu et al., Tiresias, NSDI 2019, call this
discretised two-dimensional least attained service; the two dimensions are devices and time.

Nobody starves: a job that has waited longer than the starvation limit of its class is in the lowest level
again until it has held devices for as long as a new job may.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import Final

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.snapshot import PendingJob, RunningJob

LEARNED_PART: Final = 0.05
"""So much of all device-seconds is held below the first limit: the lowest level is hardly ever full."""

LEARNED_FACTORS: Final = (1.0, 6.0, 48.0)
"""The limits as multiples of the first one.  Higher ones cannot be learned from jobs that have ended: the
longest are still running.
"""

LEAST_PART_OF_JOBS: Final = 0.2
"""So many of the jobs end below each limit at least: jobs of equal length do not take turns."""

LEARNS_EVERY_S: Final = 3600.0
"""How often the limits are learned anew."""

LATEST_JOBS: Final = 2000
"""Ended jobs from which they are learned, the latest ones."""

LEAST_JOBS: Final = 100
"""Earlier jobs without which nothing is learned."""

LEAST_LIMIT_S: Final = 600.0
"""The least limit in device-seconds: below, jobs would be preempted before that can pay."""

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

    It is the service level, or the remaining time where the order is by remaining time.
    """
    if config.order is SchedulingOrder.SRPT:
        return job.planned_duration_s(config)
    return 0 if promoted else service_level(job.ran_s * billed_devices(job.request, config), config)


def running_standing(job: RunningJob, ends_s: float, now_s: float, config: SchedulerConfig) -> float:
    """Return the standing of a running job that is expected to end at ``ends_s``."""
    if config.order is SchedulingOrder.SRPT:
        return ends_s - now_s
    return service_level(_service_device_s(job, now_s, config), config)


def next_rise_s(job: RunningJob, now_s: float, config: SchedulerConfig) -> float | None:
    """Return in how many seconds a running job reaches the next service level; None: it is in the last."""
    devices = billed_devices(job.request, config)
    device_s = _service_device_s(job, now_s, config)
    limits = config.switching.levels_device_s[service_level(device_s, config) :]
    return (limits[0] - device_s) / devices if limits and devices else None


def _service_device_s(job: RunningJob, now_s: float, config: SchedulerConfig) -> float:
    """Return the device-seconds that decide the level of a running job."""
    waited_s = 0.0 if job.queued_s is None else job.started_s - job.queued_s
    was_promoted = waited_s > config.priority_class(job.priority_class).starvation_limit_s
    held_s = now_s - job.started_s if was_promoted else job.held_s(now_s)
    return held_s * billed_devices(job.request, config)
