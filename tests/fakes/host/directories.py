"""Small hosts and queues for the tests of the order."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypedDict, Unpack

from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.snapshot import (
    GIB,
    DeviceState,
    EndedJob,
    Host,
    Maintenance,
    PendingJob,
    ResourceRequest,
    RunningJob,
    SchedulableDevice,
    Snapshot,
)

NOW_S = 1_900_000_000.0
"""2030-03-17 17:46:40 UTC."""

HOUR_S = 3600.0
SMALL = ResourceRequest(1.0, GIB, 1)


def devices(
    count: int, *, host: str = "h", link_group: str | None = "nvlink"
) -> tuple[SchedulableDevice, ...]:
    return tuple(
        SchedulableDevice(f"{host}-{i}", f"GPU-{i}", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB,
               capability=(9, 0), link_group=link_group, numa=2 * i // count)
        for i in range(count)
    )  # fmt: skip


def host(count: int = 4, name: str = "h", *, cpus: float = 32, own: Iterable[SchedulableDevice] = ()) -> Host:
    return Host(name, cpus, 256 * GIB, tuple(own) or devices(count, host=name))


def gpus(count: int, *, linked: bool = False) -> ResourceRequest:
    return ResourceRequest(1.0, GIB, count, linked=linked)


def waiting(  # noqa: PLR0913  a job has many sides
    job_id: str,
    needs: ResourceRequest = SMALL,
    *,
    age_s: float = 60.0,
    owner: str = "ada",
    hours: float | None = 1.0,
    priority_class: str = "normal",
    priority: int = 50,
) -> PendingJob:
    limit_s = None if hours is None else hours * HOUR_S
    return PendingJob(
        job_id,
        owner,
        needs,
        NOW_S - age_s,
        priority_class=priority_class,
        priority=priority,
        time_limit_s=limit_s,
    )


def running(  # noqa: PLR0913  a job has many sides
    job_id: str,
    held: Iterable[str],
    *,
    hours: float | None = 1.0,
    owner: str = "bob",
    priority_class: str = "normal",
    on: str = "h",
    ran_s: float = HOUR_S,
) -> RunningJob:
    held = tuple(held)
    ends_s = None if hours is None else NOW_S + hours * HOUR_S
    return RunningJob(
        job_id, owner, gpus(len(held)), on, held, NOW_S - ran_s, ends_s, priority_class=priority_class
    )


class More(TypedDict, total=False):
    """Optional contents of a snapshot."""

    user_usage: Mapping[str, float]
    group_usage: Mapping[str, float]
    ended: Mapping[str, EndedJob]
    maintenance: tuple[Maintenance, ...]
    utc_offset_s: float
    switching_left_device_s: float


def planned(
    queue: Iterable[PendingJob],
    hosts: Iterable[Host] = (),
    busy: Iterable[RunningJob] = (),
    rules: SchedulerConfig | None = None,
    **more: Unpack[More],
) -> Plan:
    """Return the plan for a queue, on one host with four linked devices unless others are given."""
    known = Snapshot(
        NOW_S, tuple(hosts) or (host(),), tuple(queue), tuple(busy), config=rules or SchedulerConfig(), **more
    )
    return plan(known)


def starts(decided: Plan) -> dict[str, tuple[str, ...]]:
    return {start.job_id: start.devices for start in decided.starts}


def out(device: SchedulableDevice, state: DeviceState, reason: str = "") -> SchedulableDevice:
    return replace(device, state=state, reason=reason)
