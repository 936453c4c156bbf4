"""Gives what the daemon has written to the owner of a job, without trusting what it is."""

import os
import stat
from typing import Final

from runner.base.errors import Refused
from runner.core.ports.users import Owner

MAX_DEPTH: Final = 64
"""Directories within each other."""

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def give_tree(directory: int, giver: int, owner: Owner, depth: int = 0) -> None:
    """Give an open directory of one user with all that is in it to another.

    The directory is root's first, so that its former owner changes nothing in it any more.

    Raises:
        Refused: something in it is not the former owner's, or neither a file, a link nor a directory.
        OSError: the file system refuses it.
    """
    if depth > MAX_DEPTH:
        raise Refused("what is given to a job is too deep")
    found = os.fstat(directory)
    if found.st_uid not in {giver, 0}:
        raise Refused("a directory that is given to a job is not the daemon's")
    os.fchown(directory, 0, 0)
    os.fchmod(directory, 0o700)
    for name in os.listdir(directory):
        _give(directory, name, giver, owner, depth)
    os.fchown(directory, owner.uid, owner.gid)
    os.fchmod(directory, found.st_mode & 0o777)


def _give(directory: int, name: str, giver: int, owner: Owner, depth: int) -> None:
    uid, gid = owner.uid, owner.gid
    seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if seen.st_uid not in {giver, uid}:
        raise Refused("a file that is given to a job is not the daemon's")
    if stat.S_ISLNK(seen.st_mode):
        os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        return
    entry = os.open(name, _FLAGS, dir_fd=directory)
    try:
        mode = os.fstat(entry).st_mode
        if stat.S_ISDIR(mode):
            give_tree(entry, giver, owner, depth + 1)
        elif stat.S_ISREG(mode):
            os.fchown(entry, uid, gid)
            os.fchmod(entry, mode & 0o777)
        else:
            raise Refused("what is given to a job is neither a file nor a directory")
    finally:
        os.close(entry)
