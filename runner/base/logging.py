"""The log for operators, configured once.  What users care about is in the store, as events."""

import io
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TextIO

import structlog

from runner.base import jsontext

MAX_BYTES: Final = 16 * 1024**2
"""A larger log file is renamed."""

KEPT_FILES: Final = 4
"""``daemon.log.1`` is the newest of the renamed ones."""


class LossyStream(io.TextIOWrapper):
    """A stream that loses lines when its disk is full: no daemon should stop for want of a log."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


class RotatedStream(LossyStream):
    """Standard error that is a log file of its own: when the file has become large, it is renamed."""

    def __init__(self, stream: BinaryIO, path: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(stream, errors="backslashreplace", line_buffering=True)
        self._path, self._max_bytes = path, max_bytes

    def write(self, text: str, /) -> int:
        written = super().write(text)
        with suppress(OSError):
            if os.fstat(self.fileno()).st_size > self._max_bytes:
                self._rotate()
        return written

    def _rotate(self) -> None:
        """Rename the files; standard output and standard error go on with a new one."""
        old = os.fstat(self.fileno())
        if not os.path.samestat(old, self._path.stat()):
            return  # somebody has renamed it, who also sees to what follows
        for number in range(KEPT_FILES - 1, 0, -1):
            with suppress(FileNotFoundError):
                _numbered(self._path, number).replace(_numbered(self._path, number + 1))
        self._path.replace(_numbered(self._path, 1))
        new = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for descriptor in (1, 2):
            with suppress(OSError):
                if os.path.samestat(old, os.fstat(descriptor)):
                    os.dup2(new, descriptor)
        os.close(new)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def standard_error(log: Path) -> TextIO:
    """Return standard error for a daemon: rotated where it is the log file ``log``."""
    try:
        is_log = os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except OSError:
        is_log = False
    if is_log:
        return RotatedStream(sys.stderr.buffer, log)
    return LossyStream(sys.stderr.buffer, errors="backslashreplace", line_buffering=True)


def configure(*, terminal: bool, to: TextIO | None = None) -> None:
    """Write one line per event to stderr: readable on a terminal, JSON elsewhere, UTC always."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(jsontext.dumps)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(to or sys.stderr),
        cache_logger_on_first_use=True,
    )
