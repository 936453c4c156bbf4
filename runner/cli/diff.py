"""``runner diff``: what differs between two jobs, two revisions, or a job and a file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import click

from runner.cli.console import complain, harmless, say, say_json
from runner.cli.parameters import as_json, check_ref, complete_names
from runner.cli.placing import placed
from runner.cli.submit import read
from runner.client.client import file_fields, find_or_start
from runner.client.differences import file_lines
from runner.client.http import quote_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIMIT_S: Final = 120.0
"""Longest wait for the daemon, which reads the code of a file."""


@click.command()
@click.argument("job", metavar="JOB", callback=check_ref, shell_complete=complete_names)
@click.argument("other", metavar="[JOB|FILE]", required=False)
@as_json
def diff(job: str, other: str | None, *, as_json: bool) -> None:
    """Show what differs between a job and another job, or a job file.

    Without a second argument: its own file and code as they are now. JOB@N is revision N. The exit code
    is 0 whether something differs or not.
    """
    body: dict[str, Any] = {}
    if other is not None and _is_file(other):
        text = read(other)
        body["file"] = file_fields(placed(other, text), text, other)
    elif other is not None:
        body["job"] = other
    client = find_or_start(complain)
    answer = client.ask("POST", f"/v1/jobs/{quote_path(job)}/diff", json.dumps(body).encode(), LIMIT_S)
    found: dict[str, Any] = json.loads(answer.body)
    if as_json:
        say_json(found)
        return
    for line in told(found):
        say(line)


def _is_file(word: str) -> bool:
    return word == "-" or "/" in word or word.endswith((".yaml", ".yml")) or os.path.isfile(word)


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences, line by line."""
    if not (found["changes"] or found["code"] or found["code_unknown"]):
        yield f"{found['before']} and {found['after']}: nothing differs"
    else:
        yield f"--- {harmless(found['before'])}"
        yield f"+++ {harmless(found['after'])}"
    for change in found["changes"]:
        yield f"{change['field']}: {harmless(change['before'])} -> {harmless(change['after'])}"
        yield f"    class {change['class']}: {change['why']}"
    for name in found["code_unknown"]:
        yield f"{harmless(name)}: its code was not kept, and is not compared"
    for file in found["code"]:
        yield ""
        yield from (harmless(line, keep="\t") for line in file_lines(file))
