"""Mount sources that stay what they were when they were checked.

A path may be swapped for a link between the check and the moment when the engine, as root,
mounts it.  So it is opened with the rights of the job's owner; the open directory itself, and
not its name, is then attached below a directory that is root's alone, and the engine is given
that.  Whatever the owner does to the name afterwards changes nothing.

Needs root, and an engine in the same mount namespace; elsewhere the engine runs with the
user's own rights and there is nothing to steal.
"""

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from runner.adapters.host.users import HostUsers
from runner.base.errors import Unavailable
from runner.core.ports.users import User

_OPEN_TREE: Final = 428  # the same numbers on every architecture since Linux 5.2
_MOVE_MOUNT: Final = 429
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_OPEN_TREE_CLOEXEC: Final = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_MNT_DETACH: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


class PinnedMounts:
    """The pinned sources of all attempts, below one directory that is the daemon's alone."""

    def __init__(self, directory: Path, users: HostUsers) -> None:
        self._directory, self._users = directory, users

    def pin(self, who: User, path: Path, name: str) -> Path:
        """Return a path that leads to what ``path`` leads to now, for as long as it is pinned.

        Raises:
            UsageError: its owner may not read it, or it belongs to the system.
            Unavailable: the kernel does not attach it.
        """
        place = self._directory / name
        _detach(place)  # what a killed daemon may have left of the same attempt
        fd = self._users.open_as_user(who, path)  # for reading: what its owner may not read cannot be shown
        try:
            _place(place, directory=stat.S_ISDIR(os.fstat(fd).st_mode))
            _attach(fd, place)
        finally:
            os.close(fd)
        return place

    def release(self, name: str) -> None:
        """Let go of everything that was pinned below ``name``; containers that have it keep it."""
        for place in sorted(self._below(name), reverse=True):
            _detach(place)
            with suppress(OSError):
                place.unlink() if place.is_file() else place.rmdir()
        with suppress(OSError):
            (self._directory / name).rmdir()

    def names(self) -> tuple[str, ...]:
        """Return the first parts of all names that anything is pinned under."""
        with suppress(FileNotFoundError):
            return tuple(sorted(entry.name for entry in self._directory.iterdir()))
        return ()

    def _below(self, name: str) -> Iterator[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (self._directory / name).iterdir()


def _place(place: Path, *, directory: bool) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory:
        place.mkdir(mode=0o700, exist_ok=True)
    else:
        place.touch(mode=0o600)


def _detach(place: Path) -> None:
    """Take away whatever is attached at ``place``, however often."""
    while _libc.umount2(os.fsencode(place), _MNT_DETACH) == 0:
        pass


def _attach(fd: int, place: Path) -> None:
    """Attach the open file or directory itself at ``place``."""
    tree = _libc.syscall(_OPEN_TREE, fd, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    if tree < 0:
        raise Unavailable(f"{place}: cannot pin: {os.strerror(ctypes.get_errno())}")
    try:
        where = os.fsencode(place)
        if _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, where, _MOVE_MOUNT_F_EMPTY_PATH):
            raise Unavailable(f"{place}: cannot pin: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(tree)
