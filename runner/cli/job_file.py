"""``runner validate``, ``schema`` and ``init``: commands for job files, which need no daemon."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.textfile import FileError, Problem, one_line, open_target, read_source
from runner.cli.console import complain, complain_of, say, say_json
from runner.cli.parameters import as_json, verbose
from runner.cli.placing import placed
from runner.client.http import ErrorResponse

if TYPE_CHECKING:
    from runner.client.client import Client
    from runner.files.job.model import JobFile

STANDARD_OUTPUT: Final = "-"
TEMPLATE: Final = Path(__file__).parent.parent / "files" / "job" / "template.yaml"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--offline", is_flag=True, help="Ask no daemon about images, users, devices and jobs.")
@verbose
@as_json
def validate(files: tuple[str, ...], *, offline: bool, verbose: bool, as_json: bool) -> None:
    """Check job files and the paths in them; submit nothing.

    A FILE of "-" is standard input. A running daemon is asked what "submit" would say. Each problem is
    a line FILE:LINE:COLUMN: FIELD: FACT. The exit code is 2 if there is one, and 3 if the job would be
    refused.
    """
    client = None if offline else _running_daemon()
    codes = [_validate(file, client, verbose=verbose, as_json=as_json) for file in files]
    click.get_current_context().exit(max(codes))


def _running_daemon() -> Client | None:
    """Return a client of the daemon that would get a submission, None if none answers."""
    from runner.client.client import find

    try:
        return find(complain)
    except Unavailable:
        return None


@click.command()
def schema() -> None:
    """Print the JSON Schema of the job file, for editors."""
    import json

    from runner.files.job.schema import job_schema

    say(json.dumps(job_schema(), indent=2))


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("job.yaml"))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--training", is_flag=True, help="Write the training of a small model, whatever the directory holds."
)
def init(file: Path, *, force: bool, training: bool) -> None:
    """Write a commented job file that runs without changes.

    FILE is job.yaml by default, "-" standard output. If the directory holds a script, such as train.py
    or src/main.py, the job runs it, and comments say how it resumes; else the job trains a small model.
    Of several scripts none is chosen.
    """
    from runner.cli.proposal import propose

    proposal = None if training else propose(file.parent)
    text = TEMPLATE.read_text(encoding="utf-8") if proposal is None else proposal.text
    name = one_line(str(file))
    about = "" if proposal is None else f" for {one_line(proposal.about)}"
    if proposal is None and not training:
        about = ", a sample that trains a small model: no script was found here"
    if name == STANDARD_OUTPUT:
        click.echo(text, nl=False)
        complain(f"a job file{about}")
        return
    try:
        with open_target(file, overwrite=force) as target:
            target.write(text)
    except (FileExistsError, IsADirectoryError) as error:
        if file.is_dir():
            inside = one_line(shlex.quote(str(file / "job.yaml")))
            raise UsageError(f"{name}: is a directory; write into it with: runner init {inside}") from error
        raise UsageError(f"{name}: exists already; --force overwrites it") from error
    except OSError as error:
        raise UsageError(f"{name}: cannot be written: {error.strerror}") from error
    complain(f"wrote {name}{about}; start it with: runner submit {one_line(shlex.quote(str(file)))} --follow")


commands: Final = (validate, schema, init)


def _validate(file: str, client: Client | None, *, verbose: bool, as_json: bool) -> int:
    """Validate one file, print the result, and return the exit code."""
    path = Path(file or "''")  # an empty path would be the current directory
    try:
        text = _read(file)
        jobs, warnings = _checked(path, text)
        asked = None if client is None else _ask(client, file, text)
    except FileError as error:
        if as_json:
            say_json({"file": file, "ok": False, "problems": [_entry(each) for each in error.problems]})
            return error.exit_code
        return complain_of(error)
    except ErrorResponse as error:  # what submit would say
        if as_json:
            told = [_told(file, line) for line in error.lines]
            say_json({"file": file, "ok": False, "problems": told})
            return error.code
        return complain_of(error, verbose=verbose)
    warnings = list(dict.fromkeys((*warnings, *(asked or ()))))
    if as_json:
        found = {"name": jobs[0].name, "jobs": len(jobs), "warnings": warnings, "problems": []}
        say_json({"file": file, "ok": True, **found})
        return 0
    name = one_line(str(path))
    complain(*(f"warning: {name}: {each}" for each in warnings))
    say(f"{name}: ok{f', {len(jobs)} jobs' if len(jobs) > 1 else ''}")
    if asked is None and any(map(_leaves_open, jobs)):
        complain(
            f"{name}: users, jobs that it waits for, devices and data are looked at when it is submitted"
        )
    return 0


def _ask(client: Client, file: str, text: bytes) -> tuple[str, ...] | None:
    """Return the warnings of a daemon, None if it does not answer in time or at all.

    Raises:
        ErrorResponse: it would not accept the job.
    """
    try:
        plan = client.submit(placed(file, text), text, None, dry_run=True, shown=file)
        return tuple(plan.get("warnings", ()))
    except ErrorResponse as error:
        if error.code in {UsageError.exit_code, Refused.exit_code}:
            raise
        return None
    except Unavailable:
        return None


_PLACE: Final = re.compile(r"(?::(\d+):(\d+))?: (?:([A-Za-z_.\[\]0-9]+): )?(.*)", re.DOTALL)


def _told(file: str, line: str) -> dict[str, Any]:
    """Return a line of the daemon as an entry, with its position if it has one."""
    match = _PLACE.fullmatch(line.removeprefix(file)) if line.startswith(file) else None
    if match is None:
        return {"line": None, "column": None, "field": "", "fact": line}
    row, column, field, fact = match.groups()
    at = {"line": int(row), "column": int(column)} if row else {"line": None, "column": None}
    return {**at, "field": field or "", "fact": fact}


def _leaves_open(job: JobFile) -> bool:
    """Return True if a job refers to something that only the daemon can resolve."""
    return bool({"queue", "devices", "schedule"} & job.model_fields_set) or (
        getattr(job.workload, "data", "stdlib") not in {"stdlib", "synthetic"}
    )


def _read(file: str) -> bytes:
    """Return the text of a job file; ``-`` is standard input.

    Raises:
        FileError: the file cannot be read.
    """
    from runner.cli.submit import STANDARD_INPUT, read

    if not file:
        raise FileError(Path("''"), [Problem(None, "", "no file has an empty name; name a job file")])
    return read(file) if file == STANDARD_INPUT else read_source(Path(file))


def _checked(path: Path, text: bytes) -> tuple[tuple[JobFile, ...], list[str]]:
    """Return the jobs that a file defines, and warnings about valid but unlikely values.

    Raises:
        FileError: the file, a path in it, or the policy that it names is invalid.
    """
    from runner.adapters.host.paths import check_path
    from runner.files import shell
    from runner.files.job.load import parse_jobs
    from runner.files.policy import job_policy as of_job

    named = of_job.JobReferences(path.parent, check_path)
    jobs = parse_jobs(text, path, besides=named.problems).jobs
    warnings: dict[str, None] = {}
    for job in jobs:
        policy = named.policy(job)  # the policy file may be invalid
        warnings |= dict.fromkeys(shell.find_shell_warnings(getattr(job.workload, "command", ())))
        warnings |= dict.fromkeys(of_job.find_ineffective_limits(job, policy))
    return jobs, list(warnings)


def _entry(problem: Problem) -> dict[str, Any]:
    at = problem.at
    return {
        "line": at.line if at else None,
        "column": at.column if at else None,
        "field": problem.field,
        "fact": problem.fact,
    }
