"""What the store calls the lines that users care about and that change no state, and how they begin."""

from typing import Final

ADVISED: Final = "advised"
"""A line of advice about a running attempt."""

SIGNALLED: Final = "signal_requested"
"""Somebody has sent a signal to the program of an attempt."""


def about(attempt: int) -> str:
    """Return how a line begins that is about one attempt of a job."""
    return f"attempt {attempt}: "
