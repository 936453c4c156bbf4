"""Orders of the queue on traces of GPU clusters: ``attained`` beside ``fifo`` with backfill and an oracle.

The jobs are simulated and need no machine.  A published file is read as it is; without one, a trace is made
up from published statistics of that cluster, and is called so.

- ``philly``: durations and GPUs of D. Narayanan et al., Gavel, OSDI 2020, section 7.1, who fitted them to the
  Philly trace: 80 % of the jobs last 10^1.5 to 10^3 minutes, 20 % 10^3 to 10^4, both log-uniform; 1, 2, 4 and
  8 GPUs in 70, 10, 15 and 5 % of the jobs.
- ``helios``: the median (206 s) and mean (6,652 s) of the GPU jobs of Helios, as a log-normal of at most 50
  days; half of the jobs have one GPU.  Q. Hu et al., SC 2021, and its HeliosArtifact.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from bench.support.machine import Machine, this_machine
from bench.support.result_files import RESULTS
from runner.core.scheduler.config import SchedulingOrder
from runner.core.scheduler.simulator import Arrival, Site
from runner.core.scheduler.simulator_report import Report
from runner.core.scheduler.snapshot import ResourceRequest
from runner.services.simulation import formats, run

NAME: Final = "attained-traces"
LOADS: Final = (0.7, 0.8, 0.9)
HOSTS: Final = ("1x8", "2x8", "8x8")
ORDERS: Final = (SchedulingOrder.FIFO, SchedulingOrder.ATTAINED, SchedulingOrder.SRPT)
NAMES: Final = ("fifo", "attained", run.ORACLE)
COLUMNS: Final = ("trace", "load", "devices", "`fifo`", "`attained`", "`oracle`", "by `fifo`", "by `oracle`",
                  "switching", "largest tenth")  # fmt: skip
USERS: Final = 20
DAYS: Final = 10.0
"""The end of a published trace that is simulated, and the length of a made-up one."""
JOBS: Final = 1000
"""Jobs of a made-up trace."""

FIFO_AIM, ORACLE_AIM, SWITCHING_AIM, LARGEST_AIM = 1 / 20, 1.5, 0.03, 1.3

HELIOS_MEDIAN_S, HELIOS_MEAN_S, HELIOS_LONGEST_S = 206.0, 6652.0, 50 * 86400.0
HELIOS_GPUS: Final = ((1, 0.55), (2, 0.1), (4, 0.1), (8, 0.25))
PHILLY_GPUS: Final = ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05))


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace at one load on one site."""

    trace: str
    published: bool
    jobs: tuple[Arrival, ...]
    load: float
    hosts: str


def make_up(name: str, seed: int, jobs: int) -> tuple[Arrival, ...]:
    """Return a trace with the statistics of a cluster; the same seed makes the same one."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    sizes = PHILLY_GPUS if name == "philly" else HELIOS_GPUS
    return tuple(
        Arrival(
            str(number),
            f"user{dice.choices(range(USERS), [1 / (rank + 1) for rank in range(USERS)])[0]:02d}",
            ResourceRequest(gpus=dice.choices([size for size, _ in sizes], [part for _, part in sizes])[0]),
            dice.uniform(0, DAYS * formats.DAY_S),
            _philly_s(dice) if name == "philly" else _helios_s(dice),
            save_s=formats.SAVE_S,
            restart_s=formats.RESTART_S,
        )
        for number in range(jobs)
    )


def _philly_s(dice: random.Random) -> float:
    bounds = (1.5, 3.0) if dice.random() < 0.8 else (3.0, 4.0)
    return 60.0 * 10 ** dice.uniform(*bounds)


def _helios_s(dice: random.Random) -> float:
    sigma = math.sqrt(2 * math.log(HELIOS_MEAN_S / HELIOS_MEDIAN_S))
    return min(max(dice.lognormvariate(math.log(HELIOS_MEDIAN_S), sigma), 1.0), HELIOS_LONGEST_S)


def cells(files: Mapping[str, Path], jobs: int, days: float) -> Iterator[Cell]:
    """Yield what is to be simulated."""
    for name in formats.FORMATS:
        if name in files:
            known = formats.last_days(formats.read_published(files[name], name).jobs, days)
        elif name in {"philly", "helios"}:
            made = make_up(name, 1, jobs)
            known = tuple(sorted(made, key=lambda job: job.submitted_s))
        else:
            continue
        for hosts in HOSTS:
            devices = sum(len(host.devices) for host in run.parse_hosts(hosts))
            held = formats.holdable(known, 8)
            for load in LOADS:
                scaled = formats.scaled_to_load(held, devices, load)
                yield Cell(name, name in files, scaled, load, hosts)


def simulate(cell: Cell) -> dict[str, Any]:
    """Return what becomes of a trace in each order, with the aims."""
    site = Site(run.parse_hosts(cell.hosts), min_interval_s=1.0, learns_levels=True)
    began_s = time.process_time()
    variants = [run.SchedulerVariant(order) for order in ORDERS]
    found = {each.variant.name: each.report for each in run.compare(variants, cell.jobs, site)}
    return {
        "trace": cell.trace,
        "published": cell.published,
        "jobs": len(cell.jobs),
        "load": cell.load,
        "devices": sum(len(host.devices) for host in site.hosts),
        "orders": {name: _numbers(report) for name, report in found.items()},
        **aims(found),
        "took_cpu_s": round(time.process_time() - began_s, 1),
    }


def _numbers(report: Report) -> dict[str, Any]:
    kept = ("utilisation", "mean_wait_s", "waits_s", "mean_slowdown", "preemptions", "switching",
            "largest_completion_s", "mean_completion_s", "fairness", "worse_than_fifo")  # fmt: skip
    numbers = asdict(replace(report, users={}))
    return {name: numbers[name] for name in kept}


def aims(found: Mapping[str, Report]) -> dict[str, Any]:
    """Return how ``attained`` stands beside its aims, each with whether it was reached."""
    fifo, attained, oracle = (found[name] for name in ("fifo", "attained", run.ORACLE))
    values = {
        "by_fifo": (attained.mean_slowdown / fifo.mean_slowdown, FIFO_AIM),
        "by_oracle": (attained.mean_slowdown / oracle.mean_slowdown, ORACLE_AIM),
        "switching": (attained.switching, SWITCHING_AIM),
        "largest_by_fifo": (attained.largest_completion_s / fifo.largest_completion_s, LARGEST_AIM),
    }
    return {name: {"value": value, "aim": aim, "met": value <= aim} for name, (value, aim) in values.items()}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as a table of Markdown; what misses its aim is in bold."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for each in results:
        slowdowns = (f"{each['orders'][name]['mean_slowdown']:.4g}" for name in NAMES)
        fifo = each["by_fifo"]
        shown = (
            _marked(f"1/{1 / fifo['value']:.3g}", fifo),
            _marked(f"{each['by_oracle']['value']:.2f}", each["by_oracle"]),
            _marked(f"{each['switching']['value']:.2%}", each["switching"]),
            _marked(f"{each['largest_by_fifo']['value']:.2f}", each["largest_by_fifo"]),
        )
        name = each["trace"] if each["published"] else f"{each['trace']}, made up"
        row = (name, each["load"], each["devices"], *slowdowns, *shown)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def _marked(text: str, aim: Mapping[str, Any]) -> str:
    return text if aim["met"] else f"**{text}**"


def draw(results: Sequence[Mapping[str, Any]], machine: Machine, path: Path) -> None:
    """Draw the slowdowns of each trace, at each load and size, as bars on a logarithmic axis."""
    from matplotlib.figure import Figure  # of the extra ``chart``

    traces = list(dict.fromkeys(each["trace"] for each in results))
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, trace in zip(
        figure.subplots(1, len(traces), sharey=True, squeeze=False)[0], traces, strict=True
    ):
        here = [each for each in results if each["trace"] == trace]
        for number, name in enumerate(NAMES):
            places = [place + 0.27 * (number - 1) for place in range(len(here))]
            values = [each["orders"][name]["mean_slowdown"] for each in here]
            axes.bar(places, values, 0.27, label=name)
        labels = [f"{each['devices']}\n{each['load']:g}" for each in here]
        axes.set_xticks(range(len(here)), labels, fontsize=7)
        made = "" if here[0]["published"] else " (made up)"
        axes.set(title=f"{trace}{made}", yscale="log", xlabel="devices, load")
    highest = max(each["orders"][name]["mean_slowdown"] for each in results for name in NAMES)
    figure.axes[0].set_ylim(0.9, 1.5 * highest)  # of all: the axis is shared
    figure.axes[0].set_ylabel("mean bounded slowdown")
    figure.axes[0].legend()
    figure.suptitle(f"simulated on {machine.cpu}, {machine.cores} cores", fontsize=8)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate all cells, print the table, and keep the numbers and the figure."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.traces", description=(__doc__ or "").partition("\n")[0]
    )
    for name in formats.FORMATS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"the published file of {name}")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of a made-up trace")
    parser.add_argument("--days", type=float, default=DAYS, help="of a published trace, from its end")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS)
    asked = parser.parse_args(argv)
    given = vars(asked)
    files = {name: given[name.replace("-", "_")] for name in formats.FORMATS}
    machine = this_machine()
    folder = asked.results / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    given_files = {name: path for name, path in files.items() if path is not None}
    wanted = sorted(cells(given_files, asked.jobs, asked.days), key=lambda cell: (cell.hosts, cell.load))
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        for found in pool.map(simulate, wanted):
            results.append(found)
            print(table([found]).splitlines()[-1], flush=True)
    results.sort(key=lambda each: (each["trace"], each["devices"], each["load"]))
    kept = {"machine": machine.as_json(), "days": asked.days, "traces": results}
    folder = folder / "simulated"  # tables of another form than those of bench --show
    folder.mkdir(exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(kept, indent=1) + "\n")
    draw(results, machine, folder / f"{NAME}.png")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
