"""``runner usage``: print resource use and job outcomes."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from runner.cli.console import complain, harmless, on_terminal, say_json, say_row
from runner.cli.parameters import as_json, time_ago
from runner.cli.table import Cell, Table, format_table, terminal_style, terminal_width
from runner.client.client import find_or_start

Json = dict[str, Any]

LONGEST_S: Final = 3660 * 86400
"""As far back as the daemon can look."""

COLUMNS: Final = ("DEVICE HOURS", "CPU HOURS", "SHARE", "EFFICIENCY", "UTILISATION", "ATTEMPTS")
SWITCHES: Final = ("PREEMPTED", "COST", "PREFERRED", "SPARED WAIT")
"""Shown where some job has been preempted for another."""


@click.command()
@click.option(
    "--since",
    default="7d",
    metavar="TIME",
    callback=time_ago,
    help="The beginning of the period until now: 90m or 7d ago, or a time with its offset.  [7d]",
)
@click.option(
    "--by", type=click.Choice(["user", "team", "job"]), default="user", help="What to group by.  [user]"
)
@as_json
def usage(*, since: float, by: str, as_json: bool) -> None:
    """Report device hours and CPU hours by user, team or job, the largest first; of jobs the 200 largest.

    SHARE is the part of all allocated device time (of CPU time where no device was allocated),
    EFFICIENCY the part of it that produced lasting results, UTILISATION the mean over the devices.
    PREEMPTED is how often jobs were preempted, COST the hours that this cost, PREFERRED how often
    others were preempted for these, and SPARED WAIT the hours that this spared them.

    In a pipe: name, device hours, CPU hours, share, efficiency, utilisation, attempts, preempted, cost,
    preferred and spared wait, between tabs; shares are from 0 to 1.
    """
    length_s = float(round(time.time() - since))
    if length_s <= 0:
        raise click.BadParameter("must be more than 0", param_hint="--since")
    if length_s > LONGEST_S:
        raise click.BadParameter(f"must be {LONGEST_S // 86400}d at most", param_hint="--since")
    answer = find_or_start(complain).get("/v1/usage", {"since_s": length_s, "by": by})
    if as_json:
        say_json(answer)
    elif on_terminal():
        lines = format_table(make_usage_table(answer), terminal_width(), terminal_style())
        click.echo("\n".join([*lines, "", format_share(answer)]))
        if more := answer.get("more"):
            click.echo(f"{more} more jobs used less")
    else:
        for use in answer["uses"]:
            say_row(*_row(use))


def make_usage_table(answer: Json) -> Table:
    """Return the table, with the total in its last line."""
    uses, whole = answer["uses"], {**answer["total"], "who": "all"}
    switches = bool(whole["gave_way"] or whole["preferred"])
    rows = tuple(
        (*_cells(use), *(_switch_cells(use) if switches else ())) for use in ([*uses, whole] if uses else [])
    )
    columns = (answer["by"].upper(), *COLUMNS, *(SWITCHES if switches else ()))
    hours = "CPU HOURS" if whole["device_s"] else "DEVICE HOURS"
    spare = ("ATTEMPTS", hours, "UTILISATION", "EFFICIENCY")
    return Table(columns, rows, empty="nothing was allocated", spare=spare)


def format_share(answer: Json) -> str:
    """Return the share of the capacity that was allocated."""
    whole, all_ = answer["total"], answer["there"]
    on_devices = all_["device_s"] or (whole["device_s"] and not all_["cpu_s"])
    name, unit = ("device_s", "device hours") if on_devices else ("cpu_s", "cpu hours")
    lent = f"{whole[name] / 3600:.1f} {unit} were allocated"
    if all_[name]:  # a cluster does not tell how many it has
        share = whole[name] / all_[name]
        lent = f"{whole[name] / 3600:.1f} of {all_[name] / 3600:.0f} {unit} were allocated ({share:.0%})"
    if answer.get("goodput") is not None:
        lent += f", {answer['goodput']:.0%} to lasting work (goodput)"
    budget, cost_s = answer["switching_budget"], whole["gave_way_cost_s"]
    if not whole["gave_way"] or not whole[name]:
        return lent
    return f"{lent}; preemption cost {cost_s / whole[name]:.2%} of that, and may cost {budget:.2%}"


def _cells(use: Json) -> tuple[Cell, ...]:
    return (
        Cell(harmless(use["who"]) or "-"),
        Cell(f"{use['device_s'] / 3600:.1f}", right=True),
        Cell(f"{use['cpu_s'] / 3600:.1f}", right=True),
        Cell(f"{use['share']:.0%}", right=True),
        Cell(_percent(use["efficiency"]), right=True),
        Cell(_percent(use["utilisation"]), right=True),
        Cell(str(use["attempts"]), right=True),
    )


def _switch_cells(use: Json) -> tuple[Cell, ...]:
    return (
        Cell(str(use["gave_way"]), right=True),
        Cell(f"{use['gave_way_cost_s'] / 3600:.2f}", right=True),
        Cell(str(use["preferred"]), right=True),
        Cell(f"{use['spared_wait_s'] / 3600:.1f}", right=True),
    )


def _row(use: Json) -> tuple[object, ...]:
    hours = (round(use[name] / 3600, 4) for name in ("device_s", "cpu_s"))
    shares = (
        None if use[name] is None else round(use[name], 4) for name in ("share", "efficiency", "utilisation")
    )
    cost_h, spared_h = (round(use[name] / 3600, 4) for name in ("gave_way_cost_s", "spared_wait_s"))
    switches = (use["gave_way"], cost_h, use["preferred"], spared_h)
    return (use["who"], *hours, *shares, use["attempts"], *switches)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
