"""Opens files and directories that a job may have written: without links, and regular files only.

A daemon of root opens them itself.  A daemon that has given up root lets its helper open them
(``runner.adapters.privileged``), and reads what it gets back.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from jobs.contract import open_directory, open_regular


class RunFiles(Protocol):
    """Access of a daemon to what lies below its run directories."""

    def open_file(self, path: Path | str, dir_fd: int | None = None) -> BufferedReader:
        """Open a regular file; ``dir_fd`` is the open directory that contains it.

        Raises:
            OSError: it is missing, a link, or not a regular file.
        """

    def open_directory(self, path: Path | str, dir_fd: int | None = None) -> AbstractContextManager[int]:
        """Open a directory and yield its descriptor.

        Raises:
            OSError: it is missing, a link, or not a directory.
        """


class OwnRights:
    """Opens with the rights of this process."""

    @staticmethod
    def open_file(path: Path | str, dir_fd: int | None = None) -> BufferedReader:
        return open_regular(path, dir_fd)

    @staticmethod
    @contextmanager
    def open_directory(path: Path | str, dir_fd: int | None = None) -> Iterator[int]:
        with open_directory(path, dir_fd) as descriptor:
            yield descriptor
