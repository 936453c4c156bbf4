"""Size of a log at times: programs write no times, and ``runner logs --since`` asks for them.

The daemon notes the size of a growing log now and then, in a file beside the attempt that the job cannot
change. Each note has a fixed length, so that a reader searches it without reading all of it.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Final, TypeAlias

from jobs.contract import open_directory, open_regular

EVERY_S: Final = 10.0
"""The least time between two notes, and so the precision of ``--since``."""

Open: TypeAlias = Callable[[Path], BufferedReader]
"""Opens a regular file for reading, as ``open_regular`` does."""

_NOTE: Final = struct.Struct("<dQ")


def note_size(notes: Path, log: Path, now_s: float) -> None:
    """Note the present size of a log if it has grown; without a place for it, nothing is noted."""
    try:
        with open_directory(log.parent) as parent:
            present = os.lstat(log.name, dir_fd=parent).st_size
        descriptor = os.open(
            notes, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError:
        return
    try:
        end = os.fstat(descriptor).st_size
        at, size = _NOTE.unpack(os.pread(descriptor, _NOTE.size, end - _NOTE.size)) if end else (0.0, 0)
        whole = end % _NOTE.size == 0  # a full disk may have torn a note
        if whole and present != size and not 0 <= now_s - at < EVERY_S:
            os.write(descriptor, _NOTE.pack(now_s, present))
    except OSError:
        return
    finally:
        os.close(descriptor)


def size_at(notes: Path, when_s: float, open_file: Open = open_regular) -> int:
    """Return the size that a log had at a time, at most; 0 if nothing is known of that time or before."""
    try:
        with open_file(notes) as file:
            text = file.read()
    except OSError:
        return 0
    known = list(_NOTE.iter_unpack(text[: len(text) - len(text) % _NOTE.size]))
    index = bisect_right(known, when_s, key=lambda note: note[0])
    return int(known[index - 1][1]) if index else 0
