"""Wake-up of coroutines, on any event loop, when something has changed."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeAlias

_Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class ChangeBroadcast:
    """Threads announce changes; coroutines wait for the next one."""

    def __init__(self) -> None:
        self._waiting: dict[str | None, set[_Waiter]] = {}  # by the job; None: for any change
        self._lock = Lock()
        self.leaving = False
        """The daemon stops: requests that wait are answered with what there is, and clients ask again."""

    def leave(self) -> None:
        """Let no coroutine wait any more."""
        self.leaving = True
        self.announce()

    def announce(self, jobs: Collection[str] | None = None) -> None:
        """Wake the coroutines that wait for a change of these jobs or of anything; from any thread.

        None wakes all of them.
        """
        with self._lock:
            topics = list(self._waiting) if jobs is None else (None, *jobs)
            waiting = [waiter for topic in topics for waiter in self._waiting.get(topic, ())]
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listen(self, job_id: str | None = None) -> Iterator["Listener"]:
        """Yield a listener to every change from now on; look at what may change after this call.

        With ``job_id`` only changes of this job count: who follows one job is not woken by the others.
        """
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.setdefault(job_id, set()).add(waiter)
        try:
            yield Listener(self, event)
        finally:
            with self._lock:
                others = self._waiting[job_id]
                others.discard(waiter)
                if not others:
                    del self._waiting[job_id]

    async def wait(self, timeout_s: float, job_id: str | None = None) -> None:
        """Return at the next change, or after ``timeout_s``; at once when the daemon stops."""
        with self.listen(job_id) as listener:
            await listener.wait(timeout_s)


class Listener:
    """Hears of changes."""

    def __init__(self, broadcast: ChangeBroadcast, event: asyncio.Event) -> None:
        self._broadcast = broadcast
        self._event = event

    async def wait(self, timeout_s: float) -> None:
        """Wait until something has changed since the last wait, or after ``timeout_s``.

        At once when the daemon stops.
        """
        if self._broadcast.leaving:
            return
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return
        self._event.clear()
