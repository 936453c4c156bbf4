"""Work for other threads, in order per key, concurrently between keys and in turns between users.

The engine blocks, so the control loop hands its commands over, and two commands for one job must not overtake
each other.  A launch may wait for the files of a user, so no user has all threads.  A key without work takes
no memory.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final, TypeAlias

from runner.base.fair_executor import FairExecutor
from runner.base.threads import run_guarded

Work: TypeAlias = Callable[[], None]

IN_A_ROW: Final = 4
"""Pieces of one key that a thread does before it turns to others: as many follow the end of a job."""

USERS_AT_ONCE: Final = 4
"""Users who may have all their threads at the same time."""


class KeyedExecutor:
    """Threads with one queue per key, so many of them for one user."""

    def __init__(self, threads_per_user: int) -> None:
        self._pool = FairExecutor("worker", USERS_AT_ONCE * threads_per_user, threads_per_user, daemon=False)
        self._queues: dict[str, deque[Work]] = {}  # by key; the first piece is the one being done
        self._lock = Lock()
        self._closed = False

    def put(self, key: str, work: Work, user: str) -> None:
        """Do ``work`` of a user after all work that was put under this key before."""
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(work)
            is_first = len(queue) == 1
        if is_first:
            self._pool.put(user, partial(self._drain, key, user))

    def busy(self, key: str) -> bool:
        """Return True if a key has work that is not done."""
        with self._lock:
            return key in self._queues

    def _drain(self, key: str, user: str) -> None:
        """Do a few pieces of a key, then let it queue again: no key can keep a thread for itself."""
        for _ in range(IN_A_ROW):
            if self._closed:
                return
            run_guarded("keyed work", self._queues[key][0], key=key)
            with self._lock:
                queue = self._queues[key]
                queue.popleft()
                if not queue:
                    del self._queues[key]
                    return
        self._pool.put(user, partial(self._drain, key, user))

    def close(self) -> None:
        """Begin no further work; what has begun may end by itself."""
        self._closed = True
        self._pool.close()
