"""Ownership of files in the state directory of a daemon in two parts.

The directory is root's and sticky.  The daemon's user may make files in it, such as the store with its log,
and change those that are its own.  It cannot rename or remove what is root's: the directories of jobs, pins,
processes, images, data and etc, in which root acts.
"""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

from runner.base.errors import Unavailable

ROOT_DIRECTORIES: Final = ("jobs", "pins", "processes", "images", "data", "etc")
ROOT_FILES: Final = frozenset({"lock", "starting", "hosts"})
_MODE: Final = 0o1775


def share_state(directory: Path, user: pwd.struct_passwd) -> None:
    """Give the files of a state directory to the daemon's user, also those that a daemon of root has made.

    Raises:
        Unavailable: the file system refuses it, or a directory of root belongs to another user.
    """
    try:
        for name in ROOT_DIRECTORIES:
            _make_root_directory(directory / name)
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                _share_directory(Path(entry.path), user)
            else:
                _share(Path(entry.path), user)
        os.chown(directory, 0, user.pw_gid)
        directory.chmod(_MODE)
    except OSError as error:
        where = error.filename or directory
        raise Unavailable(f"{where}: cannot be given to user {user.pw_name}: {error.strerror}") from error


def _make_root_directory(path: Path) -> None:
    """Make a directory, or check that nobody but root has made it."""
    mode = 0o755 if path.name in {"jobs", "data", "images", "etc"} else 0o700
    if not os.path.lexists(path):
        path.mkdir(mode=mode)
        path.chmod(mode)
    found = path.lstat()
    if found.st_uid != 0:
        fact = f"{path}: belongs to uid {found.st_uid}, and root acts in it"
        raise Unavailable(f"{fact}; move it away, or chown root {path}")


def _share_directory(directory: Path, user: pwd.struct_passwd) -> None:
    """Give what a daemon of root has kept in a directory of its own to the daemon's user, once.

    A directory that is not root's has been the user's already, who may have put anything into it.
    """
    if directory.name in ROOT_DIRECTORIES or directory.lstat().st_uid != 0:
        return
    for place, _, files, descriptor in os.fwalk(directory, topdown=False):
        for name in files:
            os.chown(name, user.pw_uid, user.pw_gid, dir_fd=descriptor, follow_symlinks=False)
        os.chown(place, user.pw_uid, user.pw_gid)


def _share(path: Path, user: pwd.struct_passwd) -> None:
    """Give a file of the state to the daemon's user; root keeps its own files, and others theirs."""
    found = path.lstat()
    if path.name in ROOT_FILES:
        if found.st_uid != 0:
            path.unlink()  # it was put there to be taken for root's
        return
    if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_nlink != 1:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, user.pw_uid, user.pw_gid)
    finally:
        os.close(descriptor)
