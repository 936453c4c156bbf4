"""Differences between the code of two revisions, file by file.

The job file itself does not count where it lies in the code: its fields are compared on their own.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.core.ports.code import CodeEntry, CodeSnapshots
from runner.files.revision import Revision


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
    """Return what differs between the entries of two snapshots, by path."""
    paths = sorted(before.keys() | after.keys())
    pairs = ((path, before.get(path), after.get(path)) for path in paths)
    return tuple(CodeChange(path, old, new) for path, old, new in pairs if old != new)


def has_same_code(snapshots: CodeSnapshots | None, before: Revision, after: Revision) -> bool:
    """Return whether two revisions have snapshots of the same code, their job files apart."""
    if before.code is None or after.code is None:
        return False
    if before.code.snapshot == after.code.snapshot:
        return True
    old, new = code_entries(snapshots, before), code_entries(snapshots, after)
    return old is not None and old == new


def _own_file(revision: Revision) -> str | None:
    """Return the path of the job file in its code, None if it lies elsewhere."""
    directory, path = revision.code_directory(), Path(revision.path)
    if directory is None:
        return None
    real, place = Path(os.path.normpath(directory)), Path(os.path.normpath(path))
    return str(place.relative_to(real)) if place.is_relative_to(real) else None
