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
from typing import Final

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.fairshare import billed_devices
from runner.core.scheduler.snapshot import PendingJob, RunningJob

LEARNED_PARTS: Final = (0.8, 0.95, 0.99)
"""So many of the earlier jobs end below each learned limit: few jobs are left for the higher levels."""

LEAST_JOBS: Final = 100
"""Earlier jobs without which nothing is learned."""

LEAST_LIMIT_S: Final = 600.0
"""The least limit in device-seconds: below, jobs would be asked to give way before that can pay."""

LEAST_FACTOR: Final = 2.0
"""So many times the limit below a limit must be; else the two are one."""


def learned_levels(held_device_s: Sequence[float]) -> tuple[float, ...] | None:
    """Return the limits of the levels that follow from what earlier jobs held; None: there are too few.

    They are quantiles of the device-seconds, so that most jobs end in the lowest level.
    """
    held = sorted(held_device_s)
    if len(held) < LEAST_JOBS:
        return None
    levels: list[float] = []
    for part in LEARNED_PARTS:
        limit = max(held[int(part * len(held))], LEAST_LIMIT_S)
        if not levels or limit >= LEAST_FACTOR * levels[-1]:
            levels.append(limit)
    return tuple(levels)


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
