"""Writes the members of a tar archive below one directory, whatever the archive says.

A job may change a directory while it is walked: what was a directory becomes a link, and members of its name
follow.  So no path is handed to the system.  Each directory is opened in the one above it, and no link is
followed; a link is made only if it cannot lead out of the copy, through whatever other links.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

from runner.adapters.host.archive import LEFT_OUT
from runner.base.errors import UsageError
from runner.base.textfile import one_line

if TYPE_CHECKING:
    import tarfile
    from types import TracebackType

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class MemberLeftOut(Exception):
    """A member has no place in the copy; the text is the reason."""


class Copy:
    """A copy of what a job has written; without a name, its content is put into the directory itself.

    With ``of_directory``, nothing else than a directory gets the name.
    """

    def __init__(self, directory: str, name: str, *, of_directory: bool = False) -> None:
        self.name = name
        self._of_directory = of_directory
        self.place = os.path.join(directory, name) if name else directory
        self._parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._parent)

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write a member of an archive that is read as a stream.

        Raises:
            MemberLeftOut: it would lead out of the copy, or is neither a file, a directory nor a link.
            OSError: the file system refuses it.
            UsageError: it is to be a directory, and is none.
        """
        below = [part for part in member.name.split("/") if part not in {"", "."}]
        if ".." in below or "\0" in member.name:
            raise MemberLeftOut("leads out of the copy")
        if LEFT_OUT in member.pax_headers:
            raise MemberLeftOut(f"cannot be read: {one_line(member.pax_headers[LEFT_OUT])}")
        path = [self.name, *below] if self.name else below
        with ExitStack() as opened:
            if member.isdir():
                self._open(path, opened)
                return
            if not below and self._of_directory:
                fact = "there is no such directory; make it, or leave out the /"
                raise UsageError(f"{one_line(self.place)}/: {fact}")
            if not path:
                raise MemberLeftOut("is not a directory")
            directory = self._open(path[:-1], opened)
            if member.issym():
                _check_target(member.linkname, len(below) - 1)
                _remove(path[-1], directory)
                os.symlink(member.linkname, path[-1], dir_fd=directory)
            elif member.isreg():
                _write(archive, member, path[-1], directory)
            else:
                raise MemberLeftOut("is neither a file, a directory nor a link")

    def _open(self, path: list[str], opened: ExitStack) -> int:
        """Return a descriptor of a directory of the copy, which is made if it is not there."""
        directory = self._parent
        for part in path:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=directory)
            try:
                directory = os.open(part, _DIRECTORY, dir_fd=directory)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                    raise MemberLeftOut("a link or a file is where its directory would be") from error
                raise
            opened.callback(os.close, directory)
        return directory


def _check_target(target: str, depth: int) -> None:
    """Refuse a link that leads out of the copy from a directory of a depth below its top.

    Only leading ``..`` are taken: they climb real directories, and one behind a name might climb from
    wherever another link has led.  A copy that is a link alone, at depth -1, leads out of itself.
    """
    parts = [part for part in target.split("/") if part not in {"", "."}]
    climbs = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if target.startswith("/") or ".." in parts[climbs:] or climbs > depth:
        raise MemberLeftOut("a link that leads out of the copy")


def _remove(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, directory: int) -> None:
    """Write a regular file in place of one that is there, with the safe part of its mode."""
    source = archive.extractfile(member)
    if source is None:
        raise MemberLeftOut("has no content")
    _remove(name, directory)
    executable = 0o111 if member.mode & 0o100 else 0
    mode = (member.mode & 0o644) | (member.mode & executable) | 0o600
    with os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=directory), "wb") as file:
        shutil.copyfileobj(source, file)
        with suppress(OSError, OverflowError, ValueError):
            os.utime(file.fileno(), (member.mtime, member.mtime))
