"""Start position for a reader of the last lines of a log, or of those since a time."""

import os
from pathlib import Path
from typing import Final

from jobs.contract import open_regular
from runner.adapters.host.log_times import Open, size_at
from runner.core.ports.store import JobRow
from runner.server.api.logs import LogQuery, log_path
from runner.services.jobs import JobService

LOOK_BYTES: Final = 1024**2
"""Bytes of a log that are read at once."""

LONGEST_TAIL_BYTES: Final = 256 * LOOK_BYTES
"""The last lines are looked for in so many bytes: a log can be a file of any size without content."""


def find_start(service: JobService, row: JobRow, query: LogQuery) -> int:
    """Return the offset in the log of an attempt, by default the newest, from which a reader wants it.

    Only the log of the first process has times.
    """
    attempt = query.attempt
    attempts = {each.number: each for each in service.store.attempts(row.job.id)}
    chosen = attempts.get(attempt or max(attempts, default=0))
    if chosen is None:
        return 0  # there is no log, and reading it says so
    directory = service.attempt_service.directory(row)
    path, notes = log_path(directory, row, chosen, query.rank), directory.log_times(chosen.number)
    since = tail = 0
    if query.since is not None and not query.rank:
        since = line_start(path, size_at(notes, query.since, directory.open), directory.open)
    if query.tail is not None:
        tail = tail_start(path, query.tail, directory.open)
    return max(since, tail)


def tail_start(path: Path, lines: int, open_file: Open = open_regular) -> int:
    """Return the offset of the last lines of a file, or of its last ``LONGEST_TAIL_BYTES``."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            return _tail_start(file.fileno(), size, lines) if lines else size
    except OSError:
        return 0


def _tail_start(descriptor: int, size: int, lines: int) -> int:
    """Look for the line ends before the last lines of an open file, block by block from its end."""
    least, left = max(size - LONGEST_TAIL_BYTES, 0), lines
    begin = end = max(size - 1, 0)  # the end of the last line is not one before it
    while begin > least:
        begin = max(begin - LOOK_BYTES, least)
        text = os.pread(descriptor, end - begin, begin)
        if (count := text.count(b"\n")) < left:
            left, end = left - count, begin
            continue
        at = len(text)
        for _ in range(left):
            at = text.rfind(b"\n", 0, at)
        return begin + at + 1
    return least


def line_start(path: Path, offset: int, open_file: Open = open_regular) -> int:
    """Return the offset of the first line that begins at an offset or behind it."""
    if offset <= 0:
        return 0
    try:
        with open_file(path) as file:
            text = os.pread(file.fileno(), LOOK_BYTES, offset - 1)
    except OSError:
        return offset
    ends = [end for end in (text.find(b"\n"), text.find(b"\r")) if end >= 0]
    return offset + min(ends, default=0)
