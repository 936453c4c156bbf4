"""File operations with guarantees: complete writes, atomic replacement, durability after a power failure.

The content of the files is defined in ``jobs.checkpoint.directory`` and ``jobs.training.report``.
"""

import os
import shutil
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and flush it to the disk; its name is durable only after ``sync(parent)``."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content.  The change is not durable."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(directory: Path, nonce: str) -> None:
    """Remove a directory; it is renamed first, so that its name never refers to a part of it."""
    trash = directory.with_name(f".trash-{directory.name}-{nonce}")
    directory.rename(trash)
    remove_tree(trash)


def remove_tree(directory: Path) -> None:
    """Remove a directory as far as possible; the next attempt sweeps any remainder."""
    shutil.rmtree(directory, ignore_errors=True)


class ReservedFile:
    """A file whose disk blocks are allocated in advance, so that it can be written to a full disk."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.new")
        self._new.write_bytes(b" " * size)
        sync(self._new)

    def publish(self, content: bytes) -> None:
        """Write the content in place, then rename the file to its final name, durably."""
        with self._new.open("r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._new.replace(self._path)
        sync(self._path.parent)
