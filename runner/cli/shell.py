"""``runner shell``: an interactive job, with this terminal as its terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import UsageError
from runner.cli.console import INTERRUPTED, complain
from runner.cli.formatting import without_counts
from runner.cli.run import make_line, submit_line, with_line_options
from runner.cli.terminal import check_terminal, use
from runner.client.client import ChosenLog, Client, find_or_start
from runner.client.http import ErrorResponse
from runner.client.log import pieces

if TYPE_CHECKING:
    from runner.client.types import JobDetail

SHELL: Final = ("/bin/sh", "-c", 'exec "$(command -v bash || command -v sh)"')
"""The best shell that the image has."""

CLASS: Final = "interactive"
"""The priority class of people who wait at a terminal."""

LOOK_S: Final = 2.0
ATTACH_S: Final = 30.0
"""Longest wait of the program for its terminal."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@with_line_options
def shell(
    *,
    command: tuple[str, ...],
    **options: Any,  # noqa: ANN401  values of click
) -> None:
    """Run a shell, or COMMAND, as a job with this terminal, on allocated devices.

    The options are those of "runner run", as far as --no-code. The job waits in the class "interactive"
    and starts in a copy of the current directory. Ctrl-p Ctrl-q leaves it running, and "runner attach"
    goes back. The exit code is that of the program.

    \b
    runner shell -g 1
    runner shell -c 4 -t 2h -- python -i model.py
    """
    check_terminal("runner run needs none")
    options["name"] = options["name"] or "shell"
    options["priority_class"] = options["priority_class"] or CLASS
    line = make_line(
        command or SHELL,
        terminal=True,
        attempts=1,
        **{
            **options,
            "name": options["name"] or "shell",
            "priority_class": options["priority_class"] or CLASS,
        },
    )
    client = find_or_start(complain)
    answer = submit_line(client, line)
    for warning in answer.get("warnings", ()):
        complain(f"warning: {warning}")
    sys.exit(_stay(client, answer["job"]["id"]))


def _stay(client: Client, job_id: str) -> int:
    """Wait for the start of a job and use its terminal; return the exit code of its program."""
    try:
        job = _await_start(client, job_id)
    except KeyboardInterrupt:
        client.cancel_all([job_id])
        complain(f"job {job_id}: cancelled before it started")
        return INTERRUPTED
    if job["state"] in {"running", "stopping"}:
        try:
            return use(client, job_id, "attach", {"session": "main", "wait_s": ATTACH_S})
        except ErrorResponse as error:
            done, job = client.wait(job_id, ATTACH_S)
            if not done:
                raise
            _print_log(client, job_id, error)
    return _code_of(job)


def _await_start(client: Client, job_id: str) -> JobDetail:
    """Return a job once it runs or does not wait any more; say on stderr what it waits for."""
    told, limit_s = "", 0.1
    follower = client.following()
    while True:
        done, job = follower.wait_for_start(job_id, limit_s)
        if done:
            return job
        why = str(client.why(job_id).get("why") or job["state"])
        if without_counts(why) != without_counts(told):
            complain(f"{job['name']} ({job_id}): {why}")
        told, limit_s = why, LOOK_S


def _print_log(client: Client, job_id: str, error: ErrorResponse) -> None:
    """Print what a program has written that ended before its terminal was reached."""
    found = b"".join(piece.body for piece in pieces(client, job_id, ChosenLog()))
    if not found:
        raise error
    sys.stdout.buffer.write(found)
    sys.stdout.flush()


def _code_of(job: JobDetail) -> int:
    """Return the exit code of the program of a job that has ended.

    Raises:
        UsageError: it never started.
    """
    codes = [each["exit_code"] for each in job["attempts"] if each["exit_code"] is not None]
    if not codes:
        raise UsageError(f"job {job['id']}: did not start: {job['why']}; runner show {job['id']}")
    return int(codes[-1])
