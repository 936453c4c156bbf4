"""``runner why``: print what jobs wait for, with an estimate of the end."""

from typing import Any, Final

import click

from runner.cli.choice import client_for, for_each
from runner.cli.console import complain, on_terminal, say, say_json, say_row
from runner.cli.parameters import as_json, perhaps_a_sweep, perhaps_jobs
from runner.client.client import find_or_start

WAITING: Final = ("preparing", "queued", "held")


@click.command()
@perhaps_jobs
@perhaps_a_sweep
@as_json
def why(jobs: tuple[str, ...], *, sweep: str | None, as_json: bool) -> None:
    """Show why jobs wait, and when each will start or end; without a JOB, all of your own that wait.

    Estimates are as good as the time limits of the jobs ahead. In a pipe, tabs separate job id, state,
    estimated start or end (UTC) and reason.
    """
    client = client_for(jobs, sweep) if jobs or sweep else find_or_start(complain)
    if not (jobs or sweep):
        mine = client.jobs(mine=True, ended=False, wanted=lambda job: job["state"] in WAITING)
        jobs = tuple(job["id"] for job in reversed(mine))
        if not jobs:
            complain("none of your jobs waits")

    def tell(answer: dict[str, Any]) -> None:
        if as_json:
            say_json(answer)
        elif on_terminal():
            say(f"{answer['name']} (job {answer['job']}) is {answer['state']}: {answer['why']}")
        else:
            at = answer["starts_at"] or answer["until"]
            say_row(answer["job"], answer.get("outcome") or answer["state"], at, answer["why"])

    for_each(client, jobs, sweep, client.why, tell=tell)
