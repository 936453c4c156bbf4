"""``runner set``: other limits for jobs, without their files and their code being read again."""

from __future__ import annotations

from typing import Any, Final

import click

from runner.cli.choice import client_for, for_each
from runner.cli.console import say, say_json
from runner.cli.parameters import (
    LONGEST_SHOWN,
    as_json,
    perhaps_a_sweep,
    perhaps_jobs,
    seconds_of_unit,
    the_class,
    the_priority,
    the_start,
)

NO_LIMIT: Final = "none"

MOST_S: Final = 366 * 86400
"""Longest time limit, as in job files."""


def _size(ctx: click.Context, param: click.Parameter, given: str | None) -> int | None:
    """Return a size in bytes."""
    from runner.base.units import parse_size

    if given is None:
        return None
    try:
        return parse_size(given)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _limit(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    """Return a duration in seconds; 0 for none."""
    if given is None or given == NO_LIMIT:
        return None if given is None else 0.0
    limit_s = seconds_of_unit(ctx, param, given)
    if limit_s is not None and not 1 <= limit_s <= MOST_S:
        raise click.BadParameter(
            f"must be from 1s to 366d, not {given[:LONGEST_SHOWN]}; {NO_LIMIT}: no limit", ctx, param
        )
    return limit_s


@click.command("set")
@perhaps_jobs
@perhaps_a_sweep
@the_priority
@the_class
@click.option(
    "-t",
    "--time",
    "time_limit_s",
    callback=_limit,
    metavar="TIME",
    help="Time limit, such as 2h30m; none: no limit.",
)
@click.option("--cpus", type=click.FloatRange(0.1, 1024), metavar="N", help="CPUs.")
@click.option("--memory", callback=_size, metavar="SIZE", help="Memory, such as 8GiB.")
@the_start
@as_json
def set_limits(jobs: tuple[str, ...], *, sweep: str | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401  the options
    """Set the priority, the class, the start or the limits of jobs; their files and code stay as they are.

    A waiting job has them at once. A running one goes on: its time limit and priority change at once,
    the others with its next start. One that has ended has them when it is restarted.
    """
    body = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise click.UsageError(
            "nothing is set; give --priority, --class, --time, --cpus, --memory or --not-before"
        )
    client = client_for(jobs, sweep)

    def tell(answer: dict[str, Any]) -> None:
        if as_json:
            say_json(answer)
            return
        parts = [
            f"{each['field']} {each['before']} → {each['after']}"
            + (" at its next start" if each["at_next_start"] else "")
            for each in answer["changes"]
        ]
        say(f"{answer['job']['name']}: {'; '.join(parts) or 'no change'}")

    for_each(
        client,
        jobs,
        sweep,
        lambda ref: client.act(ref, "limits", body),
        tell=tell,
        of_matrix=lambda job: job["state"] != "finished",
    )
