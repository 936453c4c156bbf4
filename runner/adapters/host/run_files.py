"""Opens files and directories that a job may have written: without links, and regular files only.

Root opens each part of a path below the one before.  A daemon that has given up root lets its helper do that
(``runner.adapters.privileged``), and reads what it gets back.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from jobs.contract import open_directory, open_regular


class RunFiles(Protocol):
    """Access of a daemon to what lies below its run directories."""

    def open_file(self, path: Path) -> BufferedReader:
        """Open a regular file; may raise OSError."""

    def open_directory(self, path: Path) -> AbstractContextManager[int]:
        """Open a directory and yield its descriptor; may raise OSError."""


class OwnRights:
    """Opens with the rights of this process."""

    open_file = staticmethod(open_regular)
    open_directory = staticmethod(open_directory)


class OpensBelow(Protocol):
    """Opens what lies in run directories; satisfied by ``RunFileOpener`` and by the helper."""

    def open_below(self, run: str, path: str, *, directory: bool) -> int:
        """Return a descriptor of what a path below a run directory leads to; may raise OSError."""


@dataclass(frozen=True, slots=True)
class FilesBelow:
    """Satisfies ``RunFiles`` for the run directories of one daemon."""

    opener: OpensBelow
    jobs: Path

    def open_file(self, path: Path) -> BufferedReader:
        return os.fdopen(self._open(path, directory=False), "rb")

    @contextmanager
    def open_directory(self, path: Path) -> Iterator[int]:
        descriptor = self._open(path, directory=True)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, path: Path, *, directory: bool) -> int:
        run, _, below = str(path)[len(str(self.jobs)) + 1 :].partition("/")
        return self.opener.open_below(run, below, directory=directory)
