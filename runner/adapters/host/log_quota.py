"""Keeps a growing log within its quota by freeing its middle, while the job writes to it.

A hole is punched into the file.  Its length and all offsets stay the same, so neither the program that
appends nor a reader that follows is disturbed, and the disk gets its blocks back.  The beginning shows how a
job was set up and the end how it failed, so both are kept.

The file belongs to the job and is not trusted: no link is followed, and only a regular file of the
directory's owner is changed.  The caller is responsible for the directory.  If the file system cannot punch
holes, the log is left as it is, and one warning is logged.
"""

import ctypes
import os
import stat
from errno import EINTR, ENXIO
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from jobs.contract import open_directory

Segment: TypeAlias = tuple[int, int]
"""Offsets [start, end) of bytes that were kept."""

_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01  # linux/falloc.h
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SECTOR: Final = 512  # the unit of st_blocks, whatever the file system's is

log = structlog.get_logger(__name__)


def enforce(path: Path, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
    """Cut the middle out of a file that takes more than ``quota_bytes`` on disk; return the bytes cut.

    At least the first ``keep_head`` and the last ``keep_tail`` bytes are kept.  Return 0 for a file that is
    small enough, missing, or not a log that the job can have written.
    """
    try:
        with open_directory(path.parent) as parent:
            if os.lstat(path.name, dir_fd=parent).st_blocks * _SECTOR <= quota_bytes:  # the usual case
                return 0
            owner = os.fstat(parent).st_uid
            descriptor = os.open(path.name, _FLAGS, dir_fd=parent)
    except OSError:  # missing, a link, a directory, a device without a driver
        return 0
    try:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode) or status.st_uid != owner
        ):  # a hard link to a file of another user
            return 0
        return _enforce(descriptor, quota_bytes, keep_head, keep_tail)
    finally:
        os.close(descriptor)


def next_segment(descriptor: int, offset: int) -> Segment | None:
    """Return the first range that was kept and does not end before ``offset``; None if only a cut follows.

    The range begins at ``offset`` or behind it, so nothing before ``offset`` is looked at: a log may consist
    of any number of ranges.  The offset of the descriptor is changed.
    """
    size = os.fstat(descriptor).st_size
    if offset >= size:
        return None
    try:
        start = os.lseek(descriptor, offset, os.SEEK_DATA)
        return start, min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == ENXIO:  # only a hole follows
            return None
        raise


def _enforce(descriptor: int, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
    status = os.fstat(descriptor)
    allocated = status.st_blocks * _SECTOR
    if allocated <= quota_bytes:
        return 0
    block = status.st_blksize
    start = -(-keep_head // block) * block
    end = (status.st_size - keep_tail) // block * block
    if end <= start or not _punch_hole(descriptor, start, end - start):
        return 0
    return max(allocated - os.fstat(descriptor).st_blocks * _SECTOR, 0)


def _punch_hole(descriptor: int, start: int, length: int) -> bool:
    """Free a range of whole blocks, and return whether that was possible."""
    while _fallocate()(descriptor, _PUNCH_HOLE_KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        if number != EINTR:
            _warn_once(os.fstat(descriptor).st_dev, os.strerror(number))
            return False
    return True


@cache
def _fallocate() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


@cache
def _warn_once(device: int, why: str) -> None:
    """Warn once for each file system that logs on it are not limited."""
    log.warning("log_quota.not_enforced", device=f"{os.major(device)}:{os.minor(device)}", why=why)
