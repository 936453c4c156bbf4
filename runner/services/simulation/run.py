"""Running simulations: hosts in short form, a comparison of orders, synthetic traces."""

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, Final

from runner.base.errors import UsageError
from runner.base.textfile import quoted
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.formatting import format_cpus
from runner.core.scheduler.placement import matches_request
from runner.core.scheduler.simulator import Arrival, SimulatedJob, Site, simulate
from runner.core.scheduler.simulator_report import Report, make_report, worse_off
from runner.core.scheduler.snapshot import GIB, Host, ResourceRequest, SchedulableDevice

DAY_S: Final = 86400.0
HOUR_S: Final = 3600.0

MOST_DEVICES: Final = 4096


ORACLE: Final = "oracle"
"""The shortest remaining time first, with the true durations: what no scheduler can know."""


@dataclass(frozen=True, slots=True)
class SchedulerVariant:
    """An order, with or without backfill."""

    order: SchedulingOrder
    backfill: bool = True

    @property
    def name(self) -> str:
        if self.order is SchedulingOrder.SRPT:
            return ORACLE
        return self.order if self.backfill else f"{self.order}, no backfill"


FIFO: Final = SchedulerVariant(SchedulingOrder.FIFO)
"""Variant with which the others are compared."""

VARIANTS: Final = (
    *(SchedulerVariant(order) for order in SchedulingOrder),
    SchedulerVariant(SchedulingOrder.FIFO, backfill=False),
)
"""The variants that are compared by default."""


def parse_hosts(written: str) -> tuple[Host, ...]:
    """Return the hosts that ``4x8`` describes, with any sign for times: four, with eight linked devices each.

    Raises:
        UsageError: it describes none.
    """
    match = re.fullmatch(r"([0-9]{1,4})\s*[xX*\N{MULTIPLICATION SIGN}]\s*([0-9]{1,4})", written.strip())
    counts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 < counts[0] * counts[1] <= MOST_DEVICES:
        raise UsageError(
            f"{quoted(written)}: is not a number of hosts and devices; write 4x8 for 4 with 8 each"
        )
    return tuple(parse_host(f"host{number}", counts[1]) for number in range(counts[0]))


def parse_host(name: str, devices: int) -> Host:
    """Return a host whose devices are linked and whose processors and memory are not scarce."""
    own = tuple(
        SchedulableDevice(f"{name}-{i}", f"GPU-{i}", model="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB,
               capability=(9, 0), link_group="nvlink", numa=2 * i // devices)
        for i in range(devices)
    )  # fmt: skip
    return Host(name, 16.0 * devices, 256 * GIB * devices, own)


@dataclass(frozen=True, slots=True)
class PlayedOrder:
    """Outcome of the jobs of a trace in one order."""

    variant: SchedulerVariant
    jobs: Sequence[SimulatedJob]  # those that have ended
    report: Report


def compare(
    variants: Iterable[SchedulerVariant], trace: Sequence[Arrival], site: Site, processes: int = 1
) -> Iterator[PlayedOrder]:
    """Yield the outcome of the same trace in each order, as soon as it is there.

    If ``fifo`` with backfill is among them it is played first, and the others are compared with it.

    Raises:
        UsageError: a job of the trace asks for more than any host has.
    """
    wanted = list(variants)
    results = play(sorted(wanted, key=lambda each: each != FIFO), trace, site, processes)
    done: dict[SchedulerVariant, list[SimulatedJob]] = {}
    for variant in wanted:
        while variant not in done:
            found, jobs = next(results)
            done[found] = jobs
        report = make_report(site, done[variant], len(trace))
        if FIFO in done:
            report = replace(report, worse_than_fifo=worse_off(done[variant], done[FIFO]))
        yield PlayedOrder(variant, done[variant], report)


def play(
    variants: Iterable[SchedulerVariant], trace: Sequence[Arrival], site: Site, processes: int = 1
) -> Iterator[tuple[SchedulerVariant, list[SimulatedJob]]]:
    """Yield the finished jobs of the same trace for each order, as soon as they are there.

    With several processes, so many orders are simulated at a time.

    Raises:
        UsageError: a job of the trace asks for more than any host has.
    """
    refuse_unplayable(trace, site)
    known = list(variants)
    if processes <= 1 or len(known) <= 1:
        for variant in known:
            yield variant, _play_one(variant, trace, site)
        return
    with ProcessPoolExecutor(min(processes, len(known)), get_context("spawn")) as pool:
        results = [pool.submit(_play_one, variant, trace, site) for variant in known]
        for variant, result in zip(known, results, strict=True):
            yield variant, result.result()


def _play_one(variant: SchedulerVariant, trace: Sequence[Arrival], site: Site) -> list[SimulatedJob]:
    rules = replace(site.config, order=variant.order, backfill=variant.backfill)
    return simulate(replace(site, config=rules, true_durations=variant.order is SchedulingOrder.SRPT), trace)


def refuse_unplayable(trace: Iterable[Arrival], site: Site) -> None:
    """Look for jobs that no host could ever hold.

    Raises:
        UsageError: naming the first, and how many there are.
    """
    verdicts: dict[ResourceRequest, bool] = {}
    bad = [job for job in trace if not verdicts.setdefault(job.request, _holds(job.request, site.hosts))]
    if bad:
        more = f" (and {len(bad) - 1} more jobs)" if len(bad) > 1 else ""
        cpus = format_cpus(bad[0].request.cpus)
        raise UsageError(
            f"job {bad[0].job_id}: asks for {bad[0].request.gpus} GPUs, {cpus} and "
            f"{bad[0].request.memory_bytes / GIB:g} GiB, which no host has{more}; simulate larger hosts"
        )


def _holds(needs: ResourceRequest, among: Iterable[Host]) -> bool:
    return any(
        sum(matches_request(needs, device) for device in each.devices) >= needs.gpus
        and each.cpus >= needs.cpus
        and each.memory_bytes >= needs.memory_bytes
        for each in among
    )


def as_json(variant: SchedulerVariant, found: Report) -> dict[str, Any]:
    """Return a report for machines."""
    return {
        "order": ORACLE if variant.order is SchedulingOrder.SRPT else variant.order.value,
        "backfill": variant.backfill,
        **asdict(found),
    }


# --- made-up traces


@dataclass(frozen=True, slots=True)
class SyntheticTrace:
    """The parameters of a synthetic trace."""

    jobs: int = 2000
    users: int = 20
    days: float = 14.0
    devices: int = 32  # that it is made for
    largest: int = 8  # GPUs of one job
    load: float = 0.85  # work handed in, by what the devices could do in that time


SIZES: Final = ((1, 0.62), (2, 0.16), (4, 0.13), (8, 0.09))
"""GPUs of a job, and how many jobs are so large: small ones by far the most, as in published traces."""

LIMITS_H: Final = (0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168)
"""Time limits that people choose: round ones, and generous."""


def synthetic(seed: int, recipe: SyntheticTrace = SyntheticTrace()) -> tuple[Arrival, ...]:
    """Return a synthetic trace; the same seed and recipe always make the same one.

    A few users hand in most of the jobs (Zipf), in sittings of a few jobs of one kind each, on
    weekdays and in the afternoon rather than at night; running times are log-normal, limits are
    round and mostly several times too long.  What is typical of such traces: D. Feitelson,
    Workload Modeling for Computer Systems Performance Evaluation, Cambridge 2015, ch. 8 and 9.
    """
    dice = random.Random(seed)  # noqa: S311 - no secret
    drafts: list[Arrival] = []
    while len(drafts) < recipe.jobs:
        drafts += _session(len(drafts), recipe, dice)
    drafts = drafts[: recipe.jobs]
    work_s = sum(job.request.gpus * job.duration_s for job in drafts)
    scale = recipe.load * recipe.devices * recipe.days * DAY_S / work_s
    scaled = [_scaled(job, scale, dice) for job in drafts]
    return tuple(sorted(scaled, key=lambda job: (job.submitted_s, job.job_id)))


def _session(first: int, recipe: SyntheticTrace, dice: random.Random) -> list[Arrival]:
    """Return the jobs of one session of a user: of one kind, seconds apart."""
    number = _zipf(recipe.users, dice)
    begins_s = _moment(recipe.days, dice)
    gpus = _size(recipe, dice)
    priority_class = dice.choices(("normal", "idle", "urgent"), (0.85, 0.1, 0.05))[0]
    typical_s = dice.lognormvariate(math.log(HOUR_S), 1.2) * (1 + gpus / 4)
    count = min(1 + int(dice.expovariate(1 / 4)), 60)
    needs = ResourceRequest(4.0 * gpus, 32 * GIB * gpus, gpus, linked=gpus > 1)
    return [
        Arrival(
            f"j{first + i:06d}",
            f"user{number:02d}",
            needs,
            begins_s + i * dice.uniform(1, 120),
            typical_s * dice.lognormvariate(0, 0.5),
            group=f"group{number % 4}",
            priority_class=priority_class,
        )
        for i in range(count)
    ]


def _zipf(users: int, dice: random.Random) -> int:
    return dice.choices(range(users), [1 / (rank + 1) for rank in range(users)])[0]


def _size(recipe: SyntheticTrace, dice: random.Random) -> int:
    fitting = [(size, share) for size, share in SIZES if size <= recipe.largest]
    return dice.choices([size for size, _ in fitting], [share for _, share in fitting])[0]


def _moment(days: float, dice: random.Random) -> float:
    """Return a time of submission: five in six on a weekday, most around three in the afternoon."""
    while True:
        day = dice.uniform(0, days)
        hour = 24 * (day % 1)
        liked = (0.35 + 0.65 * math.exp(-(((hour - 15) / 5) ** 2))) * (0.4 if int(day) % 7 >= 5 else 1.0)
        if dice.random() < liked:
            return day * DAY_S


def _scaled(job: Arrival, scale: float, dice: random.Random) -> Arrival:
    """Return a job of the length that makes the load come out, with the limit its owner would set."""
    lasts_s = max(job.duration_s * scale, 30.0)
    asked_h = lasts_s / HOUR_S * dice.choice((1.1, 1.5, 2, 3, 5))
    limit_h = next((each for each in LIMITS_H if each >= asked_h), asked_h)
    return replace(job, duration_s=lasts_s, time_limit_s=limit_h * HOUR_S)
