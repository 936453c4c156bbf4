"""Reading a log by offset: a reader that goes on at the next offset misses nothing."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from runner.adapters.host import log_quota
from runner.agent.ports import RunDirectory
from runner.base.textfile import whole_characters
from runner.core.ports.store import AttemptRow, JobRow
from runner.files.revision import parse_revision
from runner.server.api.deps import Number
from runner.services.context import NotFound
from runner.services.jobs import JobService

MAX_TAIL: Final = 1_000_000
"""Lines at the end of a log."""

MAX_CHUNK_BYTES: Final = 1024**2
POLL_S: Final = 0.1
"""Between two looks of one request at a log that has not grown."""

POLLS_PER_S: Final = 100
"""Looks at logs that have not grown, of all requests together: more of them look less often."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some bytes of a log, and what a reader needs to go on."""

    content: bytes
    next_offset: int
    attempt: int
    attempt_ended: bool
    next_attempt: int | None
    job_ended: bool
    cut: tuple[int, int] | None = None  # offsets of a hole that the log quota has punched

    @property
    def has_news(self) -> bool:
        """Return True if the chunk holds something that the reader does not know yet."""
        return bool(self.content) or self.cut is not None or self.attempt_ended or self.job_ended

    def headers(self) -> dict[str, str]:
        """Return the chunk's position as HTTP headers."""
        headers = {
            "X-Runner-Attempt": str(self.attempt),
            "X-Runner-Next-Offset": str(self.next_offset),
            "X-Runner-Attempt-Ended": str(int(self.attempt_ended)),
            "X-Runner-Job-Ended": str(int(self.job_ended)),
        }
        if self.next_attempt is not None:
            headers["X-Runner-Next-Attempt"] = str(self.next_attempt)
        if self.cut is not None:
            headers["X-Runner-Cut"] = f"{self.cut[0]}-{self.cut[1]}"
        return headers


@dataclass(slots=True)
class LogPolls:
    """The requests that wait for a log to grow; only the event loop's thread uses it."""

    waiting: int = 0

    async def pause(self) -> None:
        """Wait until the next look: the longer, the more requests wait."""
        self.waiting += 1
        try:
            await asyncio.sleep(max(POLL_S, self.waiting / POLLS_PER_S))
        finally:
            self.waiting -= 1


class LogQuery(BaseModel):
    """The part of a log that is asked for."""

    attempt: Number | None = None  # None: the newest
    offset: Number = 0
    wait: float = 0
    part: Literal["job", "build"] = "job"
    tail: Annotated[Number, Field(le=MAX_TAIL)] | None = None
    since: float | None = None
    rank: Number = 0  # of the processes of the attempt


def log_path(directory: RunDirectory, row: JobRow, chosen: AttemptRow, rank: int) -> Path:
    """Return the log of one process of an attempt.

    Raises:
        NotFound: the attempt has fewer processes.
    """
    count = parse_revision(row.revision).parallel().processes
    if rank >= count:
        there = "one process" if count == 1 else f"{count} processes, of ranks 0 to {count - 1}"
        raise NotFound(f"job {row.job.id}: there is no rank {rank}; it has {there}")
    return directory.paths(chosen.number, chosen.lineage).rank_log(rank)


def read_chunk(service: JobService, job_id: str, query: LogQuery, offset: int) -> LogPart:
    """Return the log of an attempt from ``offset`` on; of the newest attempt if none is given.

    That of the attempt that comes next is empty: a launch that the host could not make takes its attempt
    back, and who follows that log goes on.

    Raises:
        NotFound: there is no such job, no such attempt, or no such process of it.
    """
    part, attempt = query.part, query.attempt
    # The state is read before the file, so that nothing written before the end is missed.
    row = service.queries.find(job_id)
    if part == "build":
        over = row.job.state.kind != "preparing"
        return _read_file(
            service.attempt_service.directory(row),
            service.attempt_service.directory(row).root / "build.log",
            offset,
            LogPart(b"", offset, 0, over, None, over),
        )
    settled = service.queries.is_settled(row)
    attempts = {a.number: a for a in service.store.attempts(job_id)}
    chosen = attempts.get(attempt or max(attempts, default=0))
    if chosen is None and attempt == max(attempts, default=0) + 1 and not settled:
        return LogPart(b"", offset, attempt, attempt_ended=False, next_attempt=None, job_ended=False)
    if chosen is None and attempt:
        there = ", ".join(map(str, sorted(attempts))) or "none yet"
        raise NotFound(f"job {job_id}: there is no attempt {attempt}; there are {there}")
    if chosen is None:
        return LogPart(b"", offset, attempt or 0, settled, None, settled)
    following = chosen.number + 1 if chosen.number + 1 in attempts else None
    blank = LogPart(b"", offset, chosen.number, chosen.ended_at is not None, following, settled)
    directory = service.attempt_service.directory(row)
    return _read_file(directory, log_path(directory, row, chosen, query.rank), offset, blank)


def _read_file(directory: RunDirectory, path: Path, offset: int, blank: LogPart) -> LogPart:
    """Return ``blank`` with what the file holds from ``offset`` on, up to the next hole."""
    try:
        file = directory.open(path)
    except OSError:
        return blank
    with file:
        # Read before the hole is looked for: a later cut leaves no zeros in the content.
        content = _read(file.fileno(), offset)
        if not blank.attempt_ended or len(content) == MAX_CHUNK_BYTES:  # the rest of a character follows
            content = content[: whole_characters(content)]
        found = log_quota.next_segment(file.fileno(), offset)
    if found is None:
        return blank
    start, end = found
    if offset < start:
        return _with(blank, b"", start, (offset, start))
    content = content[: end - offset]
    return _with(blank, content, offset + len(content), None)


def _read(descriptor: int, offset: int) -> bytes:
    """Return the bytes at ``offset``, holes as zeros; nothing beyond the end."""
    remaining = os.fstat(descriptor).st_size - offset
    return os.pread(descriptor, min(MAX_CHUNK_BYTES, remaining), offset) if remaining > 0 else b""


def _with(blank: LogPart, content: bytes, next_offset: int, cut: tuple[int, int] | None) -> LogPart:
    ended = blank.attempt_ended and not content and cut is None
    return LogPart(
        content, next_offset, blank.attempt, ended, blank.next_attempt, blank.job_ended and ended, cut
    )
