"""The log of a job as people read it: whole lines, each as a terminal would show it in the end.

All who show a log read it with this module: ``runner logs``, the end of a failed job, the job's page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runner.base.textfile import whole_characters
from runner.client.client import ChosenLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.client.client import Client, LogChunk

WAIT_S: Final = 5.0
"""The longest wait of one request; also the delay until a new attempt is noticed."""

LINE_BYTES: Final = 1024**2
"""A longer line is passed on in parts, between two characters."""


class LogReader:
    """Reads a log piece by piece; with ``follow`` all attempts in turn, until the job ends or is held."""

    def __init__(self, client: Client, ref: str, chosen: ChosenLog, *, follow: bool = False) -> None:
        self.is_over = False
        self._client = client
        self._ref = ref
        self._chosen = chosen
        self._follow = follow
        self._stay = chosen.attempt is not None or chosen.part == "build"
        self._offset = 0
        self._has_all = True  # the last request may have found something
        self._ended = False

    @property
    def wait_s(self) -> float:
        """Time that the next request may wait for something new."""
        return 0.0 if self._has_all else WAIT_S

    def read(self, wait_s: float = 0.0) -> LogChunk:
        """Return the next piece, which may be empty; ``is_over`` says whether it is the last."""
        piece = self._client.log(self._ref, self._chosen, offset=self._offset, wait_s=wait_s)
        if piece.attempt is not None:  # the offset of the answer takes their place
            self._chosen = self._chosen._replace(tail=None, since=None)
        self._chosen = self._chosen._replace(attempt=piece.attempt)
        self._has_all = True
        if piece.next_offset > self._offset:
            self._offset = piece.next_offset
        elif not self._follow:
            self.is_over = True
        elif piece.attempt_ended and not self._ended:
            self._ended = True  # read once more: the last bytes may have come after the read
        elif piece.attempt_ended and piece.next_attempt is not None and not self._stay:
            self._chosen = self._chosen._replace(attempt=piece.next_attempt)
            self._offset, self._ended = 0, False
        elif piece.job_ended or (piece.attempt_ended and self._stay):
            self.is_over = True
        else:
            self._has_all = False
            if piece.attempt_ended:  # which is answered at once: the next one is to be waited for
                self._client.wait_for_start(self._ref, wait_s)
        return piece


def pieces(client: Client, ref: str, chosen: ChosenLog) -> Iterator[LogChunk]:
    """Yield what there is of a log in pieces."""
    reader = LogReader(client, ref, chosen)
    while not reader.is_over:
        yield reader.read()


def settle(line: bytes) -> bytes:
    """Return a line without what a carriage return has overwritten: of a progress bar its last state."""
    end = b"\n" if line.endswith(b"\n") else b""
    return line.rstrip(b"\r\n").rpartition(b"\r")[2] + end


class Lines:
    """Makes whole, settled lines of pieces that end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> bytes:
        """Return the lines that a piece completes."""
        *lines, rest = (self._rest + piece).split(b"\n")
        returned = b"\r" if rest.endswith(b"\r") else b""  # what follows may overwrite the text before
        self._rest = settle(rest) + returned
        whole = b"".join(settle(line) + b"\n" for line in lines)
        if len(self._rest) < LINE_BYTES:
            return whole
        end = whole_characters(self._rest)
        part, self._rest = self._rest[:end], self._rest[end:]
        return whole + part

    def end(self, *, goes_on: bool = False) -> bytes:
        """Return the line that nothing has completed; if it ``goes_on``, what follows may overwrite it."""
        rest, self._rest = self._rest, b""
        return rest if goes_on else settle(rest)


def last_lines(client: Client, ref: str, attempt: int | None, count: int) -> tuple[bytes, LogChunk]:
    """Return the last lines of a log, and the piece after which a reader goes on."""
    lines, found = Lines(), b""
    for last in pieces(client, ref, ChosenLog(attempt=attempt, tail=count)):
        found += lines.add(last.body)
    return found + lines.end(), last
