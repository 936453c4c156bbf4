"""Locks between processes: ``flock`` on a file, which the kernel releases with the process that holds it.

Whoever can open a lock file can hold its lock, so it is made with mode 0600.  Standard library alone, because
the client locks, too.  Who holds a lock is written into the file by its holder; this module does not know.
"""

import fcntl
import os
from pathlib import Path

from runner.base.errors import Unavailable


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, which is made if it is not there; the caller closes it.

    Raises:
        OSError: it cannot be opened or made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)  # made earlier by another hand
    return descriptor


def lock(descriptor: int, path: Path) -> None:
    """Take the lock on an open file, after waiting for whoever holds it.

    Raises:
        Unavailable: the file system has no locks.
    """
    _flock(descriptor, fcntl.LOCK_EX, path)


def try_lock(descriptor: int, path: Path) -> bool:
    """Take the lock on an open file if it is free, and return whether it was.

    Raises:
        Unavailable: the file system has no locks.
    """
    try:
        _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return True if another process holds the lock on a file; one that cannot be opened counts as free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, path)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, operation: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Unavailable(f"{path}: cannot be locked: {error.strerror}; use another file system") from error
