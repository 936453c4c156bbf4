"""Tells whoever waits, on any event loop, that something has changed."""

import asyncio
from threading import Lock


class ChangeBroadcast:
    """Threads beat; coroutines wait for the next beat."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._lock = Lock()
        self.leaving = False
        """The daemon leaves: whoever waits answers with what there is, and is asked again elsewhere."""

    def leave(self) -> None:
        """Let nobody wait any more."""
        self.leaving = True
        self.beat()

    def beat(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next beat, or after ``timeout_s``; at once when the daemon leaves."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self.leaving:
                return
            self._waiting.add(entry)
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            with self._lock:
                self._waiting.discard(entry)
