"""Copies a checkpoint out of a directory that its job can change, with its holes.

A copy takes no more of the disk than the original: holes stay holes, and a file with several names is copied
once.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ENXIO
from pathlib import Path
from typing import Final

from jobs.contract import MANIFEST, MAX_MANIFEST_BYTES, open_verified_size, read_limited, read_manifest_in
from runner.adapters.host.checkpoints import check_sizes

_BLOCK_BYTES: Final = 1024**2
_FICLONE: Final = 0x40049409  # linux/fs.h: share the blocks of another file


def copy_checkpoint(source: int, target: Path, check: Callable[[], None]) -> None:
    """Copy an open checkpoint directory to a new directory; ``check`` is called now and then, and may raise.

    The content is not verified.

    Raises:
        CheckpointInvalid: the manifest is bad, or a file is missing or of another size.
        OSError: the file system refuses it.
    """
    manifest = read_manifest_in(source, target.name)
    files = check_sizes(source, manifest)
    target.mkdir(mode=0o700)
    copied: dict[tuple[int, int], Path] = {}
    for name, expected in manifest.files.items():
        inode = (files[name].st_dev, files[name].st_ino)
        if inode in copied:
            (target / name).hardlink_to(copied[inode])
            continue
        copied[inode] = target / name
        with (
            open_verified_size(source, name, expected) as old,
            (target / name).open("xb") as new,
        ):
            copy_content(old.fileno(), new.fileno(), expected.bytes, check)
    (target / MANIFEST).write_bytes(read_limited(MANIFEST, MAX_MANIFEST_BYTES, source))


def copy_content(old: int, new: int, size: int, check: Callable[[], None]) -> None:
    """Copy an open file to an empty one by sharing its blocks; where that is impossible, without its holes.

    ``check`` is called before each block, and may raise.

    Raises:
        OSError: the file system refuses it.
    """
    with suppress(OSError):
        fcntl.ioctl(new, _FICLONE, old)
        return
    os.ftruncate(new, size)
    for start, end in _data_ranges(old, size):
        _copy_range(old, new, start, end, check)


def _data_ranges(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) of a file that are not holes; they are found one by one."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == ENXIO:  # only a hole follows
                return
            raise
        yield start, end


def _copy_range(old: int, new: int, start: int, end: int, check: Callable[[], None]) -> None:
    while start < end:
        check()
        block = os.pread(old, min(_BLOCK_BYTES, end - start), start)
        if not block:  # it was cut off meanwhile
            return
        start += os.pwrite(new, block, start)
