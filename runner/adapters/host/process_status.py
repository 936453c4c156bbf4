"""One process as the kernel sees it: a descriptor of it, its handlers of signals, and its children."""

import errno
import os
import re
from pathlib import Path


def open_process(pid: int) -> int:
    """Return a pidfd of a process.

    Raises:
        ProcessLookupError: it is gone; of one that is just being removed, the kernel says ``EINVAL``.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error


def has_handler(pid: int, signal: int) -> bool:
    """Return True if a process has a handler of a signal; False if it is gone."""
    try:
        found = re.search(r"^SigCgt:\t([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (signal - 1) & 1)


def groups_of(pid: int, uid: int) -> tuple[int, ...]:
    """Return the supplementary groups of a process that runs as a user; none if it does not, or is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ()
    ids = re.search(r"^Uid:((?:\t\d+){4})$", status, re.MULTILINE)
    groups = re.search(r"^Groups:\t([\d ]*)$", status, re.MULTILINE)
    if ids is None or groups is None or set(ids[1].split()) != {str(uid)}:
        return ()
    return tuple(map(int, groups[1].split()))


def is_childless(pid: int) -> bool:
    """Return True if a process is there and has no children; False where the kernel does not say."""
    try:
        return not Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return False
