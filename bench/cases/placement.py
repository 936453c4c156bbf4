"""The cost of one placement plan with ten thousand waiting jobs and 256 devices, in the worst of four states.

The figure is the processor time of the planning thread.  Twenty owners in two groups submit jobs of three
classes with 24 kinds of requests and different time limits.  The snapshot is made beforehand.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from bench.support import interleave
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from runner.core.scheduler.backfill import plan
from runner.core.scheduler.config import Quota, Quotas, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import (
    GIB,
    Host,
    PendingJob,
    ResourceRequest,
    RunningJob,
    SchedulableDevice,
    Snapshot,
)

BENCH: Final = "placement"
WAITING: Final = 10_000
HOSTS: Final = 32
AIM_MS: Final = 50.0
NOW_S: Final = 1_900_000_000.0
KINDS: Final = tuple(
    ResourceRequest(4.0 * gpus, 32 * GIB * gpus, gpus, device_bytes=memory * GIB, linked=linked)
    for gpus in (1, 2, 4, 8)
    for memory in (0, 40, 80)
    for linked in (False, True)
)


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the cost of a plan for hosts in several states, and of all pending reasons as text."""
    contestants = {name: _time_plan(snapshot) for name, snapshot in snapshots().items()}
    contestants["words"] = _time_reasons(snapshots()["full"])
    took = interleave.interleave(scratch.effort.starts, scratch.effort.warmups, contestants)
    small = in_milliseconds("the same, 100 jobs waiting", took["small"])
    for name, label in LABELS.items():
        ours = in_milliseconds(f"a plan, {WAITING} jobs waiting, {label}", took[name])
        yield Result(BENCH, ours, small, Aim(AIM_MS, "p50"))
    for name, (label, beside) in GIVING_WAY.items():
        ours = in_milliseconds(f"attained, {WAITING} jobs waiting, {label}", took[name])
        fair = in_milliseconds("the same in the order fair", took[beside])
        yield Result(BENCH, ours, fair, Aim(AIM_ATTAINED, "ratio"))
    yield Result(BENCH, in_milliseconds(f"all {WAITING} reasons in words", took["words"]))


AIM_ATTAINED: Final = 2.0
"""A plan in which jobs may be preempted costs at most so many times one in the order ``fair``."""

GIVING_WAY: Final = {
    "attained full": ("256 devices allocated", "full"),
    "attained some": ("a quarter of 256 devices free", "some"),
    "attained kept": ("256 devices allocated, nobody may be preempted", "full"),
}

LABELS: Final = {
    "full": "256 devices allocated",
    "some": "a quarter of 256 devices free",
    "empty": "256 devices free",
    "capped": "every owner at a quota",
}


def snapshots() -> dict[str, Snapshot]:
    """Return the same queue with hosts in several states."""
    full = snapshot(WAITING, 1.0)
    quotas = Quotas(user=Quota(devices=sum(job.request.gpus for job in full.running) // 40, jobs=10))
    return {
        "full": full,
        "some": snapshot(WAITING, 0.75),
        "empty": snapshot(WAITING, 0.0),
        "capped": replace(snapshot(WAITING, 0.75), config=SchedulerConfig(quotas=quotas)),
        "small": snapshot(100, 1.0),
        "attained full": attained(full, preemptible=True),
        "attained some": attained(snapshot(WAITING, 0.75), preemptible=True),
        "attained kept": attained(full, preemptible=False),
    }


def attained(known: Snapshot, *, preemptible: bool) -> Snapshot:
    """Return a snapshot in the order ``attained``, in which all jobs have run for a day, at 30 s a switch."""
    running = tuple(
        replace(job, ran_s=86400.0, save_s=10.0, restart_s=20.0, preemptible=preemptible)
        for job in known.running
    )
    return replace(known, running=running, config=SchedulerConfig(order=SchedulingOrder.ATTAINED))


def snapshot(waiting: int, lent: float) -> Snapshot:
    """Return a queue with hosts of which a part is allocated."""
    dice = random.Random(7)  # noqa: S311 - no secret
    running = tuple(
        _running(host, half, dice) for host in range(HOSTS) for half in (0, 1) if dice.random() < lent
    )
    queue = tuple(_waiting(number, dice) for number in range(waiting))
    usage = {f"user{number}": dice.expovariate(1e-6) for number in range(20)}
    hosts = tuple(_host(number) for number in range(HOSTS))
    return Snapshot(NOW_S, hosts, queue, running, usage, {"lab": 1e6, "guests": 2e6})


def _host(number: int) -> Host:
    devices = tuple(
        SchedulableDevice(f"{number}-{i}", f"GPU-{i}", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB,
               capability=(9, 0), link_group="nvlink", numa=i // 4)
        for i in range(8)
    )  # fmt: skip
    return Host(f"host{number}", 128, 2048 * GIB, devices)


def _running(host: int, half: int, dice: random.Random) -> RunningJob:
    devices = tuple(f"{host}-{i}" for i in range(4 * half, 4 * half + 4))
    ends_s = NOW_S + dice.uniform(60, 86400)
    owner = f"user{dice.randrange(20)}"
    return RunningJob(
        f"r{host}-{half}",
        owner,
        ResourceRequest(16, 64 * GIB, 4),
        f"host{host}",
        devices,
        NOW_S - 3600,
        ends_s,
    )


def _waiting(number: int, dice: random.Random) -> PendingJob:
    return PendingJob(
        f"job{number:05d}",
        f"user{dice.randrange(20)}",
        dice.choice(KINDS),
        NOW_S - 86400 + number * 8.0,
        group=dice.choice(("lab", "guests")),
        priority_class=dice.choice(("idle", "normal", "normal", "urgent")),
        time_limit_s=dice.choice((None, float(dice.randrange(600, 86400)))),
    )


def _time_plan(known: Snapshot) -> Callable[[], float]:
    def measure() -> float:
        gc.collect()
        began = time.thread_time()
        plan(known)
        return time.thread_time() - began

    return measure


def _time_reasons(known: Snapshot) -> Callable[[], float]:
    def measure() -> float:
        gc.collect()
        waits = plan(known).pending_reasons
        began = time.thread_time()
        len([wait.why for wait in waits.values()])
        return time.thread_time() - began

    return measure
