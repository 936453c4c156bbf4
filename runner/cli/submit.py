"""``runner submit``: send a job file unchanged to the daemon, which parses it."""

import os
from collections.abc import Iterator
from stat import S_ISREG
from typing import Any, Final

import click

from runner.base.errors import RunnerError, UsageError
from runner.base.readable import readable_size
from runner.cli.console import (
    INTERRUPTED,
    complain,
    complain_of,
    harmless,
    on_terminal,
    say,
    say_json,
    say_row,
)
from runner.cli.parameters import (
    as_json,
    check_text,
    the_class,
    the_predecessors,
    the_priority,
    the_start,
    verbose,
)
from runner.cli.placing import placed
from runner.client.client import Client, find_or_start

MAX_FILE_BYTES: Final = 1024 * 1024
STANDARD_INPUT: Final = "-"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--name", callback=check_text, help="The name of the job, instead of the one in its file.")
@click.option("-f", "--follow", is_flag=True, help="Show the job's progress until it ends.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait without output until the job ends; exit with its outcome.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would run; --json has the engine arguments. Submit nothing."
)
@the_class
@the_predecessors
@the_start
@the_priority
@verbose
@as_json
def submit(  # noqa: PLR0913  one per option
    files: tuple[str, ...],
    name: str | None,
    *,
    follow: bool,
    wait: bool,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
    **instead: object,
) -> None:
    """Submit job files and print the id and name of each job.

    A FILE of "-" is standard input. Every FILE is tried; the exit code is the first one that is not 0.
    A FILE with a matrix creates all of its jobs or none; one with a schedule creates the schedule.
    Options override the FILE.
    """
    instead = {option: value for option, value in instead.items() if value not in (None, ())}
    if len(files) > 1 and (follow or name):
        raise click.UsageError(f"{'--follow' if follow else '--name'} goes with one FILE only")
    client, codes = None, []
    jobs: list[dict[str, Any]] = []
    for file in files:
        try:
            text = read(file)
            client = client or find_or_start(complain)
            place = placed(file, text)
            answer = client.submit(place, text, name, dry_run=dry_run, instead=instead, shown=file)
        except RunnerError as error:
            codes.append(complain_of(error, verbose=verbose))
        else:
            show_answer(answer, dry_run=dry_run, as_json=as_json)
            jobs += [] if "schedule" in answer else answer.get("jobs") or [answer["job"]]
    if codes and len(files) > 1:
        _count(len(files), len(codes), dry_run=dry_run)
    if follow and len(jobs) > 1:
        complain(f"--follow goes with one job; waits for all {len(jobs)} instead")
        follow, wait = False, True
    if client and not dry_run and (follow or wait):
        codes += _stay(client, jobs, follow=follow, as_json=as_json)
    click.get_current_context().exit(next((code for code in codes if code), 0))


def _count(files: int, wrong: int, *, dry_run: bool) -> None:
    """Print how many of several files were accepted, unless all of them were."""
    done = "would be submitted" if dry_run else "submitted"
    complain(f"{files - wrong} of {files} files {done}; what is wrong with the others is said above")


SCRIPTS: Final = (".py", ".sh", ".bash", ".R", ".jl", ".pl")
"""Endings of scripts, which are no job files."""


def read(file: str) -> bytes:
    """Return the bytes of a job file; ``-`` is standard input.

    Raises:
        UsageError: the file cannot be read or is too large, or its path is not UTF-8.
    """
    if file == STANDARD_INPUT:
        from runner.base.textfile import standard_input

        text = standard_input().read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise UsageError(f"{file}: larger than 1 MiB, so not a job file")
        return text
    try:
        file.encode()
        with open(file, "rb", opener=_unblocked) as stream:  # pathlib takes 5 ms to import
            if not S_ISREG(os.fstat(stream.fileno()).st_mode):
                return _explain(file)
            text = stream.read(MAX_FILE_BYTES + 1)
    except UnicodeEncodeError as error:
        raise UsageError(f"{harmless(file)}: the path is not UTF-8; rename it") from error
    except (OSError, ValueError):
        return _explain(file)
    first = text.partition(b"\n")[0]
    if file.endswith(SCRIPTS) or (first.startswith(b"#!") and b"runner" not in first):
        raise UsageError(_describe_script(file, text))
    return text if len(text) <= MAX_FILE_BYTES else _explain(file)


def _describe_script(file: str, text: bytes) -> str:
    """Return that a file is a script, which ``sbatch`` takes, and the line that starts it as a job."""
    import shlex

    from runner.files.shell import interpreter_of

    line = f"runner run -- {interpreter_of(file)} {shlex.quote(harmless(file))}"
    options = "; its #SBATCH lines are options of runner run" if b"\n#SBATCH" in text else ""
    return f"{harmless(file)}: is a script and not a job file; {line} starts it as a job{options}"


def _unblocked(file: str, flags: int) -> int:
    """Open a file; opening a pipe does not wait for the other end."""
    return os.open(file, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _explain(file: str) -> bytes:
    """Read a file again after an error, with the slower function that reports the reason."""
    if not file:
        raise UsageError("'': no file has an empty name; name a job file")
    from pathlib import Path

    from runner.base.textfile import read_source

    return read_source(Path(file))


def show_answer(answer: dict[str, Any], *, dry_run: bool, as_json: bool) -> None:
    """Print what a submission has made, or with ``dry_run`` would make."""
    for warning in answer.get("warnings", ()):
        complain(f"warning: {warning}")
    if as_json:
        say_json(answer)
    elif dry_run:
        _show_plan(answer)
    elif "schedule" in answer:
        _show_schedule(answer["schedule"])
    else:
        _show_jobs(answer.get("jobs") or [answer["job"]])


def _show_jobs(jobs: list[dict[str, Any]]) -> None:
    first, last = jobs[0], jobs[-1]
    if not on_terminal():
        for job in jobs:
            say_row(job["id"], job["name"])
    elif len(jobs) == 1:
        say(f"submitted {first['name']} as {first['id']}")
    else:
        names, ids = f"{first['name']} to {last['name']}", f"{first['id']} to {last['id']}"
        say(f"submitted {len(jobs)} jobs, {names} as {ids}: runner list --sweep {first['id']}")


def _show_plan(answer: dict[str, Any]) -> None:
    """Print what would happen in a few lines; ``--json`` has the resolved job and all arguments."""
    import json

    for title, text in _plan_lines(answer.get("job") or {}):
        say(f"{title:<11} {text}")
    say(f"{'all of it':<11} --json")
    if devices := answer.get("devices"):
        _show_devices(devices)
    if len(jobs := answer.get("jobs", ())) > 1:
        say(f"jobs: {len(jobs)}, of which this is the first")
        for job in jobs:
            say(f"  {job['name']}: {json.dumps(job['values'])}")
    if "schedule" in answer:
        _show_schedule(answer["schedule"])


def _plan_lines(resolved: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the most interesting fields of a resolved job."""
    import shlex

    job = resolved.get("job") or {}
    workload, resources, image = (job.get(name) or {} for name in ("workload", "resources", "image"))
    yield "name", job.get("name", "")
    command, code = workload.get("command"), resolved.get("code") or {}
    yield "workload", shlex.join(command) if command else workload.get("kind", "")
    if code:
        yield "code", f"snapshot {str(code.get('snapshot', ''))[:12]}"
    packages = [name for name in ("requirements", "python", "system", "dockerfile") if image.get(name)]
    yield "image", " with ".join(filter(None, (image.get("name", "auto"), ", ".join(packages))))
    gpus, memory = resources.get("gpus", 0), readable_size(resources.get("memory", 0))
    devices = f"{gpus} x {resolved.get('accelerator')}" if gpus else "no GPU"
    if (nodes := resources.get("nodes", 1)) > 1:
        devices = f"{nodes} nodes, each with {devices}"
    limit = resources.get("time_limit") or "none"
    yield "resources", f"{devices}, {resources.get('cpus', 0):g} CPU, {memory}; time limit: {limit}"
    yield "network", str(resolved.get("network"))
    for mount in job.get("mounts") or ():
        mode = "read-only" if mount.get("read_only") else "writable"
        yield "mount", f"{mount.get('source')} at {mount.get('target')}, {mode}"
    if files := (job.get("checkpoint") or {}).get("files"):
        yield "checkpoints", files
    queue = job.get("queue") or {}
    yield "queue", f"class {queue.get('priority_class')}, priority {job.get('priority')}"
    attempts = (job.get("retry") or {}).get("max_attempts")
    yield "policy", f"{job.get('policy')}" + (f", at most {attempts} attempts" if attempts else "")


def _show_devices(said: dict[str, Any]) -> None:
    """Print which devices are among the engine's arguments, marked as what they are."""
    say(f"devices: {said['note']}")
    for device in said["devices"]:
        say(f"  {device['name'] or '-'} {device['model']} {device['uuid']}")
    for text in filter(None, (said["waits_for"], said["problem"])):
        say(f"  {text}")


def _show_schedule(made: dict[str, Any]) -> None:
    from runner.cli.schedule import told

    told(made)


def _stay(client: Client, jobs: list[dict[str, Any]], *, follow: bool, as_json: bool) -> list[int]:
    """Wait until jobs have ended, and return the exit codes for their outcomes."""
    from runner.cli.follow import follow_to_the_end
    from runner.cli.wait import exit_codes, tell_end

    ends = []
    for job in jobs:
        try:
            if follow:
                return [follow_to_the_end(client.following(), job["id"], as_json=as_json)]
            ends.append(tell_end(client, job["id"], as_json=as_json))
        except KeyboardInterrupt:
            name = job["name"]
            complain(f"{name} goes on: runner logs -f {name} follows it, runner cancel {name} stops it")
            return [*exit_codes(ends), INTERRUPTED]
    return exit_codes(ends)
