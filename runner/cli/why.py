"""``runner why``: print what a job waits for, with an estimate of the end."""

import click

from runner.cli.console import complain, on_terminal, say, say_json, say_row
from runner.cli.parameters import as_json, the_job
from runner.client.client import find_or_start


@click.command()
@the_job
@as_json
def why(job: str, *, as_json: bool) -> None:
    """Show why a job waits, and when it will start or end.

    Estimates are as good as the time limits of the jobs ahead. In a pipe, tabs separate job id, state,
    estimated start or end (UTC) and reason.
    """
    answer = find_or_start(complain).why(job)
    if as_json:
        say_json(answer)
    elif on_terminal():
        say(f"{answer['name']} (job {answer['job']}) is {answer['state']}: {answer['why']}")
    else:
        at = answer["starts_at"] or answer["until"]
        say_row(answer["job"], answer.get("outcome") or answer["state"], at, answer["why"])
