"""A check for the work on a request: somebody still waits for its answer."""

from collections.abc import Callable
from contextvars import ContextVar

from runner.base.errors import Unavailable

is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)
"""Set by whoever answers requests; threads that work for a request have its context."""


def check_wanted() -> None:
    """Check that somebody still waits for the answer.

    Raises:
        Unavailable: the client has gone, or the daemon leaves.
    """
    if not is_wanted.get()():
        raise Unavailable(
            "the daemon is stopping, or nobody waits for the answer any more; try again in a moment"
        )
