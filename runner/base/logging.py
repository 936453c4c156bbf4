"""The log for operators, configured once.  What users care about is in the store, as events."""

import io
import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog

from runner.base import jsontext


class LossyStream(io.TextIOWrapper):
    """A stream that loses lines when its disk is full: no daemon should stop for want of a log."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


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
