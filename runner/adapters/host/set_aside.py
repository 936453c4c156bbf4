"""Checkpoints of a program that are set aside, because a later attempt resumed from an older one.

They lie below one directory for each attempt, under the paths that they had: in ``lineages/L/set-aside/N``
of the run directory, or for a mount in a hidden directory of the mount.  A program that looks for its newest
checkpoint itself does not find them there, and nothing is lost: ``runner restart --from STEP`` puts them
back.

The directory belongs to the job and is hostile: each part of a path is opened below the one before, without
following a link.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

from runner.adapters.host.program_files import DIRECTORY, MatchedPath, TooMany, directory_at, find_matches

NAME: Final = "set-aside"

GIVEN: Final = 0
"""Stands for an attempt where a lineage has a checkpoint of another job before its first attempt."""

MAX_ATTEMPTS: Final = 1000
"""Attempts whose set-aside checkpoints are looked at, the newest first."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Files of one lineage that are set aside, in a place below an open directory."""

    parent: int | Path
    place: PurePosixPath  # of the attempts, below the parent

    def found(self, pattern: str) -> Iterator[tuple[int, MatchedPath]]:
        """Yield each copy set aside, with its attempt, that of the newest attempt first."""
        try:
            with directory_at(self.parent, self.place) as place:
                names = os.listdir(place)
                numbers = sorted((int(name) for name in names if _is_number(name)), reverse=True)
                for number in numbers[:MAX_ATTEMPTS]:
                    for match in self._of(place, number, pattern):
                        yield number, match
        except OSError:
            return

    def move(self, base: int, path: PurePosixPath, attempt: int) -> None:
        """Move a path below an open directory aside; what was moved there under this name is removed.

        Raises:
            OSError: the file system refuses it.
        """
        parts = (*self.place.parts, str(attempt), *path.parts[:-1])
        with directory_at(base, path.parent) as source, directory_at(self.parent, PurePosixPath()) as parent:
            target = open_parents(parent, parts)
            try:
                remove(target, path.name)
                os.rename(path.name, path.name, src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.close(target)

    def put_back(self, base: int, path: PurePosixPath, attempt: int) -> bool:
        """Put a path back, and return whether that was done: not if another one has its name.

        Raises:
            OSError: the file system refuses it.
        """
        with directory_at(self.parent, self.place / str(attempt) / path.parent) as source:
            target = open_parents(base, path.parts[:-1])
            try:
                with suppress(FileNotFoundError):
                    os.stat(path.name, dir_fd=target, follow_symlinks=False)
                    return False
                os.rename(path.name, path.name, src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.close(target)
        return True

    def _of(self, place: int, attempt: int, pattern: str) -> list[MatchedPath]:
        try:
            with directory_at(place, PurePosixPath(str(attempt))) as inner:
                return find_matches(inner, pattern)
        except (OSError, TooMany):
            return []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def open_parents(base: int, parts: tuple[str, ...]) -> int:
    """Return a descriptor of a directory, whose missing parts are made; may raise OSError."""
    fd = os.dup(base)
    for part in parts:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
            inner = os.open(part, DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def remove(parent: int, name: str) -> None:
    """Remove a file or a directory of an open directory, without following a link.

    Directories below each other, however many, are moved up and removed one by one.  What cannot be removed
    stays.
    """
    waiting = [name]
    while waiting:
        current = waiting.pop()
        try:
            if not stat.S_ISDIR(os.stat(current, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(current, dir_fd=parent)
                continue
            with directory_at(parent, PurePosixPath(current)) as fd:
                with os.scandir(fd) as scan:
                    entries = list(scan)
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=fd)
                        continue
                    moved = f".removed-{uuid4().hex}"
                    os.rename(entry.name, moved, src_dir_fd=fd, dst_dir_fd=parent)
                    waiting.append(moved)
            os.rmdir(current, dir_fd=parent)
        except OSError:
            continue
