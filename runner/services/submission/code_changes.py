"""Differences between the code of two revisions, file by file.

The job files themselves do not count where they lie in the code: their fields are compared on their own.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.core.ports.code import CodeEntry, CodeSnapshots
from runner.files.revision import Revision

LOOK_BYTES: Final = 64 * 1024
_WORKLOAD: Final = re.compile(rb"(?m)(?:^|[{,]\s{0,9})[\"']?workload[\"']?\s{0,9}:")
"""Field that every job file has, and hardly another file."""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A file, a link or a directory that differs."""

    path: str
    before: CodeEntry | None
    after: CodeEntry | None


def code_entries(snapshots: CodeSnapshots | None, revision: Revision) -> Mapping[str, CodeEntry] | None:
    """Return the entries of a revision's snapshot without its job file; None if it has none."""
    if snapshots is None or revision.code is None:
        return None
    found = snapshots.entries(revision.uid, revision.code.snapshot)
    own = _own_file(revision)
    return None if found is None else {path: entry for path, entry in found.items() if path != own}


def code_changes(before: Mapping[str, CodeEntry], after: Mapping[str, CodeEntry]) -> tuple[CodeChange, ...]:
    """Return the differences between the entries of two snapshots, by path."""
    paths = sorted(before.keys() | after.keys())
    pairs = ((path, before.get(path), after.get(path)) for path in paths)
    return tuple(CodeChange(path, old, new) for path, old, new in pairs if old != new)


def has_same_code(snapshots: CodeSnapshots | None, before: Revision, after: Revision) -> bool:
    """Return True if two revisions have snapshots of the same code, their job files apart."""
    if before.code is None or after.code is None:
        return False
    if before.code.snapshot == after.code.snapshot:
        return True
    old, new = code_entries(snapshots, before), code_entries(snapshots, after)
    if snapshots is None or old is None or new is None:
        return False
    own = {_own_file(before), _own_file(after)}
    return all(
        change.path in own or _is_job_file(snapshots, before.uid, change) for change in code_changes(old, new)
    )


def _is_job_file(snapshots: CodeSnapshots, uid: int, change: CodeChange) -> bool:
    """Return True if what differs is another job file beside the first, before and after."""
    if "/" in change.path or not change.path.endswith((".yaml", ".yml")):
        return False
    there = [entry for entry in (change.before, change.after) if entry is not None]
    return all(
        entry.kind == "file" and _WORKLOAD.search(snapshots.read(uid, entry.digest, LOOK_BYTES)) is not None
        for entry in there
    )


def _own_file(revision: Revision) -> str | None:
    """Return the path of the job file in its code, None if it lies elsewhere."""
    directory, path = revision.code_directory(), Path(revision.path)
    if directory is None:
        return None
    real, place = Path(os.path.normpath(directory)), Path(os.path.normpath(path))
    return str(place.relative_to(real)) if place.is_relative_to(real) else None
