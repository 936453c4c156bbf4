"""Wake-up of coroutines, on any event loop, when something has changed."""

import asyncio
from collections.abc import Collection
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
            waiting = [waiter for topic in topics for waiter in self._waiting.pop(topic, ())]
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout_s: float, job_id: str | None = None) -> None:
        """Return at the next change, or after ``timeout_s``; at once when the daemon stops.

        With ``job_id`` only a change of this job counts: who follows one job is not woken by the others.
        """
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            if self.leaving:
                return
            self._waiting.setdefault(job_id, set()).add(waiter)
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            with self._lock:
                others = self._waiting.get(job_id, set())
                others.discard(waiter)
                if not others:
                    self._waiting.pop(job_id, None)
