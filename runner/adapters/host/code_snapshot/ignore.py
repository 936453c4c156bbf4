"""Which files of a code directory are left out: by ``.gitignore`` and ``.runnerignore``, and a few always.

The rules are those of ``gitignore(5)``: a file of patterns counts for its directory and those below, later
patterns and deeper files outrank earlier ones, and nothing below an ignored directory can be had back.  In
one directory ``.runnerignore`` outranks ``.gitignore``, so it can also have files back.
"""

import os
from collections.abc import Iterator
from typing import Final

from pathspec import GitIgnoreSpec

IGNORE_FILES: Final = (".gitignore", ".runnerignore")
"""In the order in which they are read; the last one that matches decides."""

NEVER: Final = ".git"
"""The repository itself; no pattern can have it back."""

ALWAYS: Final = GitIgnoreSpec.from_lines([".hg/", ".svn/", "__pycache__/"])
"""What is left out unless a pattern has it back."""

ENVIRONMENT_MARK: Final = "pyvenv.cfg"
"""A directory with this file is a virtual environment, which works only where it was made."""

MAX_IGNORE_FILE_BYTES: Final = 1024 * 1024


class IgnoreRules:
    """The rules of one directory, read when they are first asked for."""

    def __init__(self, directory: str, parent: "IgnoreRules | None" = None) -> None:
        self._directory = directory  # relative to the code; empty: the code itself
        self._parent = parent
        self._specs: tuple[tuple[int, GitIgnoreSpec], ...] | None = None

    def below(self, directory: str) -> "IgnoreRules":
        """Return the rules of a directory in this one, by its path."""
        return IgnoreRules(directory, self)

    def is_ignored(self, path: str, *, is_directory: bool) -> bool:
        """Return whether an entry of this directory is left out."""
        if path == NEVER or path.endswith(f"/{NEVER}"):
            return True
        name = f"{path}/" if is_directory else path
        for start, spec in self._all():
            if (found := spec.check_file(name[start:]).include) is not None:
                return found
        return ALWAYS.match_file(name)

    def _all(self) -> tuple[tuple[int, GitIgnoreSpec], ...]:
        """Return the patterns that count here, the deepest first, with the length of what precedes a name."""
        if self._specs is None:
            above = self._parent._all() if self._parent else ()  # noqa: SLF001  (of the same class)
            self._specs = (*self._own(), *above)
        return self._specs

    def _own(self) -> Iterator[tuple[int, GitIgnoreSpec]]:
        start = len(self._directory) + 1 if self._directory else 0
        for name in reversed(IGNORE_FILES):
            lines = _lines(f"{self._directory}/{name}" if self._directory else name)
            if lines:
                yield start, GitIgnoreSpec.from_lines(lines)


def _lines(path: str) -> list[str]:
    """Return the lines of a file of patterns; none if it is not there or is no regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return os.fsdecode(file.read(MAX_IGNORE_FILE_BYTES)).splitlines()
    except OSError:
        return []
