"""``runner why``: what a job waits for, and until when about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import as_json, the_job
from runner.cli.output import complain, on_terminal, say, say_json, say_row
from runner.client import find_or_start

if TYPE_CHECKING:
    from runner.client import Client


@click.command()
@the_job
@as_json
def why(job: str, *, as_json: bool) -> None:
    """Print why a job waits and when it will start, or what it does and until when.

    Estimates are as good as the time limits of the jobs before it.  In a pipe: job id, state, estimated
    start or end (UTC), reason between tabs.
    """
    client = find_or_start(complain)
    answer = client.why(job)
    if as_json:
        say_json(answer)
    elif on_terminal():
        say(f"{answer['name']} (job {answer['job']}) is {answer['state']}: {answer['why']}")
    else:
        at = answer["starts_at"] or answer["until"]
        say_row(answer["job"], _word(client, answer), at, answer["why"])


def _word(client: Client, answer: dict[str, Any]) -> str:
    """Return the state as ``list`` and ``show`` print it: of a job that has finished, its outcome."""
    state: str = answer["state"]
    return (client.job(answer["job"])["outcome"] or state) if state == "finished" else state
