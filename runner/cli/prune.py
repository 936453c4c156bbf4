"""``runner prune``: remove run directories, one's own or as the operator's settings say."""

import click

from runner.base.readable import readable_size
from runner.cli.console import complain, say, say_json, say_row
from runner.cli.parameters import as_json, perhaps_jobs, seconds
from runner.client.client import find_running


@click.command()
@perhaps_jobs
@click.option("--mine", is_flag=True, help="Those of all your own jobs that have ended.")
@click.option(
    "--older",
    callback=seconds,
    metavar="AGE",
    help="With --mine: of jobs that ended so long ago, such as 7d.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@as_json
def prune(jobs: tuple[str, ...], *, mine: bool, older: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove the run directories of jobs that have ended: log, checkpoints, and what they have written.

    Without JOB and --mine, those go that "retention" in the settings does not allow to stay; only root
    and the daemon's own user may. In a pipe: id, name, owner, end and reason, between tabs.
    """
    if (mine and jobs) or (older is not None and not mine):
        raise click.UsageError("give JOBs, or --mine, perhaps with --older AGE")
    body = {"dry_run": dry_run, "mine": mine, "jobs": jobs, "older_s": older or 0.0}
    answer = find_running(complain).post("/v1/prune", body)
    if as_json:
        say_json(answer)
        return
    for each in answer["removed"]:
        say_row(each["job"], each["name"], each["owner"], each["ended"], each["why"])
    if answer["unlimited"]:
        complain('the settings have no limits ("retention": age, bytes_per_user, count_per_user)')
    elif not answer["removed"]:
        say("nothing to remove")
    elif mine or jobs:
        size = readable_size(sum(each["bytes"] for each in answer["removed"]))
        complain(f"{size} {'would be free' if dry_run else 'freed'}")
