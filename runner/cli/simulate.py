"""``runner simulate``: simulate queue orders on the jobs of a trace; needs no daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from runner.cli.console import complain, on_terminal, say_json, say_row
from runner.cli.parameters import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runner.core.scheduler.simulator import Arrival, Site
    from runner.core.scheduler.simulator_report import Report
    from runner.services.simulation.run import SchedulerVariant

FILE = click.Path(path_type=Path)
DEFAULT_LOAD: Final = 0.85
ORDERS: Final = ("fair", "attained", "fifo", "priority", "sjf", "oracle")
COLUMNS: Final = (
    "order", "utilisation", "mean wait h", "p50", "p90", "p95", "p99", "max", "slowdown", "preemptions",
    "switching", "largest h", "fairness", "service fairness", "never started",
)  # fmt: skip
USER_COLUMNS: Final = ("order", "user", "jobs", "device h", "mean wait h", "slowdown", "got of its due")


@click.command()
@click.option(
    "--trace", type=FILE, metavar="FILE", help="Jobs as CSV or JSON Lines; docs/explanation/scheduling.md."
)
@click.option("--format", "published", type=click.Choice(("alibaba-gpu-2023", "philly", "helios")),
              help="The trace is a published one, as it was published.")  # fmt: skip
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
              help="Simulate only this order; may be repeated. By default all.")  # fmt: skip
@click.option("--no-backfill", is_flag=True, help="Switch backfill off.")
@click.option("--tick", "tick_s", type=click.FloatRange(0, 3600), default=30.0, show_default=True,
              help="The least number of seconds between two plans.")  # fmt: skip
@click.option("--users", "by_user", is_flag=True, help="Print a line for each user.")
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
    by_user: bool,
    as_json: bool,
) -> None:
    """Simulate scheduling orders with a trace of jobs, on hosts that need not exist.

    Each order is a line; tabs separate the mean wait and its percentiles in hours, the bounded
    slowdown, the preemptions, the part of the device time that they cost, the mean time from submission
    to end of the largest tenth of the jobs, and two indices of fairness between users (1 is the best).
    """
    from runner.core.scheduler.simulator import Site  # noqa: PLC0415  as above
    from runner.services.simulation import formats  # noqa: PLC0415  only this command pays for it
    from runner.services.simulation import run as simulation  # noqa: PLC0415  as above
    from runner.services.simulation import trace as traces  # noqa: PLC0415  as above

    if (trace is None) == (seed is None):
        raise click.UsageError("give either --trace FILE or --synthetic SEED")
    site = Site(simulation.parse_hosts(written), min_interval_s=tick_s)
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
    _play(contestants, arrivals, site, by_user=by_user, as_json=as_json)


def _published(path: Path, name: str, last_days: float | None, site: Site) -> Sequence[Arrival]:
    """Return the jobs of a published trace that the hosts can hold; say what was left out and assumed."""
    from runner.services.simulation import formats  # noqa: PLC0415  as above

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
    from runner.services.simulation.run import SyntheticTrace, synthetic  # noqa: PLC0415  as above

    devices = sum(len(host.devices) for host in site.hosts)
    largest = max(len(host.devices) for host in site.hosts)
    return synthetic(seed, SyntheticTrace(jobs=jobs, devices=devices, largest=largest, load=load))


def _contestants(orders: Sequence[str], *, no_backfill: bool) -> Sequence[SchedulerVariant]:
    from runner.core.scheduler.config import SchedulingOrder  # noqa: PLC0415  as above
    from runner.services.simulation.run import VARIANTS, SchedulerVariant  # noqa: PLC0415  as above

    if not orders and not no_backfill:
        return VARIANTS
    return [
        SchedulerVariant(
            SchedulingOrder.SRPT if order == "oracle" else SchedulingOrder(order), backfill=not no_backfill
        )
        for order in orders or ORDERS
    ]


def _play(
    contestants: Iterable[SchedulerVariant],
    arrivals: Sequence[Arrival],
    site: Site,
    *,
    by_user: bool,
    as_json: bool,
) -> None:
    """Simulate each order, and print its report as soon as it is ready."""
    from runner.services.simulation import run as simulation  # noqa: PLC0415  as above

    if on_terminal() and not as_json:
        say_row(*(USER_COLUMNS if by_user else COLUMNS))
    for contestant, report in simulation.compare(contestants, arrivals, site):
        if as_json:
            say_json(simulation.as_json(contestant, report))
        elif by_user:
            _say_users(contestant, report)
        else:
            _say(contestant, report)
        if report.never_started:
            complain(f"{contestant.name}: {report.never_started} of {len(arrivals)} jobs never started")


def _say(contestant: SchedulerVariant, report: Report) -> None:
    waits = [f"{wait / 3600:.2f}" for wait in (report.mean_wait_s, *report.waits_s.values())]
    say_row(
        contestant.name, f"{report.utilisation:.3f}", *waits, f"{report.mean_slowdown:.1f}",
        report.preemptions, f"{report.switching:.3%}", f"{report.largest_completion_s / 3600:.1f}",
        f"{report.fairness:.3f}", f"{report.fairness_service:.3f}", report.never_started,
    )  # fmt: skip


def _say_users(contestant: SchedulerVariant, report: Report) -> None:
    for name, user in report.users.items():
        say_row(
            contestant.name, name, user.jobs, f"{user.device_hours:.1f}", f"{user.mean_wait_s / 3600:.2f}",
            f"{user.mean_slowdown:.1f}", f"{user.due:.3f}",
        )  # fmt: skip
