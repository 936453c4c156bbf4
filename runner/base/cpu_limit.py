"""A limit of the CPU time that a thread spends on what one user wrote.

The code that walks a user's text calls ``check_cpu`` once for each unit of its work; there it also gives way
to others.  In a command that reads its own user's file, that does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from time import thread_time

from runner.base.errors import UsageError
from runner.base.waiting import check_wanted


class CpuLimitError(UsageError):
    """Checking a text has taken more CPU time than it may."""


class _State(local):
    """The limit of each thread, in seconds of its own CPU clock."""

    until_s: float | None = None
    message: str = ""


_state = _State()


@contextmanager
def limit_cpu(seconds: float, message: str) -> Iterator[None]:
    """Let ``check_cpu`` raise ``CpuLimitError`` once this thread has computed for so long.

    A limit within a limit has no effect.
    """
    if _state.until_s is not None:
        yield
        return
    _state.until_s, _state.message = thread_time() + seconds, message
    try:
        yield
    finally:
        _state.until_s = None


def check_cpu() -> None:
    """Check the limit of this thread, and whether anybody waits for what it computes.

    Raises:
        CpuLimitError: the thread has computed for longer than its limit.
        Unavailable: the client of the request has gone, or the daemon leaves.
    """
    if _state.until_s is not None and thread_time() > _state.until_s:
        raise CpuLimitError(_state.message)
    check_wanted()
