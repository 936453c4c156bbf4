"""Checkpoints of a program that are set aside, because a later attempt resumed from an older one.

They lie in ``lineages/L/set-aside/N`` under the paths that they had, where N is the attempt that they were
moved for.  A program that looks for its newest checkpoint itself does not find them there, and nothing is
lost: ``runner restart --from STEP`` puts them back.

The directory belongs to the job and is hostile: each part of a path is opened below the one before, without
following a link.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from runner.adapters.host.program_files import MatchedPath, TooMany, directory_below, find_matches
from runner.core.ports.users import Owner

NAME: Final = "set-aside"

MAX_ATTEMPTS: Final = 1000
"""Attempts whose set-aside checkpoints are looked at, the newest first."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class SetAside:
    """What is set aside in the lineages of one run directory."""

    root: Path
    owner: Owner

    def place(self, lineage: int, attempt: int) -> str:
        """Return the directory of an attempt, relative to the run directory."""
        return f"lineages/{lineage}/{NAME}/{attempt}"

    def steps(self, lineage: int, pattern: str) -> tuple[int, ...]:
        """Return the numbers of what is set aside in a lineage, the highest first."""
        found = (match.number for _, match in self._all(lineage, pattern))
        return tuple(sorted({number for number in found if number is not None}, reverse=True))

    def of_attempt(self, lineage: int, attempt: int, pattern: str) -> tuple[str, ...]:
        """Return the paths of what was set aside for an attempt, the lowest number first."""
        found = sorted(self._of(lineage, attempt, pattern), key=lambda each: each.number or 0)
        return tuple(str(each.path) for each in found)

    def move(self, base: Path, path: PurePosixPath, lineage: int, attempt: int) -> None:
        """Move a path below a directory aside; what was moved there before under this name is removed.

        Raises:
            OSError: the file system refuses it.
        """
        place = self.root / "lineages" / str(lineage)
        source = open_parents(base, path.parts[:-1], self.owner)
        try:
            target = open_parents(place, (NAME, str(attempt), *path.parts[:-1]), self.owner)
            try:
                remove(target, path.name)
                os.rename(path.name, path.name, src_dir_fd=source, dst_dir_fd=target)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def bring_back(self, base: Path, lineage: int, pattern: str, step: int) -> None:
        """Put a checkpoint back, with the earlier ones that were set aside with it; none replaces another.

        Raises:
            OSError: the file system refuses it.
        """
        wanted = next((n for n, match in self._all(lineage, pattern) if match.number == step), None)
        if wanted is None:
            return
        place = self.root / "lineages" / str(lineage)
        for match in self._of(lineage, wanted, pattern):
            if match.number is None or match.number > step:
                continue
            source = open_parents(place, (NAME, str(wanted), *match.path.parts[:-1]), self.owner)
            try:
                self._put_back(source, base, match.path)
            finally:
                os.close(source)

    def _put_back(self, source: int, base: Path, path: PurePosixPath) -> None:
        target = open_parents(base, path.parts[:-1], self.owner)
        try:
            with suppress(FileNotFoundError):
                os.stat(path.name, dir_fd=target, follow_symlinks=False)
                return
            os.rename(path.name, path.name, src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(target)

    def _all(self, lineage: int, pattern: str) -> Iterator[tuple[int, MatchedPath]]:
        """Yield what is set aside in a lineage with its attempt, that of the newest attempt first."""
        try:
            fd = os.open(self.root / "lineages" / str(lineage), _DIRECTORY)
        except OSError:
            return
        try:
            with directory_below(fd, NAME) as inner:
                names = [] if inner is None else os.listdir(inner)  # noqa: PTH208  of a descriptor
        finally:
            os.close(fd)
        numbers = sorted((int(name) for name in names if _is_number(name)), reverse=True)
        for number in numbers[:MAX_ATTEMPTS]:
            for match in self._of(lineage, number, pattern):
                yield number, match

    def _of(self, lineage: int, attempt: int, pattern: str) -> list[MatchedPath]:
        """Return what was set aside for an attempt; nothing of another user."""
        try:
            fd = os.open(self.root / "lineages" / str(lineage), _DIRECTORY)
        except OSError:
            return []
        try:
            with directory_below(fd, NAME) as aside:
                if aside is None:
                    return []
                with directory_below(aside, str(attempt)) as inner:
                    found = [] if inner is None else find_matches(inner, pattern)
        except TooMany:
            return []
        finally:
            os.close(fd)
        strangers = os.geteuid() == 0
        return [each for each in found if not strangers or each.owners <= {self.owner.uid}]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def open_parents(base: Path | int, parts: tuple[str, ...], owner: Owner) -> int:
    """Return a descriptor of a directory, whose missing parts are made for its owner.

    Raises:
        OSError: a part is a link or no directory, or the file system refuses it.
    """
    fd = os.open(base, _DIRECTORY) if isinstance(base, Path) else os.dup(base)
    for part in parts:
        with suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=fd)
            if os.geteuid() == 0:
                os.chown(part, owner.uid, owner.gid, dir_fd=fd, follow_symlinks=False)
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def remove(parent: int, name: str) -> None:
    """Remove a file or a directory of an open directory, without following a link."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
