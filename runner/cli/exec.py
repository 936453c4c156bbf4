"""``runner exec``: a command inside of a running job."""

import os
import sys

import click

from runner.cli.console import complain
from runner.cli.parameters import the_job
from runner.client.client import find_or_start
from runner.client.sessions import run_command


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("-i", "--interactive", "has_input", is_flag=True, help="Give the command standard input.")
@click.option("-t", "--tty", "on_terminal", is_flag=True, help="Give the command a terminal, this one.")
@the_job
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(job: str, command: tuple[str, ...], *, has_input: bool, on_terminal: bool) -> None:
    """Run a command inside of a running job.

    The command runs as the job does: same user, limits, devices, environment and directory. The exit
    code is that of the command. With -t, Ctrl-p Ctrl-q leaves it, and "runner attach" goes back.

    \b
    runner exec -it JOB bash
    runner exec JOB -- nvidia-smi
    tar c data | runner exec -i JOB -- tar x -C /tmp
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise click.UsageError("name a command behind --")
    client = find_or_start(complain)
    if on_terminal:
        from runner.cli.terminal import use

        sys.exit(use(client, job, "exec", {"argv": words, "term": os.environ.get("TERM", "")}))
    sys.exit(run_command(client, job, words, has_input=has_input))
