"""Pins mount sources, so that a user cannot swap a path between its check and its mount.

The engine mounts as root, and a path may be replaced by a link before it does.  So the path is opened with
the rights of the job's owner, and the open file or directory itself is attached below a directory that only
root can change.  The engine mounts it from there.  What the owner does to the path afterwards has no effect.

This needs root and an engine in the same mount namespace.  Without root, the engine has the rights of the
user alone, and there is nothing to gain.
"""

import ctypes
import os
import stat
import struct
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
_MOUNT_SETATTR: Final = 442  # since Linux 5.12
_MOUNT_ATTR_NOSUID: Final = 2
_MOUNT_ATTR_NODEV: Final = 4
_MNT_DETACH: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


class PinnedMounts:
    """Satisfies ``runner.core.ports.users.MountPins``; all pins are below one directory of the daemon."""

    def __init__(self, directory: Path, users: HostUsers) -> None:
        self._directory, self._users = directory, users

    def pin(self, who: User, path: Path, name: str) -> Path:
        place = self._directory / name
        _detach(place)  # a daemon that was killed may have left a mount of the same attempt
        fd = self._users.open_as_user(who, path)  # for reading: a job must not see what its owner cannot read
        try:
            _make_mount_point(place, directory=stat.S_ISDIR(os.fstat(fd).st_mode))
            _attach(fd, place)
        finally:
            os.close(fd)
        return place

    def release(self, name: str) -> None:
        for place in sorted(self._below(name), reverse=True):
            _detach(place)
            with suppress(OSError):
                place.unlink() if place.is_file() else place.rmdir()
        with suppress(OSError):
            (self._directory / name).rmdir()

    def names(self) -> tuple[str, ...]:
        with suppress(FileNotFoundError):
            return tuple(sorted(entry.name for entry in self._directory.iterdir()))
        return ()

    def _below(self, name: str) -> Iterator[Path]:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (self._directory / name).iterdir()


def _make_mount_point(place: Path, *, directory: bool) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory:
        place.mkdir(mode=0o700, exist_ok=True)
    else:
        place.touch(mode=0o600)


def _detach(place: Path) -> None:
    """Unmount everything that is mounted at ``place``, however often."""
    while _libc.umount2(os.fsencode(place), _MNT_DETACH) == 0:
        pass


def _attach(fd: int, place: Path) -> None:
    """Mount the open file or directory at ``place``."""
    tree = _libc.syscall(_OPEN_TREE, fd, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    if tree < 0:
        raise Unavailable(f"{place}: cannot pin: {os.strerror(ctypes.get_errno())}")
    try:
        _restrict(tree)
        where = os.fsencode(place)
        if _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, where, _MOVE_MOUNT_F_EMPTY_PATH):
            raise Unavailable(f"{place}: cannot pin: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(tree)


def _restrict(tree: int) -> None:
    """Let no file of a mount that is not attached yet give its user's rights away, or stand for a device.

    Kernels before 5.12 cannot; containers gain no privileges and get no device nodes in any case.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
