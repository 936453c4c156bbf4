"""The heap that all threads of the daemon share.

The C library gives threads heaps of their own, up to eight for each processor, so that they need not wait for
each other.  Python's threads wait for each other anyway, and what one leaves free in its heap no other uses:
the daemon grew by a third.
"""

import ctypes
from contextlib import suppress
from typing import Final

_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of ``mallopt``, the limit of heaps."""


def share_one_heap() -> None:
    """Let threads that begin from now on share one heap; elsewhere than in glibc there is nothing to do."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
