"""``runner attach``, and what it shares with the other commands that use a terminal inside of a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from runner.base.errors import UsageError
from runner.cli.console import complain
from runner.cli.parameters import the_job
from runner.client.client import find_or_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runner.client.client import Client


def check_terminal(otherwise: str) -> None:
    """Raise ``UsageError`` unless input and output of this command are a terminal; say what to do instead."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"input and output are not a terminal; {otherwise}")


def use(client: Client, ref: str, verb: str, first: Mapping[str, object]) -> int:
    """Use a terminal inside of a job until it ends or is left; return the exit code of this command."""
    otherwise = (
        "runner attach needs one; runner logs shows the output" if verb == "attach" else "leave out -t"
    )
    check_terminal(otherwise)
    from runner.client.terminal import Terminal

    terminal = Terminal(client, ref)
    code = terminal.use(verb, first)
    if code is None:
        complain("", f"left; runner attach {ref} {terminal.name or ''}".rstrip() + " goes back")
        return 0
    if terminal.ended:
        complain(terminal.ended)
    return code


@click.command()
@the_job
@click.argument("terminal", required=False)
def attach(job: str, terminal: str | None) -> None:
    """Go back to a terminal inside of a running job.

    It is the terminal of "runner shell", or the newest one of "runner exec -it", unless TERMINAL names
    another. Ctrl-p Ctrl-q leaves it; its program goes on.
    """
    sys.exit(use(find_or_start(complain), job, "attach", {"session": terminal}))
