"""The job file that ``runner tune`` writes: the user's own text, in which only changed lines are new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.textfile import FileError
from runner.base.yaml import MappingNode
from runner.cli.bench.variants import written_fields
from runner.cli.run_file import yaml_text
from runner.cli.tune.candidates import job_fields
from runner.files.validation import parse_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runner.cli.bench.variants import BenchmarkJob
    from runner.cli.tune.search import Search

Fields = dict[str, Any]
Notes = dict[str, str]


def job_text(base: BenchmarkJob, search: Search, host: str) -> str:
    """Return the job file with what was kept, each setting with its measurement beside it."""
    fields = job_fields(base, search.kept)
    kept = [row for row in search.rows if row.kept]
    notes = {row.candidate.name: f"{row.ratio} x, was {row.candidate.title}" for row in kept}
    heading = [
        f"runner tune {Path(base.path).name}: {search.final} times as fast as before, all together",
        host,
        *(f"{each.title}: {row.ratio} x" for row in kept if (each := row.candidate).place == "command"),
    ]
    text = _edited(base, fields, notes)
    if not _says(text, base, fields):  # it is in one line as JSON, or uses an anchor of what has changed
        text = _entry(fields, notes, 0)
    return "".join(f"# {line}\n" for line in heading) + text


def _edited(base: BenchmarkJob, fields: Fields, notes: Notes) -> str:
    """Return the text of the file with other fields: its comments, anchors and order stay."""
    lines = base.source.splitlines(keepends=True)
    if not lines:
        return ""
    lines[-1] = lines[-1].rstrip("\r\n") + "\n"
    tree, _ = parse_mapping(base.source.encode(), Path(base.path))
    _edit(lines, tree, len(lines), (base.written, fields), notes)
    return "".join(lines)


def _edit(lines: list[str], node: MappingNode, end: int, fields: tuple[Fields, Fields], notes: Notes) -> None:
    """Change the lines of a mapping up to ``end`` where its fields change from the first to the second."""
    old, new = fields
    indent = min(at.column for at in node.keys.values()) - 1
    begins = sorted(at.line - 1 for at in node.keys.values())
    for name in (name for name in new if name in old and new[name] != old[name]):
        first = node.keys[name].line - 1
        after = next((line for line in begins if line > first), end)
        below = node.entries[name]
        if isinstance(new[name], dict) and isinstance(below, MappingNode) and _is_block(below, first + 1):
            _edit(lines, below, after, (old[name], new[name]), notes)
            continue
        for number in range(first, after):
            lines[number] = lines[number] if _is_comment(lines[number], indent) else ""
        lines[first] = _entry({name: new[name]}, notes, indent)
    added = {name: value for name, value in new.items() if name not in old}
    last = max(line for line in range(begins[0], end) if not _is_comment(lines[line], end))
    lines[last] += _entry(added, notes, indent) if added else ""


def _is_block(node: MappingNode, line: int) -> bool:
    """Return True for a mapping without braces and anchor below a line, not an alias of one above it."""
    return node.at.line > line and node.at in node.keys.values()


def _is_comment(line: str, most: int) -> bool:
    """Return True for an empty line, and a comment that is indented by no more than this."""
    return not line.strip() or (line.lstrip().startswith("#") and len(line) - len(line.lstrip()) <= most)


def _entry(fields: Fields, notes: Notes, indent: int) -> str:
    """Return fields as YAML, each setting with its measurement as a comment."""
    found = []
    for line in yaml_text(fields).splitlines():
        note = notes.get(line.partition(":")[0].strip().strip('"'))
        found.append(" " * indent + (line if note is None else f"{line}  # {note}") + "\n")
    return "".join(found)


def _says(text: str, base: BenchmarkJob, fields: Mapping[str, Any]) -> bool:
    """Return True if a text says exactly these fields."""
    try:
        found = written_fields(text.encode(), Path(base.path))
    except FileError:
        return False
    return json.dumps(found, sort_keys=True) == json.dumps(fields, sort_keys=True)  # tuples are lists
