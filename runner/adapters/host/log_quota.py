"""Keeps a growing log within its quota by cutting out the middle, under the pen of whoever writes it.

A hole is punched into the file: its length and every offset stay as they are, so neither
the program that appends nor a reader that follows notices, and the disk gets its blocks
back.  The beginning tells how a job was set up and the end how it died; both are kept.

The file belongs to the job, which is hostile: no link is followed, and nothing is touched but
a regular file of the directory's owner.  The caller vouches for the directory.
Where the file system knows no holes the log is left as it is, and one line says so.
"""

import ctypes
import os
import stat
from errno import EINTR, ENXIO
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import structlog

Segment: TypeAlias = tuple[int, int]
"""Offsets [start, end) of bytes that are there."""

_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01  # linux/falloc.h
_SECTOR: Final = 512  # the unit of st_blocks, whatever the file system's is

log = structlog.get_logger(__name__)


def enforce(path: Path, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
    """Cut the middle out of a file that takes more than ``quota_bytes`` on disk; return the bytes cut.

    At least the first ``keep_head`` and the last ``keep_tail`` bytes stay.  Returns 0 for
    a file that is small enough, missing, or not a log that a job could have written.
    """
    try:
        if os.lstat(path).st_blocks * _SECTOR <= quota_bytes:  # most of them, at every end
            return 0
        owner = path.parent.stat().st_uid
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # missing, a link, a directory, a device without a driver
        return 0
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:  # another's, by a hard link
            return 0
        return _enforce(descriptor, quota_bytes, keep_head, keep_tail)
    finally:
        os.close(descriptor)


def segments(descriptor: int) -> tuple[Segment, ...]:
    """Return the ranges of a file that were not cut, in order; between them lie the cuts.

    Does not move the descriptor's offset for good.
    """
    size = os.fstat(descriptor).st_size
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    found: list[Segment] = []
    start = 0
    try:
        while start < size:
            start = os.lseek(descriptor, start, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            found.append((start, min(end, size)))
            start = end
    except OSError as error:
        if error.errno != ENXIO:  # nothing but a hole from here on
            raise
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return tuple(found)


def _enforce(descriptor: int, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
    status = os.fstat(descriptor)
    allocated = status.st_blocks * _SECTOR
    if allocated <= quota_bytes:
        return 0
    block = status.st_blksize
    start = -(-keep_head // block) * block
    end = (status.st_size - keep_tail) // block * block
    if end <= start or not _punched(descriptor, start, end - start):
        return 0
    return max(allocated - os.fstat(descriptor).st_blocks * _SECTOR, 0)


def _punched(descriptor: int, start: int, length: int) -> bool:
    """Free a range of whole blocks; False where that is not possible."""
    while _fallocate()(descriptor, _PUNCH_HOLE_KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        if number != EINTR:
            _say_once(os.fstat(descriptor).st_dev, os.strerror(number))
            return False
    return True


@cache
def _fallocate() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


@cache
def _say_once(device: int, why: str) -> None:
    """Say once for each file system that logs on it grow without a limit."""
    log.warning("log_quota.not_enforced", device=f"{os.major(device)}:{os.minor(device)}", why=why)
