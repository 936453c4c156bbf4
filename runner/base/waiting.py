"""What the work for a request asks now and then: whether to go on, and whether to pause."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from runner.base.errors import Unavailable

is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)
"""Set by whoever answers requests; threads that work for a request have its context."""

give_way: ContextVar[Callable[[], object]] = ContextVar("give_way", default=lambda: None)
"""Waits while others go first; set like ``is_wanted``."""


def check_wanted() -> None:
    """Give way to others where that is due, and check that somebody still waits for the answer.

    Raises:
        Unavailable: the client has gone, or the daemon leaves.
    """
    give_way.get()()
    if not is_wanted.get()():
        raise Unavailable("the daemon leaves, or nobody waits for the answer any more; try again in a moment")


@contextmanager
def without_pauses() -> Iterator[None]:
    """Let ``check_wanted`` never wait in this block, which holds something that others wait for."""
    token = give_way.set(lambda: None)
    try:
        yield
    finally:
        give_way.reset(token)
