"""``runner prune``: remove run directories as the operator's settings say."""

import click

from runner.cli.console import complain, say, say_json, say_row
from runner.cli.parameters import as_json
from runner.client.client import find_running


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@as_json
def prune(*, dry_run: bool, as_json: bool) -> None:
    """Remove the run directories of ended jobs that "retention" in the settings does not allow to stay.

    The daemon does the same every hour. A directory stays for an hour after the end of its job in any
    case, and as long as the job has not ended. Each line is id, name, owner, end and reason, with tabs
    between. Only root and the daemon's own user may.
    """
    answer = find_running(complain).post("/v1/prune", {"dry_run": dry_run})
    if as_json:
        say_json(answer)
        return
    for each in answer["removed"]:
        say_row(each["job"], each["name"], each["owner"], each["ended"], each["why"])
    if answer["unlimited"]:
        complain('the settings have no limits ("retention": age, bytes_per_user, count_per_user)')
    elif not answer["removed"]:
        say("nothing to remove")
