"""The order of the queue by remaining time, with wrong estimates, beside orders that know less and more.

Jobs of a published trace are simulated; they need no machine.  The trace of Philly is read where it lies:
``sia-simulator/traces/philly.csv`` of https://github.com/siasosp23/artifacts, which has no
licence that says that it may be copied here.

- ``remaining``: ``attained``, where jobs report steps; the remaining time is wrong by up to ERROR.
- ``attained``: the same jobs without a report.
- ``tiresias``: attained service with the queues of Tiresias' simulator (3,250, 7,200 and 18,000 GPU-seconds),
  preemption at its price, without a budget, and without owners.
- ``oracle``: the shortest remaining time first by the true durations.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from bench.support.machine import this_machine
from bench.support.result_files import RESULTS
from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder, SwitchingConfig
from runner.core.scheduler.simulator import Arrival, SimulatedJob, Site, simulate
from runner.core.scheduler.simulator_report import make_report
from runner.services.simulation import formats, run

NAME: Final = "remaining-time"
HOSTS: Final = ("1x8", "2x8")
LOADS: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
ERROR: Final = 0.5
JOBS: Final = 1000
SEED: Final = 1
TIRESIAS: Final = SwitchingConfig((3250.0, 7200.0, 18000.0), budget=1.0)
ORDERS: Final = ("fifo", "fair", "tiresias", "attained", "remaining", run.ORACLE)
COLUMNS: Final = ("devices", "load", "order", "mean, h", "p99, h", "slowdown", "finish-time fairness",
                  "fairness", "by oracle")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One order at one load on one site."""

    order: str
    load: float
    hosts: str
    jobs: tuple[Arrival, ...]


def sample(jobs: Sequence[Arrival], number: int) -> tuple[Arrival, ...]:
    """Return jobs of the whole trace that a host of eight can hold, each with an error in its estimate."""
    dice = random.Random(SEED)  # noqa: S311 - no secret
    held = formats.holdable(jobs, 8)
    chosen = sorted(dice.sample(held, min(number, len(held))), key=lambda job: job.submitted_s)
    return tuple(replace(job, misjudged=dice.uniform(1 - ERROR, 1 + ERROR)) for job in chosen)


def cells(jobs: Sequence[Arrival]) -> Iterator[Cell]:
    for hosts in HOSTS:
        devices = sum(len(host.devices) for host in run.parse_hosts(hosts))
        for load in LOADS:
            scaled = formats.scaled_to_load(jobs, devices, load)
            yield from (Cell(order, load, hosts, scaled) for order in ORDERS)


def play(cell: Cell) -> dict[str, Any]:
    """Return what becomes of the jobs in one order."""
    jobs, site = cell.jobs, Site(run.parse_hosts(cell.hosts), min_interval_s=1.0)
    match cell.order:
        case "remaining":
            rules = SchedulerConfig(order=SchedulingOrder.ATTAINED)
            jobs = tuple(replace(job, progress=True) for job in jobs)
        case "tiresias":
            rules = SchedulerConfig(order=SchedulingOrder.ATTAINED, switching=TIRESIAS)
            jobs = tuple(replace(job, owner="all") for job in jobs)
        case run.ORACLE:
            rules = SchedulerConfig(order=SchedulingOrder.SRPT)
        case name:
            rules = SchedulerConfig(order=SchedulingOrder(name))
    learns = cell.order in {"attained", "remaining"}
    site = replace(site, config=rules, learns_levels=learns, true_durations=cell.order == run.ORACLE)
    owners = {job.job_id: job.owner for job in cell.jobs}
    played = [
        replace(each, arrival=replace(each.arrival, owner=owners[each.arrival.job_id]))
        for each in simulate(site, jobs)
    ]
    report, devices = make_report(site, played, len(jobs)), sum(len(host.devices) for host in site.hosts)
    took_s = sorted(each.ended_s - each.arrival.submitted_s for each in played)
    return {
        "order": cell.order,
        "load": cell.load,
        "devices": devices,
        "jobs": report.jobs,
        "mean_completion_s": report.mean_completion_s,
        "p99_completion_s": percentile(took_s, 0.99),
        "mean_slowdown": report.mean_slowdown,
        "finish_time_fairness_p99": percentile(sorted(finish_time_fairness(played, devices)), 0.99),
        "fairness": report.fairness,
        "switching": report.switching,
        "preemptions": report.preemptions,
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def finish_time_fairness(played: Sequence[SimulatedJob], devices: int) -> Iterator[float]:
    """Yield for each job its completion by that with an equal part of the devices all the time.

    The part is that of the devices by those that all jobs ask for which are there, on average while the job
    is there (K. Mahajan et al., Themis, NSDI 2020).
    """
    changes: dict[float, int] = {}
    for each in played:
        for at_s, gpus in ((each.arrival.submitted_s, 1), (each.ended_s, -1)):
            changes[at_s] = changes.get(at_s, 0) + gpus * each.arrival.request.gpus
    times, sums, asked, total = sorted(changes), dict[float, float](), 0, 0.0
    for before_s, at_s in zip((times[0], *times), times, strict=False):
        total += (at_s - before_s) * max(asked / devices, 1.0)
        sums[at_s], asked = total, asked + changes[at_s]
    for each in played:
        begins_s, ends_s = each.arrival.submitted_s, each.ended_s
        crowded = (sums[ends_s] - sums[begins_s]) / (ends_s - begins_s)
        yield (ends_s - begins_s) / (max(each.arrival.duration_s, 1.0) * crowded)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a table of Markdown."""
    oracles = {
        (each["devices"], each["load"]): each["mean_completion_s"]
        for each in results
        if each["order"] == run.ORACLE
    }
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for each in results:
        oracle_s = oracles[each["devices"], each["load"]]
        row = (
            each["devices"],
            each["load"],
            f"`{each['order']}`",
            f"{each['mean_completion_s'] / 3600:.1f}",
            f"{each['p99_completion_s'] / 3600:.0f}",
            f"{each['mean_slowdown']:.3g}",
            f"{each['finish_time_fairness_p99']:.3g}",
            f"{each['fairness']:.3f}",
            f"{each['mean_completion_s'] / oracle_s:.2f}",
        )
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate all cells, print the table, and keep the numbers."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.remaining", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("trace", type=Path, metavar="FILE", help="a published trace")
    parser.add_argument("--format", choices=tuple(formats.FORMATS), default="philly-sia")
    parser.add_argument("--jobs", type=int, default=JOBS, help="of the trace, drawn from all of it")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS)
    asked = parser.parse_args(argv)
    wanted = cells(sample(formats.read_published(asked.trace, asked.format).jobs, asked.jobs))
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        results = list(pool.map(play, wanted))
    machine = this_machine()
    folder = asked.results / machine.slug / "simulated"
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"machine": machine.as_json(), "error": ERROR, "seed": SEED, "cells": results}
    (folder / f"{NAME}.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
