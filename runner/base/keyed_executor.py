"""Work for other threads, in order per key and concurrently between keys.

The engine blocks, so the control loop hands its commands over, and two commands for one job must not overtake
each other.  A key without work takes no memory.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Final, TypeAlias

from runner.base.threads import run_guarded

Work: TypeAlias = Callable[[], None]

IN_A_ROW: Final = 4
"""Pieces of one key that a thread does before it turns to others: as many follow the end of a job."""


class KeyedExecutor:
    """A thread pool with one queue per key."""

    def __init__(self, max_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="worker")
        self._queues: dict[str, deque[Work]] = {}  # by key; the first piece is the one being done
        self._lock = Lock()
        self._closed = False

    def put(self, key: str, work: Work) -> None:
        """Do ``work`` after all work that was put under this key before."""
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(work)
            is_first = len(queue) == 1
        if is_first:
            self._submit(key)

    def busy(self, key: str) -> bool:
        """Return True if a key has work that is not done."""
        with self._lock:
            return key in self._queues

    def _submit(self, key: str) -> None:
        with suppress(RuntimeError):  # it was closed
            self._pool.submit(self._drain, key)

    def _drain(self, key: str) -> None:
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
        self._submit(key)

    def close(self) -> None:
        """Begin no further work; what has begun may end by itself."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
