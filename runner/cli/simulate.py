"""``runner simulate``: simulate queue orders on the jobs of a trace; needs no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from runner.cli.console import complain, on_terminal, say_json, say_row
from runner.cli.parameters import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.core.scheduler.simulator import Arrival, SimulatedJob, Site
    from runner.core.scheduler.simulator_report import Report
    from runner.services.simulation.run import PlayedOrder, SchedulerVariant

FILE = click.Path(path_type=Path)
DEFAULT_LOAD: Final = 0.85
ORDERS: Final = ("fair", "attained", "fifo", "priority", "sjf", "oracle")
COLUMNS: Final = (
    "order", "utilisation", "mean wait h", "p50", "p90", "p95", "p99", "max", "slowdown", "preemptions",
    "switching", "largest h", "fairness", "service fairness", "never started", "worse than fifo",
)  # fmt: skip
USER_COLUMNS: Final = ("order", "user", "jobs", "device h", "mean wait h", "slowdown", "got of its due")


@click.command()
@click.option(
    "--trace", type=FILE, metavar="FILE", help="Jobs as CSV or JSON Lines; docs/explanation/simulation.md."
)
@click.option(
    "--format",
    "published",
    type=click.Choice(("alibaba-gpu-2023", "philly", "philly-sia", "helios")),
    help="The trace is a published one, as it was published.",
)
@click.option("--last", "last_days", type=click.FloatRange(min=0.001), metavar="DAYS",
              help="Of a published trace, only the jobs submitted in its last days.")  # fmt: skip
@click.option("--synthetic", "seed", type=int, metavar="SEED", help="Generate a trace: 20 users, two weeks.")
@click.option("--jobs", type=click.IntRange(1, 1_000_000), default=2000, show_default=True,
              help="The number of jobs in a generated trace.")  # fmt: skip
@click.option("--load", type=click.FloatRange(0.01, 10), metavar="SHARE",
              help="The work relative to the capacity of the devices: of a generated trace 0.85 by default; "
                   "the submissions of another trace are stretched to it.")  # fmt: skip
@click.option("--save", type=FILE, metavar="FILE", help="Write the trace to FILE as CSV.")
@click.option("--hosts", "written", default="1x8", show_default=True, metavar="NxGPUS",
              help="The number of hosts and of devices in each.")  # fmt: skip
@click.option("--order", "orders", multiple=True, type=click.Choice(ORDERS),
              help="Simulate only this order; repeatable. By default all.")  # fmt: skip
@click.option("--no-backfill", is_flag=True, help="Switch backfill off.")
@click.option("--tick", "tick_s", type=click.FloatRange(0, 3600), default=30.0, show_default=True,
              help="The least number of seconds between two plans.")  # fmt: skip
@click.option("--svg", type=FILE, metavar="FILE",
              help="Draw the waits and the occupation of the machine, as SVG; needs matplotlib.")  # fmt: skip
@click.option("--png", type=FILE, metavar="FILE", help="The same as PNG.")
@click.option("--processes", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
              help="Simulate so many orders at a time.")  # fmt: skip
@click.option(
    "--users", "by_user", is_flag=True, help="Print a line for each user, in place of one for each order."
)
@as_json
def simulate(  # noqa: PLR0913  one for each option
    *,
    trace: Path | None,
    published: str | None,
    last_days: float | None,
    seed: int | None,
    jobs: int,
    load: float | None,
    save: Path | None,
    written: str,
    orders: tuple[str, ...],
    no_backfill: bool,
    tick_s: float,
    svg: Path | None,
    png: Path | None,
    processes: int,
    by_user: bool,
    as_json: bool,
) -> None:
    """Simulate scheduling orders with a trace of jobs, on hosts that need not exist.

    Each order is a line; tabs separate the utilisation, the mean wait and its percentiles in hours, the
    bounded slowdown, the preemptions, their cost as a part of the device time, the mean time to the end
    of the largest tenth of the jobs, two indices of fairness (1 is best), the jobs that never started,
    and those that ended later than with fifo.
    """
    from runner.cli import simulate_chart
    from runner.core.scheduler.simulator import Site
    from runner.services.simulation import formats
    from runner.services.simulation import run as simulation
    from runner.services.simulation import trace as traces

    if (trace is None) == (seed is None):
        raise click.UsageError("give either --trace FILE or --synthetic SEED")
    site = Site(simulation.parse_hosts(written), min_interval_s=tick_s, learns_levels=True)
    if trace is None:
        arrivals = _made_up(seed or 0, jobs, load or DEFAULT_LOAD, site)
    elif published is not None:
        arrivals = _published(trace, published, last_days, site)
    else:
        arrivals = traces.read(trace)
    if trace is not None and load is not None:
        arrivals = formats.scaled_to_load(arrivals, sum(len(host.devices) for host in site.hosts), load)
    if save is not None:
        traces.write(save, arrivals)
    contestants = _contestants(orders, no_backfill=no_backfill)
    pictures = {kind: path for kind, path in (("svg", svg), ("png", png)) if path is not None}
    figure = simulate_chart.new_figure() if pictures else None
    drawn: dict[str, Sequence[SimulatedJob]] = {}
    if on_terminal() and not as_json:
        say_row(*(USER_COLUMNS if by_user else COLUMNS))
    for each in simulation.compare(contestants, arrivals, site, processes):
        _say_order(each, of=len(arrivals), by_user=by_user, as_json=as_json)
        if figure is not None:
            drawn[each.variant.name] = each.jobs
    if figure is not None:
        simulate_chart.draw(figure, drawn, sum(len(host.devices) for host in site.hosts))
    for kind, path in pictures.items():
        simulate_chart.save(figure, path, kind)


def _published(path: Path, name: str, last_days: float | None, site: Site) -> Sequence[Arrival]:
    """Return the jobs of a published trace that the hosts can hold; say what was left out and assumed."""
    from runner.services.simulation import formats

    found = formats.read_published(path, name)
    jobs = found.jobs if last_days is None else formats.last_days(found.jobs, last_days)
    largest = max(len(host.devices) for host in site.hosts)
    held = formats.holdable(jobs, largest)
    too_large = f"; {len(jobs) - len(held)} jobs are larger than a host" if len(held) < len(jobs) else ""
    complain(f"{len(held)} jobs; {found.left_out} without GPUs or that never ran are left out{too_large}")
    complain(f"assumed: {found.assumptions}")
    if not held:
        raise click.UsageError("no job of the trace fits these hosts; simulate larger ones")
    return held


def _made_up(seed: int, jobs: int, load: float, site: Site) -> Sequence[Arrival]:
    from runner.services.simulation.run import SyntheticTrace, synthetic

    devices = sum(len(host.devices) for host in site.hosts)
    largest = max(len(host.devices) for host in site.hosts)
    return synthetic(seed, SyntheticTrace(jobs=jobs, devices=devices, largest=largest, load=load))


def _contestants(orders: Sequence[str], *, no_backfill: bool) -> Sequence[SchedulerVariant]:
    from runner.core.scheduler.config import SchedulingOrder
    from runner.services.simulation.run import VARIANTS, SchedulerVariant

    if not orders and not no_backfill:
        return VARIANTS
    return [
        SchedulerVariant(
            SchedulingOrder.SRPT if order == "oracle" else SchedulingOrder(order), backfill=not no_backfill
        )
        for order in orders or ORDERS
    ]


def _say_order(each: PlayedOrder, *, of: int, by_user: bool, as_json: bool) -> None:
    """Print the report of one order."""
    from runner.services.simulation import run as simulation

    if as_json:
        say_json(simulation.as_json(each.variant, each.report))
    elif by_user:
        _say_users(each.variant, each.report)
    else:
        _say(each.variant, each.report)
    if each.report.never_started:
        complain(f"{each.variant.name}: {each.report.never_started} of {of} jobs never started")


def _say(contestant: SchedulerVariant, report: Report) -> None:
    waits = [f"{wait / 3600:.2f}" for wait in (report.mean_wait_s, *report.waits_s.values())]
    say_row(
        contestant.name, f"{report.utilisation:.3f}", *waits, f"{report.mean_slowdown:.1f}",
        report.preemptions, f"{report.switching:.3%}", f"{report.largest_completion_s / 3600:.1f}",
        f"{report.fairness:.3f}", f"{report.fairness_service:.3f}", report.never_started,
        "" if report.worse_than_fifo is None else report.worse_than_fifo.jobs,
    )  # fmt: skip


def _say_users(contestant: SchedulerVariant, report: Report) -> None:
    for name, user in report.users.items():
        say_row(
            contestant.name, name, user.jobs, f"{user.device_hours:.1f}", f"{user.mean_wait_s / 3600:.2f}",
            f"{user.mean_slowdown:.1f}", f"{user.due:.3f}",
        )  # fmt: skip
