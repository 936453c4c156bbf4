"""``runner list`` and ``runner show``: print jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from runner.cli import formatting
from runner.cli.console import complain, on_terminal, say, say_json, say_row
from runner.cli.failure import complain_of_failure
from runner.cli.list_options import (
    ACTIVE,
    NUMBERS,
    cells,
    columns,
    make_filter,
    reaches_further,
    states,
    with_labels,
)
from runner.cli.parameters import as_json, count_from, perhaps_a_sweep, the_job, time_ago
from runner.client.client import ENDED, UNREADABLE, find_or_start

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMED: Final = 10  # run directories without a job that one line names


def some_labels(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``KEY`` and ``KEY=VALUE`` texts; ``=VALUE`` is refused, because it matches no job."""
    for label in given:
        if not label.partition("=")[0]:
            raise click.BadParameter(f"{label[:60]!r} has no key; write KEY or KEY=VALUE", ctx, param)
    return given


@click.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="Also list jobs that ended earlier.")
@click.option("--mine", is_flag=True, help="List only your own jobs.")
@click.option(
    "--label",
    "labels",
    metavar="KEY[=VALUE]",
    multiple=True,
    callback=some_labels,
    help="List only jobs with this label; of several, with all of them.",
)
@perhaps_a_sweep
@click.option(
    "--state",
    "wanted",
    metavar="STATE",
    multiple=True,
    callback=states,
    help="List only jobs in this state: queued, running, failed, ..., active or ended; repeatable.",
)
@click.option(
    "--user", "users", metavar="NAME", multiple=True, help="List only jobs of this user; repeatable."
)
@click.option(
    "--since",
    callback=time_ago,
    metavar="TIME",
    help="List what has not ended before TIME: 2h (ago), or a time with its offset.",
)
@click.option(
    "--columns",
    "chosen",
    callback=columns,
    metavar="NAMES",
    help="Print these columns, for example id,state,loss.",
)
@click.option("--limit", callback=count_from(1), metavar="N", help="List at most N jobs, the newest first.")
@as_json
def list_jobs(  # noqa: PLR0913  one per option
    *,
    everything: bool,
    mine: bool,
    labels: tuple[str, ...],
    sweep: str | None,
    wanted: frozenset[str],
    users: tuple[str, ...],
    since: float | None,
    chosen: tuple[str, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """List the jobs that have not ended, and those that ended in the last 24 hours.

    In a pipe: id, name, owner, state, attempts made, priority, step/total, since (UTC) and reason,
    between tabs. --columns takes id, name, owner, state, attempts, priority, step, since, why,
    submitted, gpus, labels, loss and rate. The step of a job that does not run is the one it
    told last; one that is not reported is that of the newest checkpoint.
    """
    label, *others = labels or (None,)
    accepts = with_labels(make_filter(wanted, users, since), others)
    if sweep is not None and mine:
        raise click.UsageError("--sweep goes without --mine: the jobs of a matrix have one owner")
    everything = everything or reaches_further(since) or "ended" in wanted
    last = not chosen or not NUMBERS.isdisjoint(chosen)
    client = find_or_start(complain)
    if sweep is None:
        ended = False if wanted and wanted <= ACTIVE else None
        jobs = client.jobs(
            everything=everything,
            mine=mine,
            limit=limit,
            label=label,
            wanted=accepts,
            ended=ended,
            last=last,
        )
    else:
        accepts = with_labels(accepts, labels)
        jobs = [job for job in client.sweep(sweep, last=last) if accepts is None or accepts(job)][:limit]
    if as_json:
        for job in jobs:
            say_json(job)
    elif on_terminal():
        from runner.cli.job_tables import print_jobs

        print_jobs(jobs, time.time(), chosen)
    else:
        for job in jobs:
            say_row(*(cells(job, chosen) if chosen else formatting.list_cells(job)))
    if client.more:
        complain(f"only the newest {ENDED} that have ended are listed; --limit N lists the newest N jobs")
    if client.unrecorded:
        complain(_unrecorded(client.unrecorded))


def _unrecorded(ids: Sequence[str]) -> str:
    """Return a line about run directories whose jobs the daemon does not know."""
    named = ", ".join(ids[:NAMED]) + (" and others" if len(ids) > NAMED else "")
    return (
        f"run directories of jobs that the store does not know, as after a restore: {named};"
        " submit their files again; runner show ID names the directory"
    )


@click.command()
@the_job
@click.option(
    "--file", "as_file", is_flag=True, help="Print the job file that says the same, also of runner run."
)
@as_json
def show(job: str, *, as_file: bool, as_json: bool) -> None:
    """Show the state, the attempts and the run directory of a job.

    In a pipe: lines of name and value between tabs, then one line for each attempt, which begins with
    "attempt", and one for each operator of a recorded trace.
    """
    client = find_or_start(complain)
    detail = client.with_account(client.job(job))
    for row in detail["unreadable"]:
        complain(f"{UNREADABLE}{row}")
    if as_file:
        from runner.cli.written_file import job_file

        if as_json:
            raise click.UsageError("--file goes without --json, which has the file in full")
        say(job_file(detail))
    elif as_json:
        say_json(detail)
    elif on_terminal():
        from runner.cli.job_tables import print_job

        print_job(detail, time.time())
        complain_of_failure(client, detail)
    else:
        for fact in formatting.facts(detail):
            say_row(*fact)
        for attempt in detail["attempts"]:
            say_row("attempt", *formatting.attempt_cells(attempt))
        for operator in formatting.operator_rows(detail):
            say_row("operator", *operator)
        complain_of_failure(client, detail)
