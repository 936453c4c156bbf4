"""Work for other threads, in order per key and side by side between keys.

The engine blocks, so the loop hands its commands over; two commands for one job must not
overtake each other.  A lane that has nothing to do does not exist.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final, TypeAlias

Work: TypeAlias = Callable[[], None]

IN_A_ROW: Final = 4
"""Pieces of one lane that a thread does before it looks after others: what follows an end is as many."""


class Lanes:
    """A thread pool with one queue per key."""

    def __init__(self, width: int) -> None:
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="lane")
        self._waiting: dict[str, deque[Work]] = {}
        self._lock = Lock()

    def put(self, key: str, work: Work) -> None:
        """Do ``work`` after everything that was put into this lane before."""
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append(work)
                return
            self._waiting[key] = deque([work])
        self._pool.submit(self._drain, key)

    def busy(self, key: str) -> bool:
        """Return whether the lane has work that is not done."""
        with self._lock:
            return key in self._waiting

    def _drain(self, key: str) -> None:
        """Do a few pieces, then queue up again: no lane can keep a thread for itself."""
        for _ in range(IN_A_ROW):
            if not self._do_first(key):
                return
        self._pool.submit(self._drain, key)

    def _do_first(self, key: str) -> bool:
        """Do the first piece of a lane and return whether there are more."""
        with self._lock:
            work = self._waiting[key][0]
        try:
            work()
        finally:
            more = self._done(key)
        return more

    def _done(self, key: str) -> bool:
        with self._lock:
            lane = self._waiting[key]
            lane.popleft()
            if not lane:
                del self._waiting[key]
            return bool(lane)

    def close(self) -> None:
        """Begin nothing new; what has begun may end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)
