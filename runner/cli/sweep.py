"""``runner sweep``: the candidates of a sweep, and the best of them.  ``runner submit`` creates sweeps."""

from __future__ import annotations

import csv
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, Final

import click

from runner.base.errors import Refused
from runner.cli.console import (
    complain,
    harmless,
    on_terminal,
    say,
    say_json,
    say_row,
    say_table,
    takes_escapes,
)
from runner.cli.parameters import CommandGroup, as_json, check_ref
from runner.client.client import find_or_start
from runner.client.http import quote_path

COLUMNS: Final = ("ID", "NAME", "STATE", "STEP", "AT RUNGS", "FINAL", "HOURS")
REDRAW: Final = "\x1b[H\x1b[J"  # from the first line on; what was there is gone
OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
EVERY_S: Final = 1.0
wait = threading.Event().wait

the_sweep = click.argument("reference", metavar="SWEEP", callback=check_ref)


class SweepGroup(CommandGroup):
    """The commands of sweeps; the path of a job file stands for its submission."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and Path(args[0]).is_file():
            from runner.cli.submit import submit

            return "submit", submit, args
        return super().resolve_command(ctx, args)


@click.group(cls=SweepGroup)
def sweep() -> None:
    """Show and control sweeps: many candidates of which the best go on.

    "runner sweep FILE", as "runner submit FILE", submits the sweep of a job file. SWEEP is the id of one of
    its jobs or the name in its file.
    """


@sweep.command()
@the_sweep
@as_json
def show(reference: str, *, as_json: bool) -> None:
    """Show the candidates of a sweep, the best first: state, step, the metric at each rung and at the end."""
    found = _get(reference)
    if as_json:
        say_json(found)
        return
    rows = [_cells(each, found["best"]) for each in _ranked(found)]
    if on_terminal():
        say(_heading(found))
    say_table(COLUMNS, rows)


@sweep.command()
@the_sweep
@click.pass_context
def top(context: click.Context, reference: str) -> None:
    """Show the candidates on a screen that is kept up to date until the sweep is over; Ctrl-C leaves.

    In a pipe it prints one table, as "show" does.
    """
    if not takes_escapes():
        context.invoke(show, reference=reference, as_json=False)
        return
    from runner.cli.table import format_table, make_table, terminal_style, terminal_width

    while True:
        found = _get(reference)
        table = make_table(COLUMNS, [_cells(each, found["best"]) for each in _ranked(found)])
        room = shutil.get_terminal_size().lines - 2  # for the heading, and the cursor below all
        shown = None if table.height <= room else max(room - 2, 0)
        lines = [_heading(found), *format_table(table, terminal_width(), terminal_style(), shown=shown)]
        click.echo(REDRAW + "\n".join(lines))
        if all(each["state"] in OVER for each in found["candidates"]):
            return
        wait(EVERY_S)


def _heading(found: dict[str, Any]) -> str:
    """Return the metric that is compared, the steps at which it is, and the cost so far."""
    rungs = ", ".join(map(str, found["rungs"])) or "none"
    return (
        f"{found['name']}: {found['direction']} {found['metric']}; rungs: {rungs}; {found['device_h']:.3g} h"
    )


@sweep.command()
@the_sweep
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a heading.")
@as_json
def results(reference: str, *, as_csv: bool, as_json: bool) -> None:
    """Print one line for each candidate: its parameters, its state and its values, the best first."""
    found = _get(reference)
    names = sorted({name for each in found["candidates"] for name in each["parameters"]})
    rungs = [f"step_{rung}" for rung in found["rungs"]]
    lines = [_result(each, names, len(rungs)) for each in _ranked(found)]
    header = ["job", "name", "state", *names, *rungs, "final", "device_h"]
    if as_json:
        for line in lines:
            say_json(dict(zip(header, line, strict=True)))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            [harmless(each) if isinstance(each, str) else each for each in line] for line in lines
        )
    else:
        for line in lines:
            say_row(*("-" if each is None else each for each in line))


@sweep.command()
@the_sweep
def winner(reference: str) -> None:
    """Print the job file of the best candidate, and the way to its weights or files."""
    from runner.cli.written_file import job_file

    found = _get(reference)
    if found["best"] is None:
        fact = f"no candidate has succeeded with a finite {found['metric']} so far"
        raise Refused(f"{found['name']}: {fact}; runner sweep show {reference}")
    job = find_or_start(complain).job(found["best"])
    plan = (job["revision"] or {}).get("job", {}).get("workload", {})
    weights = f"its weights: init_from: job/{job['id']}/final"
    result = f"runner cp {job['id']}:PATH ." if plan.get("kind") == "program" else weights
    say(job_file(job, f"the best of {found['name']}: job {job['id']}; {result}\n"))


@sweep.command()
@the_sweep
def stop(reference: str) -> None:
    """Hold all candidates that run or wait for devices; "resume" lets them go on."""
    _tell(reference, "stop", "held")


@sweep.command()
@the_sweep
def resume(reference: str) -> None:
    """Release the candidates that were held by hand; what waits at a rung waits for the others."""
    _tell(reference, "resume", "released")


def _get(reference: str) -> dict[str, Any]:
    found: dict[str, Any] = find_or_start(complain).get(f"/v1/sweeps/{quote_path(reference)}")
    return found


def _tell(reference: str, verb: str, done: str) -> None:
    jobs = find_or_start(complain).post(f"/v1/sweeps/{quote_path(reference)}/{verb}", {})["jobs"]
    say(f"{reference}: {len(jobs)} candidates {done}")


def _ranked(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates: who went farther first, and of these the better ones."""
    sign = -1.0 if found["direction"] == "maximize" else 1.0

    def rank(each: dict[str, Any]) -> tuple[float, ...]:
        values = [value for value in (*each["values"], each["final"]) if value is not None]
        return (each["final"] is None, -len(each["values"]), sign * values[-1] if values else 0.0)

    return sorted(found["candidates"], key=rank)


def _cells(each: dict[str, Any], best: str | None) -> tuple[object, ...]:
    state = f"{each['state']}, best" if each["job"] == best else each["state"]
    values = " ".join("-" if value is None else f"{value:.5g}" for value in each["values"]) or "-"
    final = "-" if each["final"] is None else f"{each['final']:.6g}"
    return each["job"], each["name"], state, each["step"] or 0, values, final, f"{each['device_h']:.3g}"


def _result(each: dict[str, Any], names: list[str], rungs: int) -> list[Any]:
    values = [*each["values"], *[None] * (rungs - len(each["values"]))]
    parameters = [each["parameters"].get(name) for name in names]
    return [each["job"], each["name"], each["state"], *parameters, *values, each["final"], each["device_h"]]
