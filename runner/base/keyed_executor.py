"""Work for other threads, in order per key and concurrently between keys.

The engine blocks, so the control loop hands its commands over, and two commands for one job must not overtake
each other.  A key without work takes no memory.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock
from typing import Final, TypeAlias

from runner.base.threads import run_guarded

Work: TypeAlias = Callable[[], None]

IN_A_ROW: Final = 4
"""Pieces of one key that a thread does before it turns to others: as many follow the end of a job."""

SPILL_S: Final = 0.005
"""How long work waits for the present threads before one more joins in.

Threads that compute only take the interpreter from each other; another one helps where they wait, for the
engine or for the disk.
"""


class KeyedExecutor:
    """A thread pool with one queue per key."""

    def __init__(self, max_threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="worker")
        self._max_threads = max_threads
        self._queues: dict[str, deque[Work]] = {}  # by key; the first piece is the one being done
        self._ready: deque[str] = deque()  # keys whose first piece no thread is doing
        self._lock = Lock()
        self._batch: list[str] | None = None  # keys that may not begin before the batch ends
        self._standby = False  # a thread waits to join in
        self._called = Event()  # wakes that thread
        self._threads = 0
        self._begun_s = 0.0  # when a thread took a key last
        self._closed = Event()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Begin the work that is put in the block at its end, so that it does not slow down the block."""
        keys: list[str] = []
        with self._lock:
            self._batch = keys
        try:
            yield
        finally:
            with self._lock:
                self._batch = None
                self._ready.extend(keys)
                self._add_thread()

    def put(self, key: str, work: Work) -> None:
        """Do ``work`` after all work that was put under this key before."""
        with self._lock:
            if key in self._queues:
                self._queues[key].append(work)
                return
            self._queues[key] = deque([work])
            if self._batch is not None:
                self._batch.append(key)
                return
            self._ready.append(key)
            self._add_thread()

    def busy(self, key: str) -> bool:
        """Return whether a key has work that is not done."""
        with self._lock:
            return key in self._queues

    def _add_thread(self) -> None:
        """Add a thread if there is work for it; with the lock held."""
        if self._closed.is_set() or not self._ready:
            return
        if self._standby:
            if self._threads == 1:  # no other thread will take the work
                self._called.set()
        elif self._threads < self._max_threads:
            self._standby = True
            self._threads += 1
            self._pool.submit(self._work)

    def _work(self) -> None:
        """Wait until another thread is needed, then do work until there is none."""
        self._stand_by()
        while key := self._next():
            self._drain(key)

    def _stand_by(self) -> None:
        while True:
            with self._lock:
                wait_s = self._begun_s + SPILL_S - time.monotonic()
                if self._threads == 1 or wait_s <= 0 or not self._ready or self._closed.is_set():
                    self._standby = False
                    self._called.clear()
                    return
            self._called.wait(wait_s)

    def _next(self) -> str | None:
        with self._lock:
            if not self._ready or self._closed.is_set():
                self._threads -= 1
                return None
            self._begun_s = time.monotonic()
            key = self._ready.popleft()
            self._add_thread()
            return key

    def _drain(self, key: str) -> None:
        """Do a few pieces of a key, then let it queue again: no key can keep a thread for itself."""
        for _ in range(IN_A_ROW):
            if not self._do_first(key):
                return
        with self._lock:
            self._ready.append(key)

    def _do_first(self, key: str) -> bool:
        """Do the first piece of a key and return whether there are more."""
        with self._lock:
            work = self._queues[key][0]
        run_guarded("keyed work", work, key=key)
        return self._finish_first(key)

    def _finish_first(self, key: str) -> bool:
        with self._lock:
            queue = self._queues[key]
            queue.popleft()
            if not queue:
                del self._queues[key]
            return bool(queue)

    def close(self) -> None:
        """Begin no further work; what has begun may end by itself."""
        with self._lock:
            self._closed.set()
            self._called.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
