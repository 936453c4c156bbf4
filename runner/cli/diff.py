"""``runner diff``: what differs between two jobs, two revisions, or a job and a file."""

from __future__ import annotations

import difflib
import json
import os
from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.textfile import one_line
from runner.cli.console import complain, harmless, say, say_json
from runner.cli.parameters import as_json, check_ref, complete_names
from runner.cli.placing import placed
from runner.cli.submit import read
from runner.client.client import find_or_start
from runner.client.http import quote_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIMIT_S: Final = 120.0
"""How long the daemon may take to read the code of a file."""

MAX_LINES: Final = 20_000
"""Lines of one file that are compared; comparing takes the square of them."""


@click.command()
@click.argument("job", metavar="JOB", callback=check_ref, shell_complete=complete_names)
@click.argument("other", metavar="[JOB|FILE]", required=False)
@as_json
def diff(job: str, other: str | None, *, as_json: bool) -> None:
    """Show what differs between a job and another job, or a job file.

    Without a second argument, the job is compared with its own file and its code as they are now. JOB@N is
    revision N of a job. The command compares the fields with their classes, the packages, and the code
    line by line. The exit code is 0 whether something differs or not.
    """
    body: dict[str, Any] = {}
    if other is not None and _is_file(other):
        raw = read(other)
        place = os.path.abspath(placed(other, raw))  # noqa: PTH100  pathlib takes 5 ms to import
        text = b2a_base64(raw, newline=False).decode()
        body["file"] = {"path": place, "shown": other, "text_b64": text}
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
    return word == "-" or "/" in word or word.endswith((".yaml", ".yml")) or os.path.isfile(word)  # noqa: PTH113


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs, line by line."""
    if not found["changes"] and not found["code"]:
        yield f"{found['before']} and {found['after']}: nothing differs"
    else:
        yield f"--- {harmless(found['before'])}"
        yield f"+++ {harmless(found['after'])}"
    for change in found["changes"]:
        yield f"{change['field']}: {harmless(change['before'])} -> {harmless(change['after'])}"
        yield f"    class {change['class']}: {change['why']}"
    for name in found["code_unknown"]:
        if found["changes"]:
            yield f"{harmless(name)}: its code was not kept, and is not compared"
    for file in found["code"]:
        yield ""
        yield from _file(file)


def _file(file: Mapping[str, Any]) -> Iterator[str]:
    path, before, after = one_line(file["path"]), file["before"], file["after"]
    texts = file["texts"]
    if (before or after)["kind"] == "directory":
        yield f"{'new' if before is None else 'removed'} directory {path}"
        return
    if before and after and before["executable"] != after["executable"]:
        yield f"{path}: {'may' if after['executable'] else 'may not'} be executed now"
    if texts is None:
        yield f"{path}: {_size(before)} -> {_size(after)}; not compared line by line"
        return
    old, new = (text.splitlines() for text in texts)
    if max(len(old), len(new)) > MAX_LINES:
        yield f"{path}: {len(old)} -> {len(new)} lines; too many to be compared"
        return
    yield from _lines(path, old, new, is_new=before is None, is_gone=after is None)


def _lines(
    path: str, old: Sequence[str], new: Sequence[str], *, is_new: bool, is_gone: bool
) -> Iterator[str]:
    """Yield a unified diff as ``git diff`` writes it."""
    names = ("/dev/null" if is_new else f"a/{path}", "/dev/null" if is_gone else f"b/{path}")
    lines = list(difflib.unified_diff(old, new, *names, lineterm=""))
    if not lines and (is_new or is_gone):
        yield f"{'new' if is_new else 'removed'} empty file {path}"
    yield from (harmless(line, keep="\t") for line in lines)


def _size(entry: Mapping[str, Any] | None) -> str:
    return "absent" if entry is None else f"{entry['kind']} of {entry['size']} bytes"
