"""Work that may take minutes, in turns between users and apart from all other work.

Each user has a queue and a limited number of threads, so nobody's work waits for all work of somebody else.
Most of the work waits: for a process of the user, a file system or an engine, which may never answer.
"""

from collections import Counter, deque
from collections.abc import Callable
from threading import Lock, Thread
from typing import Final, TypeAlias

from runner.base.threads import run_guarded

Work: TypeAlias = Callable[[], None]

THREADS: Final = 16
THREADS_PER_USER: Final = 2


class FairExecutor:
    """Threads that take work from one queue per user, in turns."""

    def __init__(
        self,
        name: str,
        threads: int = THREADS,
        threads_per_user: int = THREADS_PER_USER,
        *,
        daemon: bool = True,
    ) -> None:
        """Start nothing yet; threads that are no ``daemon`` end their work before the process ends."""
        self._name, self._daemon = name, daemon
        self._max_threads = threads
        self._max_per_user = threads_per_user
        self._queues: dict[str, deque[Work]] = {}  # by user; the first one has its turn next
        self._at_work: Counter[str] = Counter()  # threads by user
        self._threads = 0
        self._lock = Lock()
        self._closed = False

    def put(self, key: str, work: Work) -> None:
        """Do ``work`` when it is the turn of the user of ``key``; nothing is done after ``close``."""
        self._put(key, work, unless_busy=False)

    def put_unless_busy(self, key: str, work: Work) -> None:
        """Do ``work`` as ``put`` does, unless this user has other work that is not done."""
        self._put(key, work, unless_busy=True)

    def _put(self, key: str, work: Work, *, unless_busy: bool) -> None:
        with self._lock:
            if self._closed or (unless_busy and (key in self._queues or self._at_work[key])):
                return
            self._queues.setdefault(key, deque()).append(work)
            if self._threads == self._max_threads or self._at_work[key] >= self._max_per_user:
                return
            self._threads += 1
        Thread(target=self._run, name=self._name, daemon=self._daemon).start()

    def close(self) -> None:
        """Begin no further work; what has begun may end by itself."""
        with self._lock:
            self._closed = True
            self._queues.clear()

    def _run(self) -> None:
        """Do work until no user's turn is left."""
        while (taken := self._take()) is not None:
            user, work = taken
            try:
                run_guarded(self._name, work)
            finally:
                with self._lock:
                    self._at_work[user] -= 1

    def _take(self) -> tuple[str, Work] | None:
        """Return the next work and its user, who goes to the end of the line; None ends the thread."""
        with self._lock:
            user = next((each for each in self._queues if self._at_work[each] < self._max_per_user), None)
            if user is None:
                self._threads -= 1
                self._at_work += Counter()  # forgets users without threads
                return None
            queue = self._queues.pop(user)
            work = queue.popleft()
            if queue:
                self._queues[user] = queue
            self._at_work[user] += 1
            return user, work
