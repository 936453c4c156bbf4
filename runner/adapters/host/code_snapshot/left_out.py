"""Entries that a snapshot of code leaves out, for its owner: ignored data, links out of the code.

In a listing, a directory has a row for each: [name, kind, files, bytes, target].  Files of one suffix are one
row.  Directories are measured at each look, as data are often downloaded after the first one.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final

from runner.adapters.host.code_snapshot.ignore import ENVIRONMENT_MARK, NEVER

MOST_ROWS: Final = 100
"""Of one directory."""

MOST_TOLD: Final = 20
"""Of one snapshot: links first, then the largest."""

MOST_MEASURED: Final = 10_000
"""Files and directories that are looked at to measure what is ignored."""

SINGLE: Final = 2
"""So many files of one suffix are told one by one."""

REMADE: Final = (
    *("__pycache__", "*.pyc", "*.pyo", "*.egg-info", "*.egg", ".DS_Store", "Thumbs.db", "*.swp", "*~"),
    *(".hg", ".svn", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".coverage", ".cache"),
    *(".ipynb_checkpoints", ".idea", ".vscode", "node_modules", ".venv", "venv", ".direnv"),
)
"""Names of what programs make again, and no job needs."""


class LeftOutEntries:
    """Entries of one directory that are left out."""

    def __init__(self) -> None:
        self._rows: list[list[Any]] = []
        self._files: dict[str, list[tuple[str, int]]] = {}  # by their suffixes
        self._pointers: list[str] = []

    def add_ignored(self, entry: "os.DirEntry[str]", path: str) -> None:
        """Add what git ignores; that a repository is there is kept for the next look."""
        if entry.name == NEVER:
            self.add(NEVER, "repository")
        elif any(fnmatchcase(entry.name, pattern) for pattern in REMADE):
            return
        elif entry.is_symlink():
            self.add(entry.name, "link", os.readlink(path))
        elif entry.is_dir(follow_symlinks=False):
            self.add(entry.name, "directory")
        elif entry.is_file(follow_symlinks=False):
            stem, dot, suffix = entry.name.rpartition(".")
            group = f"*.{suffix}" if stem and dot else entry.name
            self._files.setdefault(group, []).append((entry.name, entry.stat().st_size))

    def add(self, name: str, kind: str, target: str = "") -> None:
        """Add one entry."""
        self._rows.append([name, kind, 1, 0, target])

    def add_pointer(self, name: str) -> None:
        """Add a file of which the code has what Git LFS puts in its place."""
        self._pointers.append(name)

    def rows(self) -> list[list[Any]]:
        """Return the rows of the directory."""
        files: list[list[Any]] = []
        for group, found in self._files.items():
            if len(found) > SINGLE:
                files.append([group, "file", len(found), sum(size for _, size in found), ""])
            else:
                files += [[name, "file", 1, size, ""] for name, size in found]
        files.sort(key=lambda row: -row[3])
        pointers = [[name, "pointer", len(self._pointers), 0, ""] for name in self._pointers[:1]]
        return [*pointers, *self._rows, *files][:MOST_ROWS]


def find_left_out(directories: Iterable[list[Any]]) -> list[list[Any]]:
    """Return the entries left out of a listing: [path, kind, files, bytes, target, whether it is more]."""
    found, left = [], MOST_MEASURED
    for path, *_, rows in directories:
        prefix = f"{path}/" if path else ""
        for name, kind, files, size, target in rows:
            row = [prefix + name, kind, files, size, target, False]
            if kind == "directory":
                count, *row[2:4] = _measure(prefix + name, left)
                left -= count
                row[5] = left <= 0
            if kind != "repository" and (kind != "directory" or row[2] or row[5]):
                found.append(row)
    found.sort(key=lambda row: (row[1] in {"file", "directory"}, -row[3], row[0]))
    return found[:MOST_TOLD]


def _measure(directory: str, most: int) -> tuple[int, int, int]:
    """Return the number of entries of a directory that were looked at, that of its files, and their size.

    An environment counts as empty: it works only where it was made.
    """
    seen, files, size, pending = 0, 0, 0, [directory]
    while pending and seen < most:
        place = pending.pop()
        if os.path.lexists(f"{place}/{ENVIRONMENT_MARK}"):
            continue
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                seen += 1
                if seen > most:
                    break
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file():
                    files += 1
                    size += entry.stat().st_size
    return seen, files, size
