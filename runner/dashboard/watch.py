"""Tells open pages that something has changed: one question to the daemon for all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from runner.base.errors import RunnerError

WAIT_S: Final = 5.0
"""The daemon answers when something has changed, or after this time: progress is no change."""

PAUSE_S: Final = 1.0
"""Least time between two questions, and between two tries while no daemon answers."""

MOST_STREAMS: Final = 64
"""Open streams; a browser opens one per tab."""

KEEP_ALIVE_S: Final = 20.0


@dataclass(slots=True)
class Watch:
    """Asks the daemon for its overview while somebody listens."""

    ask: Callable[[float], Any]
    """Returns the overview, when something has changed or after so many seconds."""
    streams: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: "asyncio.Task[None] | None" = None
    _seen: Any = field(default_factory=dict)  # None: no daemon answered; empty: none was asked yet
    _version: int = 0

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: ``change`` to load a page again, ``away`` without a daemon."""
        self.streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        try:
            yield "retry: 2000\n\n"
            known = self._version
            while True:
                if known != self._version:
                    known = self._version
                    yield f"event: {'away' if self._seen is None else 'change'}\ndata: .\n\n"
                    await asyncio.sleep(PAUSE_S)
                    continue
                try:
                    await asyncio.wait_for(self._changed.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.streams -= 1

    async def _follow(self) -> None:
        while self.streams:
            try:
                found = await run_in_threadpool(self.ask, WAIT_S)
                found = {key: value for key, value in found.items() if key != "at"}
            except RunnerError:
                found = None
            if found != self._seen:
                self._seen, self._version = found, self._version + 1
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            await asyncio.sleep(PAUSE_S)
        self._seen = {}
