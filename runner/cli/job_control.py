"""``runner cancel``, ``kill``, ``restart``, ``hold`` and ``release``: control a job by hand."""

import signal
from typing import Any

import click

from runner.base.errors import RunnerError, Unavailable
from runner.cli import formatting
from runner.cli.console import complain, complain_of, say, say_json
from runner.cli.parameters import as_json, count_from, perhaps_a_sweep, perhaps_jobs, the_job
from runner.client.client import Client, find_or_start


def signal_name(ctx: click.Context, param: click.Parameter, given: str) -> str:
    """Return the short name of a signal: ``USR1`` for ``USR1``, ``SIGUSR1`` or ``10``."""
    name = given.upper().removeprefix("SIG")
    numbers = {str(int(known)): known.name for known in signal.Signals}
    name = numbers.get(name, name).removeprefix("SIG")
    if f"SIG{name}" not in signal.Signals.__members__:
        raise click.BadParameter(f"{given!r} is no signal; write USR1, SIGUSR1 or 10", ctx, param)
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
@as_json
def cancel(jobs: tuple[str, ...], *, sweep: str | None, as_json: bool) -> None:
    """Cancel jobs: their programs may save a checkpoint, then they end.

    To cancel a job that has ended changes nothing and is no error. Every JOB is tried; the exit code is
    the first one that is not 0. With --sweep, all jobs of a matrix that have not ended are cancelled.
    All jobs are cancelled at the same moment if possible, so that no waiting job of the list starts in
    place of a running one.
    """
    if bool(jobs) == bool(sweep):
        raise click.UsageError("give JOBs or --sweep, one of them")
    client = find_or_start(complain)
    try:
        answers = client.cancel_all(jobs, sweep)
    except RunnerError as error:
        if isinstance(error, Unavailable) or len(jobs) < 2:
            raise
        click.get_current_context().exit(_cancel_each(client, jobs, as_json=as_json))
    for answer in answers:
        _tell_cancelled(answer, as_json=as_json)


def _cancel_each(client: Client, jobs: tuple[str, ...], *, as_json: bool) -> int:
    """Cancel jobs one by one, continuing after errors; return the first exit code that is not 0."""
    codes = []
    for number, ref in enumerate(jobs, start=1):
        try:
            answer = client.act(ref, "cancel", {})
        except Unavailable as error:  # the other jobs would fail in the same way
            left = len(jobs) - number
            raise Unavailable(f"{error}{f'; {left} more were not asked for' if left else ''}") from error
        except RunnerError as error:
            codes.append(complain_of(error))
        else:
            _tell_cancelled(answer, as_json=as_json)
    return codes[0] if codes else 0


def _tell_cancelled(answer: dict[str, Any], *, as_json: bool) -> None:
    line = formatting.state_line(answer["job"])
    _tell(answer, line if answer["changed"] else f"{line}; nothing changed", as_json=as_json)


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

    The effect is the same as if the signal came from elsewhere: a program that dies of it is resumed.
    Use "runner cancel" to end a job.
    """
    answer = find_or_start(complain).act(job, "signal", {"signal": name})
    _tell(answer, f"{answer['job']['name']}: SIG{name} sent", as_json=as_json)


@click.command()
@the_job
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
def restart(job: str, *, start: str | int, lineage: int | None, as_json: bool) -> None:
    """Start another attempt of a running, held or ended job."""
    place = {} if lineage is None else {"lineage": lineage}
    answer = find_or_start(complain).act(job, "restart", {"from": start, **place})
    _tell(answer, f"{answer['job']['name']}: restarts {answer['begins']}", as_json=as_json)


@click.command()
@the_job
@as_json
def hold(job: str, *, as_json: bool) -> None:
    """Stop a job until "runner release"; its program may save a checkpoint."""
    answer = find_or_start(complain).act(job, "hold", {})
    _tell(answer, formatting.state_line(answer["job"]), as_json=as_json)


@click.command()
@the_job
@as_json
def release(job: str, *, as_json: bool) -> None:
    """Release a held job, which continues from its newest checkpoint.

    If the policy held the job, its attempts are counted from zero again; settings that adjustments
    changed stay changed. "runner restart" starts from another checkpoint; "runner policy explain" tells
    why the job was held.
    """
    answer = find_or_start(complain).act(job, "release", {})
    _tell(answer, f"{answer['job']['name']}: released", as_json=as_json)


def _tell(answer: dict[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        say_json(answer)
    else:
        say(line)
