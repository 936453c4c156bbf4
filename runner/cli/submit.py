"""``runner submit``: the file goes to the daemon as it stands; the daemon reads it."""

from typing import Any, Final

import click

from runner.cli.options import as_json
from runner.cli.output import (
    INTERRUPTED,
    complain,
    complain_of,
    harmless,
    on_terminal,
    say,
    say_json,
    say_row,
)
from runner.client import Client, find_or_start
from runner.errors import RunnerError, UsageError

MAX_FILE_BYTES: Final = 1024 * 1024


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--name", help="Call the job this instead of what its file says.")
@click.option("-f", "--follow", is_flag=True, help="Show the job's progress until it ends.")
@click.option("--wait", is_flag=True, help="Say nothing more until the job ends; exit with its outcome.")
@click.option(
    "--dry-run", is_flag=True, help="Print the resolved job and the exact engine arguments; submit nothing."
)
@as_json
def submit(  # noqa: PLR0913  one per option
    files: tuple[str, ...], name: str | None, *, follow: bool, wait: bool, dry_run: bool, as_json: bool
) -> None:
    """Submit job files, and print the id and the name of each job.

    Starts your own daemon if none answers.  Every FILE is tried; the exit code is the
    first that is not 0.  With --follow or --wait it tells how the job ended.
    """
    if len(files) > 1 and (follow or name):
        raise click.UsageError(f"{'--follow' if follow else '--name'} goes with one FILE only")
    client, codes, jobs = None, [], []
    for file in files:
        try:
            text = read(file)
            client = client or find_or_start(complain)
            answer = client.submit(file, text, name, dry_run=dry_run)
        except RunnerError as error:
            codes.append(complain_of(error))
        else:
            _show(answer, dry_run=dry_run, as_json=as_json)
            jobs.append(answer["job"])
    if client and not dry_run and (follow or wait):
        codes += [_stay(client, job, follow=follow, as_json=as_json) for job in jobs]
    click.get_current_context().exit(next((code for code in codes if code), 0))


def read(file: str) -> bytes:
    """Return the bytes of a job file.

    Raises:
        UsageError: it cannot be read, is too large to be one, or its path is not UTF-8.
    """
    try:
        file.encode()
        with open(file, "rb") as stream:  # noqa: PTH123  pathlib takes 5 ms to import
            text = stream.read(MAX_FILE_BYTES + 1)
    except UnicodeEncodeError as error:
        raise UsageError(f"{harmless(file)}: the path is not UTF-8; rename it") from error
    except (OSError, ValueError):
        return _explain(file)
    return text if len(text) <= MAX_FILE_BYTES else _explain(file)


def _explain(file: str) -> bytes:
    """Read a file that cannot be read, the long way: it knows what to say."""
    from pathlib import Path  # noqa: PLC0415

    from runner.source import read_source  # noqa: PLC0415

    return read_source(Path(file))


def _show(answer: dict[str, Any], *, dry_run: bool, as_json: bool) -> None:
    for warning in answer.get("warnings", ()):
        complain(f"warning: {warning}")
    if as_json:
        say_json(answer)
    elif dry_run:
        _show_plan(answer)
    elif on_terminal():
        job = answer["job"]
        say(f"submitted {job['name']} as {job['id']}")
    else:
        say_row(answer["job"]["id"], answer["job"]["name"])


def _show_plan(answer: dict[str, Any]) -> None:
    """Print what would happen, in parts: the resolved job, its spec, the engine's arguments."""
    import json  # noqa: PLC0415

    for part in ("job", "spec", "engine"):
        say(f"{part}: {json.dumps(answer.get(part), indent=2)}")


def _stay(client: Client, job: dict[str, Any], *, follow: bool, as_json: bool) -> int:
    """Stay until a job has ended, and return the exit code that says how."""
    from runner.cli.follow import follow_to_the_end  # noqa: PLC0415
    from runner.cli.wait import wait_to_the_end  # noqa: PLC0415

    try:
        if follow:
            return follow_to_the_end(client, job["id"], as_json=as_json)
        return wait_to_the_end(client, job["id"], as_json=as_json)
    except KeyboardInterrupt:
        name = job["name"]
        complain(f"{name} goes on: runner logs -f {name} follows it, runner cancel {name} stops it")
        return INTERRUPTED
