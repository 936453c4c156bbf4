"""Work for other threads, in order per key and side by side between keys.

The engine blocks, so the loop hands its commands over; two commands for one job must not
overtake each other.  A lane that has nothing to do does not exist.
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
"""Pieces of one lane that a thread does before it looks after others: what follows an end is as many."""

SPILL_S: Final = 0.005
"""How long pieces wait for the threads at work before one more joins in.

Threads that compute only take the interpreter from each other; it is whoever waits, for the engine or
for the disk, that another can work beside.
"""


class KeyedExecutor:
    """A thread pool with one queue per key."""

    def __init__(self, width: int) -> None:
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="lane")
        self._width = width
        self._waiting: dict[str, deque[Work]] = {}
        self._ready: deque[str] = deque()  # lanes that no thread is at
        self._lock = Lock()
        self._held: list[str] | None = None  # lanes that may not begin yet
        self._spare = False  # a thread stands by
        self._called = Event()  # it shall look again
        self._threads = 0
        self._begun_s = 0.0
        self._closed = Event()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Begin what is put in the block at its end: whoever puts it there is not kept from it by that."""
        held: list[str] = []
        with self._lock:
            self._held = held
        try:
            yield
        finally:
            with self._lock:
                self._held = None
                self._ready.extend(held)
                self._hire()

    def put(self, key: str, work: Work) -> None:
        """Do ``work`` after everything that was put into this lane before."""
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append(work)
                return
            self._waiting[key] = deque([work])
            if self._held is not None:
                self._held.append(key)
                return
            self._ready.append(key)
            self._hire()

    def busy(self, key: str) -> bool:
        """Return whether the lane has work that is not done."""
        with self._lock:
            return key in self._waiting

    def _hire(self) -> None:
        """Have one more thread if there is work for it; with the lock held."""
        if self._closed.is_set() or not self._ready:
            return
        if self._spare:
            if self._threads == 1:  # no other will come by
                self._called.set()
        elif self._threads < self._width:
            self._spare = True
            self._threads += 1
            self._pool.submit(self._work)

    def _work(self) -> None:
        """Wait until there is need of another thread, then do what there is to do."""
        self._stand_by()
        while key := self._next():
            self._drain(key)

    def _stand_by(self) -> None:
        while True:
            with self._lock:
                wait_s = self._begun_s + SPILL_S - time.monotonic()
                if self._threads == 1 or wait_s <= 0 or not self._ready or self._closed.is_set():
                    self._spare = False
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
            self._hire()
            return key

    def _drain(self, key: str) -> None:
        """Do a few pieces, then queue up again: no lane can keep a thread for itself."""
        for _ in range(IN_A_ROW):
            if not self._do_first(key):
                return
        with self._lock:
            self._ready.append(key)

    def _do_first(self, key: str) -> bool:
        """Do the first piece of a lane and return whether there are more."""
        with self._lock:
            work = self._waiting[key][0]
        run_guarded("keyed work", work, key=key)
        return self._done(key)

    def _done(self, key: str) -> bool:
        with self._lock:
            lane = self._waiting[key]
            lane.popleft()
            if not lane:
                del self._waiting[key]
            return bool(lane)

    def close(self) -> None:
        """Begin nothing new; what has begun may end by itself."""
        with self._lock:
            self._closed.set()
            self._called.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
