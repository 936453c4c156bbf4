"""Start position for a reader of the last lines of a log, or of those since a time."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.contract import open_regular
from runner.adapters.host.log_times import Open, size_at
from runner.core.ports.store import JobRow
from runner.server.api.logs import LogChoice, log_path
from runner.services.jobs import JobService

LOOK_BYTES: Final = 1024**2
"""The last lines are looked for in so many bytes at the end of a log."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """The part of a log that a reader asks for first."""

    tail: int | None = None  # lines
    since_s: float | None = None  # Unix time

    @property
    def is_given(self) -> bool:
        return self.tail is not None or self.since_s is not None


def find_start(service: JobService, row: JobRow, choice: LogChoice, start: LogStart) -> int:
    """Return the offset in the log of an attempt, by default the newest, from which a reader wants it.

    Only the log of the first process has times.
    """
    attempt = choice.attempt
    attempts = {each.number: each for each in service.store.attempts(row.job.id)}
    chosen = attempts.get(attempt or max(attempts, default=0))
    if chosen is None:
        return 0  # there is no log, and reading it says so
    directory = service.attempt_service.directory(row)
    path, notes = log_path(directory, row, chosen, choice.rank), directory.log_times(chosen.number)
    since = tail = 0
    if start.since_s is not None and not choice.rank:
        since = line_start(path, size_at(notes, start.since_s, directory.open), directory.open)
    if start.tail is not None:
        tail = tail_start(path, start.tail, directory.open)
    return max(since, tail)


def tail_start(path: Path, lines: int, open_file: Open = open_regular) -> int:
    """Return the offset of the last lines of a file; of all of its last ``LOOK_BYTES`` if they are longer."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(size - LOOK_BYTES, 0)
            text = os.pread(file.fileno(), size - begin, begin)
    except OSError:
        return 0
    if not lines:
        return size
    end = len(text) - 1 if text.endswith(b"\n") else len(text)
    for _ in range(lines):
        end = text.rfind(b"\n", 0, max(end, 0))
        if end < 0:
            return begin
    return begin + end + 1


def line_start(path: Path, offset: int, open_file: Open = open_regular) -> int:
    """Return the offset of the first line that begins at an offset or behind it."""
    if offset <= 0:
        return 0
    try:
        with open_file(path) as file:
            text = os.pread(file.fileno(), LOOK_BYTES, offset - 1)
    except OSError:
        return offset
    end = text.find(b"\n")
    return offset if end < 0 else offset + end
