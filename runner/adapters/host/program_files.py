"""The files of a job that a pattern of its job file names, found without following a link.

The directories belong to the job and are hostile: each part of a path is opened below the one before, and a
look is limited in entries.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

MAX_ENTRIES: Final = 20_000
"""Entries of directories that one look reads at most."""

MAX_FILES: Final = 2_000
"""Files of one checkpoint that are looked at."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NUMBERS: Final = re.compile(r"[0-9]{1,15}")
_SUFFIX: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,11}")

Fingerprint: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of the last write in nanoseconds of each file."""


@dataclass(frozen=True, slots=True)
class MatchedPath:
    """A file or a directory that a pattern names."""

    path: PurePosixPath
    files: Fingerprint
    is_directory: bool
    owners: frozenset[int]

    @property
    def number(self) -> int | None:
        """The last number in the name, without its suffix: of ``epoch=3-step=1200.ckpt`` it is 1200."""
        name = _SUFFIX.sub("", self.path.name)
        return int(found[-1]) if (found := _NUMBERS.findall(name)) else None

    @property
    def written_ns(self) -> int:
        """The time of the last write to any of the files."""
        return max((each[3] for each in self.files), default=0)

    @property
    def bytes(self) -> int:
        return sum(each[2] for each in self.files)


class TooMany(Exception):
    """There are more entries than one look reads."""


def find_matches(base: Path | int, pattern: str) -> list[MatchedPath]:
    """Return what a pattern names below a directory or an open one; nothing if it does not exist.

    Raises:
        TooMany: the directories have too many entries.
    """
    try:
        fd = os.open(base, _DIRECTORY) if isinstance(base, Path) else os.dup(base)
    except OSError:
        return []
    search = _Search()
    try:
        return list(search.matches(fd, PurePosixPath(), PurePosixPath(pattern).parts))
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Search:
    entries: int = 0

    def matches(self, fd: int, here: PurePosixPath, parts: tuple[str, ...]) -> Iterator[MatchedPath]:
        expression, rest = _compiled(parts[0]), parts[1:]
        for name, mode in self._list(fd):
            if not expression.fullmatch(name) or (name.startswith(".") and not parts[0].startswith(".")):
                continue
            if rest:
                if stat.S_ISDIR(mode):
                    with directory_below(fd, name) as inner:
                        yield from () if inner is None else self.matches(inner, here / name, rest)
            elif (found := self._match(fd, here / name, mode)) is not None:
                yield found

    def _list(self, fd: int) -> list[tuple[str, int]]:
        """Return the names and modes of the entries of an open directory."""
        found = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MAX_ENTRIES:
                    raise TooMany
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
                except OSError:
                    continue  # removed meanwhile
        return found

    def _match(self, fd: int, path: PurePosixPath, mode: int) -> MatchedPath | None:
        """Return a file, or a directory with its files; None for anything else."""
        owners: set[int] = set()
        if stat.S_ISREG(mode):
            files = list(_status(fd, path.name, PurePosixPath(path.name), owners))
            return MatchedPath(path, tuple(files), is_directory=False, owners=frozenset(owners))
        if not stat.S_ISDIR(mode):
            return None
        with directory_below(fd, path.name) as inner:
            files = [] if inner is None else sorted(self._files(inner, PurePosixPath(), owners))
        return MatchedPath(path, tuple(files), is_directory=True, owners=frozenset(owners))

    def _files(self, fd: int, here: PurePosixPath, owners: set[int]) -> Iterator[tuple[str, int, int, int]]:
        for name, mode in self._list(fd):
            if stat.S_ISREG(mode):
                yield from _status(fd, name, here / name, owners)
            elif stat.S_ISDIR(mode):
                with directory_below(fd, name) as inner:
                    yield from () if inner is None else self._files(inner, here / name, owners)


def _status(fd: int, name: str, path: PurePosixPath, owners: set[int]) -> Iterator[tuple[str, int, int, int]]:
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return  # removed meanwhile
    owners.add(found.st_uid)
    yield str(path), found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def directory_below(fd: int, name: str) -> Iterator[int | None]:
    """Open a directory below another one; None if it is none any more."""
    try:
        inner = os.open(name, _DIRECTORY, dir_fd=fd)
    except OSError:
        yield None
        return
    try:
        yield inner
    finally:
        os.close(inner)


@lru_cache(maxsize=512)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


@contextmanager
def open_below(base: Path | int, path: PurePosixPath) -> Iterator[int]:
    """Open a regular file below a directory, without following any link in its path.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    fd = os.dup(base) if isinstance(base, int) else os.open(base, _DIRECTORY)
    try:
        for part in path.parts[:-1]:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        file = os.open(path.name, _FILE, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path}: is no regular file")
        yield file
    finally:
        os.close(file)
