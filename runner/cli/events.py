"""``runner events``: print the events in order."""

from __future__ import annotations

import click

from runner.cli.console import complain, harmless, leave_with_reader, on_terminal, say, say_json, say_row
from runner.cli.parameters import as_json, count_from, perhaps_a_job
from runner.client.client import find_or_start


@click.command()
@perhaps_a_job
@click.option("-f", "--follow", is_flag=True, help="Print new events until interrupted.")
@click.option(
    "--after",
    default="0",
    callback=count_from(0),
    metavar="SEQ",
    help="Print only events after this sequence number.",
)
@as_json
def events(job: str | None, *, follow: bool, after: int, as_json: bool) -> None:
    """Print the events of one job or of all jobs, the oldest first.

    In a pipe: sequence number, time (UTC), job id, name, kind and text, between tabs.
    """
    client = find_or_start(complain)
    if follow:
        leave_with_reader()
        client = client.following()
    for event in client.all_events(job, after, follow=follow):
        if as_json:
            say_json(event)
        elif on_terminal():
            say(f"{event['at'][:19]}  {event['name']:<16}  {harmless(event['text'])}")
        else:
            say_row(*(event[key] for key in ("seq", "at", "job", "name", "kind", "text")))
