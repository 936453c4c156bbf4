"""The output of a job's program, as commands print it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import click

from runner.base.readable import readable_size
from runner.cli.console import complain, on_terminal, say_json
from runner.client.client import ChosenLog
from runner.client.log import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.client.client import Client, LogChunk
    from runner.client.types import JobDetail

_OVERWRITTEN: Final = re.compile(rb"\r[^\r\n]*(?=\r[^\r\n])")
"""Characters with which one piece of a log draws and draws over."""


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
        while self._attempt in numbers:  # an attempt that the host could not launch is taken back
            piece = self._client.log(
                self._job_id, ChosenLog(attempt=self._attempt), offset=self._offset, wait_s=wait_s
            )
            wait_s = 0.0
            if piece.next_offset > self._offset:
                self._offset = piece.next_offset
                yield piece
            elif self._attempt < numbers[-1]:
                self._attempt, self._offset = self._attempt + 1, 0
            else:
                return


class RawOutput:
    """Prints every byte unchanged, as ``cat`` does.

    With ``ends_line``, an incomplete line is ended on a terminal, so that no message stands in it.
    """

    def __init__(self, *, ends_line: bool = False) -> None:
        self._ends_line = ends_line
        self._is_open = False

    def write(self, piece: LogChunk) -> None:
        """Write one piece; a message on stderr marks a missing range."""
        self._is_open = not piece.body.endswith(b"\n") if piece.body else self._is_open
        sys.stdout.buffer.write(piece.body)
        sys.stdout.flush()
        if piece.cut:
            complain(_cut_line(piece.cut))

    def end(self) -> None:
        """End the line that nothing has completed, on a terminal."""
        if self._ends_line and self._is_open and on_terminal():
            click.echo()
        self._is_open = False


class LineOutput:
    """Prints whole lines, of a progress bar the last state; each perhaps behind the name of its job.

    With ``live``, an incomplete line at the end of a log is printed too, and so are the later states of a
    bar: a terminal draws them over one another.
    """

    def __init__(self, prefix: str = "", *, live: bool = False) -> None:
        self._prefix = prefix.encode()
        self._live = live
        self._is_live = False
        self._lines = Lines()

    def write(self, piece: LogChunk) -> None:
        """Write the lines that a piece completes; a message on stderr marks a missing range."""
        self._print(_OVERWRITTEN.sub(b"", piece.body) if self._is_live else self._lines.add(piece.body))
        if piece.cut:
            self.end()
            complain(f"{self._prefix.decode()}{_cut_line(piece.cut)}")
        elif self._live and not piece.body:  # all that was there has been read
            self._print(self._lines.end(goes_on=True))
            self._is_live = True

    def end(self) -> None:
        """Write the line that nothing has completed."""
        self._print(self._lines.end())

    def _print(self, text: bytes) -> None:
        if text and self._prefix:
            lines = text.removesuffix(b"\n").split(b"\n")
            text = b"".join(self._prefix + line + b"\n" for line in lines)
        sys.stdout.buffer.write(text)
        sys.stdout.flush()


class JsonOutput:
    """Prints whole lines as JSON objects, with the attempt and the offset at which they begin."""

    def __init__(self, job: str | None = None) -> None:
        self._job = {} if job is None else {"job": job}
        self._lines = Lines()
        self._attempt: int | None = None
        self._begin: int | None = None  # of what is printed next; None: at the next piece

    def write(self, piece: LogChunk) -> None:
        """Print the lines that a piece completes, and a missing range."""
        if piece.attempt != self._attempt:
            self.end()
            self._attempt = piece.attempt
        if piece.cut:
            self.end()
            self._say(piece.cut[0], piece.cut, b"")
        elif piece.body:
            at = piece.next_offset - len(piece.body)
            begin = at if self._begin is None else self._begin
            end = piece.body.rfind(b"\n") + 1
            self._begin = at + end if end else begin
            self._say(begin, None, self._lines.add(piece.body))

    def end(self) -> None:
        """Print the line that nothing has completed."""
        self._say(self._begin, None, self._lines.end())
        self._begin = None

    def _say(self, offset: int | None, cut: tuple[int, int] | None, text: bytes) -> None:
        if text or cut:
            said = text.decode(errors="replace")
            say_json({**self._job, "attempt": self._attempt, "offset": offset, "cut": cut, "text": said})


def _cut_line(cut: tuple[int, int]) -> str:
    """Return the line that marks a range that the quota has cut out."""
    return f"--- {readable_size(cut[1] - cut[0])} of the log were cut out here by its quota ---"
