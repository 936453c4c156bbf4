"""``runner cancel``, ``kill``, ``restart``, ``hold`` and ``release``: control a job by hand."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import RunnerError, Unavailable
from runner.cli import formatting
from runner.cli.choice import chosen_jobs, client_for, for_each
from runner.cli.console import complain, say_answer
from runner.cli.parameters import as_json, count_from, perhaps_a_sweep, perhaps_jobs, the_job
from runner.client.client import find_or_start

if TYPE_CHECKING:
    from runner.client.types import JobSummary

MOST_CANCELLED: Final = 1000
"""Jobs that the daemon cancels at the same moment."""


def signal_name(ctx: click.Context, param: click.Parameter, given: str) -> str:
    """Return the short name of a signal: ``USR1`` for ``USR1``, ``SIGUSR1`` or ``10``."""
    name = given.upper().removeprefix("SIG")
    numbers = {str(int(known)): known.name for known in signal.Signals}
    name = numbers.get(name, name).removeprefix("SIG")
    if f"SIG{name}" not in signal.Signals.__members__:
        raise click.BadParameter(f"{given!r} is not a signal; write USR1, SIGUSR1 or 10", ctx, param)
    return name


def starting_point(ctx: click.Context, param: click.Parameter, given: str) -> str | int:
    """Return ``checkpoint``, ``scratch``, or the step of a checkpoint."""
    if given in {"checkpoint", "scratch"}:
        return given
    if not (given.isascii() and given.isdecimal()):
        raise click.BadParameter(f"{given!r} is neither checkpoint, scratch nor a step", ctx, param)
    return count_from(0)(ctx, param, given) or 0


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@click.option("--mine", is_flag=True, help="All your own jobs that have not ended.")
@click.option(
    "--all", "everything", is_flag=True, help="The jobs of all users; for root alone on a shared machine."
)
@as_json
def cancel(jobs: tuple[str, ...], *, sweep: str | None, mine: bool, everything: bool, as_json: bool) -> None:
    """Cancel jobs: their programs may save a checkpoint, then they end.

    All are cancelled at the same moment if possible. To cancel a job that has ended is no error. Every
    JOB is tried; the exit code is the first one that is not 0.
    """
    if [bool(jobs), bool(sweep), mine, everything].count(True) != 1:
        raise click.UsageError("give JOBs, --sweep, --mine or --all, one of them")
    client = find_or_start(complain)
    if mine or everything:
        jobs = tuple(job["id"] for job in client.jobs(mine=mine, ended=False))
        if not jobs:
            complain("there is no job to cancel")
            return

    def tell_all(answer: dict[str, Any]) -> None:
        for each in answer["jobs"]:
            _tell_cancelled(each, as_json=as_json)

    try:
        answers = [
            answer
            for begin in range(0, max(len(jobs), 1), MOST_CANCELLED)
            for answer in client.cancel_all(jobs[begin : begin + MOST_CANCELLED], sweep)
        ]
    except RunnerError as error:
        if isinstance(error, Unavailable) or len(jobs) < 2:
            raise
        for_each(client, jobs, None, lambda ref: {"jobs": client.cancel_all((ref,))}, tell=tell_all)
        return
    tell_all({"jobs": answers})


def _tell_cancelled(answer: dict[str, Any], *, as_json: bool) -> None:
    line = formatting.state_line(answer["job"])
    say_answer(answer, line if answer["changed"] else f"{line}; nothing changed", as_json=as_json)


@click.command()
@the_job
@click.option(
    "-s",
    "--signal",
    "name",
    required=True,
    metavar="SIG",
    callback=signal_name,
    help="The signal; USR1 saves a checkpoint without stopping.",
)
@as_json
def kill(job: str, *, name: str, as_json: bool) -> None:
    """Send a signal to the program of a job.

    A program that dies of it is resumed; "runner cancel" ends a job.
    """
    answer = find_or_start(complain).act(job, "signal", {"signal": name})
    say_answer(answer, f"{answer['job']['name']}: SIG{name} sent", as_json=as_json)


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@click.option("--failed", is_flag=True, help="Only those that have failed.")
@click.option(
    "--from",
    "start",
    metavar="checkpoint|scratch|STEP",
    callback=starting_point,
    default="checkpoint",
    show_default=True,
    help="The newest valid checkpoint, step 0 in a new lineage, or the checkpoint of STEP.",
)
@click.option(
    "--lineage",
    callback=count_from(1),
    metavar="N",
    help="Go on in lineage N, which an earlier --from scratch has left; runner show lists them.",
)
@as_json
def restart(  # noqa: PLR0913  one per option
    jobs: tuple[str, ...],
    *,
    sweep: str | None,
    failed: bool,
    start: str | int,
    lineage: int | None,
    as_json: bool,
) -> None:
    """Start another attempt of running, held or ended jobs."""
    place = {} if lineage is None else {"lineage": lineage}
    client = client_for(jobs, sweep)
    refs, whole = jobs, sweep
    if failed:
        refs, whole = tuple(job["id"] for job in chosen_jobs(client, jobs, sweep) if _has_failed(job)), None
        if not refs:
            complain("none of these jobs has failed")
            return

    def tell(answer: dict[str, Any]) -> None:
        say_answer(answer, f"{answer['job']['name']}: restarts {answer['begins']}", as_json=as_json)

    for_each(client, refs, whole, lambda ref: client.act(ref, "restart", {"from": start, **place}), tell=tell)


def _has_failed(job: JobSummary) -> bool:
    return job["outcome"] == "failed"


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@as_json
def hold(jobs: tuple[str, ...], *, sweep: str | None, as_json: bool) -> None:
    """Stop jobs until "runner release"; their programs may save a checkpoint."""
    client = client_for(jobs, sweep)

    def tell(answer: dict[str, Any]) -> None:
        say_answer(answer, formatting.state_line(answer["job"]), as_json=as_json)

    def can_be_held(job: JobSummary) -> bool:
        return job["state"] not in {"finished", "held"}

    for_each(client, jobs, sweep, lambda ref: client.act(ref, "hold", {}), tell=tell, of_matrix=can_be_held)


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@as_json
def release(jobs: tuple[str, ...], *, sweep: str | None, as_json: bool) -> None:
    """Release held jobs: each goes on from its newest checkpoint, and one that has none from step 0.

    If the policy held a job, its attempts are counted from zero again. "runner restart" starts from
    another checkpoint.
    """
    client = client_for(jobs, sweep)

    def tell(answer: dict[str, Any]) -> None:
        begins = f", begins {answer['begins']}" if answer.get("begins") else ""
        say_answer(answer, f"{answer['job']['name']}: released{begins}", as_json=as_json)

    def is_held(job: JobSummary) -> bool:
        return job["state"] == "held"

    for_each(client, jobs, sweep, lambda ref: client.act(ref, "release", {}), tell=tell, of_matrix=is_held)
