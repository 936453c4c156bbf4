"""Wake-up of coroutines, on any event loop, when something has changed."""

import asyncio
from threading import Lock


class ChangeBroadcast:
    """Threads announce changes; coroutines wait for the next one."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = Lock()
        self.leaving = False
        """The daemon stops: requests that wait are answered with what there is, and clients ask again."""

    def leave(self) -> None:
        """Let no coroutine wait any more."""
        self.leaving = True
        self.announce()

    def announce(self) -> None:
        """Wake every coroutine that waits now; from any thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after ``timeout_s``; at once when the daemon stops."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            if self.leaving:
                return
            self._waiting.add(waiter)
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            with self._lock:
                self._waiting.discard(waiter)
