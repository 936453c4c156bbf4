"""The output of a job's program, read by offset while the job is followed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from runner.cli.console import complain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.client.client import Client, LogChunk
    from runner.client.types import JobDetail


class OutputReader:
    """The logs of all attempts of one job, in order; each byte is returned once.

    The offset advances when a piece is returned, so that a reader that is interrupted can go on.
    """

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._attempt: int | None = None
        self._offset = 0

    def new_pieces(self, job: JobDetail, wait_s: float = 0.0) -> Iterator[LogChunk]:
        """Yield the pieces that have not been returned; wait up to ``wait_s`` for the first one."""
        numbers = [attempt["number"] for attempt in job["attempts"]]
        if self._attempt is None and numbers:
            self._attempt = numbers[0]
        while self._attempt is not None:
            piece = self._client.log(self._job_id, attempt=self._attempt, offset=self._offset, wait_s=wait_s)
            wait_s = 0.0
            if piece.next_offset > self._offset:
                self._offset = piece.next_offset
                yield piece
            elif self._attempt < numbers[-1]:
                self._attempt, self._offset = self._attempt + 1, 0
            else:
                return


def write_piece(piece: LogChunk) -> None:
    """Write one piece to standard output unchanged; a message on stderr marks a missing range."""
    stdout = sys.stdout.buffer
    if piece.cut is None:
        stdout.write(piece.body)
    else:
        start, end = piece.cut
        before = max(start - piece.offset, 0)
        stdout.write(piece.body[:before])
        stdout.flush()
        complain(f"--- {end - start} bytes of the log were cut out here by its quota ---")
        stdout.write(piece.body[before:])
    stdout.flush()
