"""The message queue of the control loop, and when the loop is woken for it.

Only one thread at a time can run Python.  A loop that is woken for each message takes the interpreter from
the workers that bring the next one, and records alone what could be recorded together.  So messages that
arrive while workers are busy wait until these have nothing left to do, for ``GATHER_S`` at most; calls of
other threads do not wait.
"""

import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Final

from runner.control.messages import Call, Message, Observed

GATHER_S: Final = 0.02
"""Longest wait for more messages while workers are busy."""

YIELD_S: Final = 0.002
"""Time for which the loop leaves the interpreter to a caller that is being answered."""


class Inbox:
    """Many threads put messages in, the loop takes them out."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._lock = Lock()
        self._unfinished = 0  # pieces of tracked work
        self._idle = Event()  # no tracked work is unfinished
        self._idle.set()
        self._gathering = self._urgent = False
        self._yield_next = False
        self._never = Event()

    def put(self, message: Message) -> None:
        self._messages.append(message)
        if isinstance(message, Call):
            self._urgent = True
        if not self._gathering or self._urgent:
            self._wakeups.put(None)

    def yield_once(self) -> None:
        """Have the loop wait a moment when it wakes next: a caller is being answered."""
        self._yield_next = True

    def empty(self) -> bool:
        return not self._messages

    def track(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return ``work`` for a worker; until it is done, the loop waits a moment for its messages."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished == 1:
                self._idle.clear()

        def tracked() -> None:
            try:
                work()
            finally:
                self._finish()

        return tracked

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            last = self._unfinished == 0
            if last:
                self._idle.set()
        if last and self._gathering:
            self._wakeups.put(None)

    def wait_for_work(self) -> None:
        """Wait until no tracked work is unfinished, for ``GATHER_S`` at most."""
        self._idle.wait(GATHER_S)

    def receive(self, timeout_s: float) -> list[Message]:
        """Wait for one message, then return all: of several observations the newest, behind the others.

        An observation may always be older than what is recorded, so it may wait; between other messages it
        would part what can be recorded together.
        """
        if not self._wait(timeout_s):
            return []
        if self._yield_next:
            self._yield_next = False
            self._never.wait(YIELD_S)
        until = time.monotonic() + min(GATHER_S, timeout_s)
        self._gathering = True  # before the work is counted: whatever finishes from here on wakes the loop
        while self._unfinished and not self._urgent and self._wait(until - time.monotonic()):
            continue
        self._gathering = self._urgent = False
        messages = [self._messages.popleft() for _ in range(len(self._messages))]
        observations = [message for message in messages if isinstance(message, Observed)]
        return [*(message for message in messages if not isinstance(message, Observed)), *observations[-1:]]

    def _wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up, however many there are, and return whether there was one."""
        try:
            self._wakeups.get(timeout=max(timeout_s, 0))
        except Empty:
            return False
        while not self._wakeups.empty():
            self._wakeups.get()
        return True
