"""The messages for the loop, and when it is woken for them.

Only one thread at a time can run Python, so a loop that is woken for each piece of news takes the
interpreter from the lanes that bring the next, and records alone what could be recorded together.
So news that come while lanes work wait until these have nothing left to do, for ``GATHER_S`` at most;
what somebody asks for does not wait.
"""

import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Final

from runner.control.messages import Call, Message, Observed

GATHER_S: Final = 0.02
"""Longest wait for more news while lanes work."""

COURTESY_S: Final = 0.002
"""How long the loop leaves the interpreter to the answer of a question that it would follow up."""


class Inbox:
    """Many threads put messages in, the loop takes them out."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._lock = Lock()
        self._pieces = 0
        self._calm = Event()
        self._calm.set()
        self._gathering = self._urgent = False
        self._answering = False
        self._never = Event()

    def put(self, message: Message) -> None:
        self._messages.append(message)
        if isinstance(message, Call):
            self._urgent = True
        if not self._gathering or self._urgent:
            self._bell.put(None)

    def answering(self) -> None:
        """Have the loop wait a moment when it wakes: an answer is on its way to whoever asked."""
        self._answering = True

    def empty(self) -> bool:
        return not self._messages

    def awaiting(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return ``work`` for a lane; until it is done, what it has to tell is worth waiting for."""
        with self._lock:
            self._pieces += 1
            if self._pieces == 1:
                self._calm.clear()

        def counted() -> None:
            try:
                work()
            finally:
                self._done()

        return counted

    def _done(self) -> None:
        with self._lock:
            self._pieces -= 1
            over = self._pieces == 0
            if over:
                self._calm.set()
        if over and self._gathering:
            self._bell.put(None)

    def calm(self) -> None:
        """Wait until lanes have nothing left to do, for ``GATHER_S`` at most."""
        self._calm.wait(GATHER_S)

    def arrived(self, patience_s: float) -> list[Message]:
        """Wait for one message, then return what there is: of several looks the newest, behind the news.

        A look may always be older than what is recorded, so it may wait; between news it would part what
        can be recorded together.
        """
        if not self._rung(patience_s):
            return []
        if self._answering:
            self._answering = False
            self._never.wait(COURTESY_S)
        until = time.monotonic() + min(GATHER_S, patience_s)
        self._gathering = True  # before the lanes are looked at: whoever is done from here on rings
        while self._pieces and not self._urgent and self._rung(until - time.monotonic()):
            continue
        self._gathering = self._urgent = False
        messages = [self._messages.popleft() for _ in range(len(self._messages))]
        looks = [message for message in messages if isinstance(message, Observed)]
        return [*(message for message in messages if not isinstance(message, Observed)), *looks[-1:]]

    def _rung(self, patience_s: float) -> bool:
        """Wait for the bell, however often it has rung; return whether it did."""
        try:
            self._bell.get(timeout=max(patience_s, 0))
        except Empty:
            return False
        while not self._bell.empty():
            self._bell.get()
        return True
