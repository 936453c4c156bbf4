"""Small promises about files: written completely, replaced atomically, still there after a power cut.

Leaves out what is in them; ``jobs.checkpoint.directory`` and ``jobs.training.report`` know that.
"""

import os
import shutil
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and return when it is on the disk; its name is durable after ``sync(parent)``."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content, never a part; not durable."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def sync(path: Path) -> None:
    """Return when a file's content, or a directory's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(directory: Path, nonce: str) -> None:
    """Remove a directory so that nobody ever sees half of it under its own name."""
    trash = directory.with_name(f".trash-{directory.name}-{nonce}")
    directory.rename(trash)
    remove_tree(trash)


def remove_tree(directory: Path) -> None:
    """Remove a directory as far as possible; what stays is swept by the next attempt."""
    shutil.rmtree(directory, ignore_errors=True)


class ReservedFile:
    """A file whose blocks are allocated long before it is written, so that a full disk cannot stop it."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.new")
        self._new.write_bytes(b" " * size)
        sync(self._new)

    def publish(self, content: bytes) -> None:
        """Write the content in place, then give the file its name, durably."""
        with self._new.open("r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._new.replace(self._path)
        sync(self._path.parent)
