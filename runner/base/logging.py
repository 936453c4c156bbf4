"""Operators' logs, configured once.  What users care about is in the store, as events."""

import logging
import sys
from typing import TextIO

import structlog

from runner.base import jsontext as compact


def configure(*, terminal: bool, to: TextIO | None = None) -> None:
    """Write one line per event to stderr: readable on a terminal, JSON elsewhere, UTC always."""
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(compact.dumps)
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
