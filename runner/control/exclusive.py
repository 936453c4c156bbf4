"""The exclusive section: only its holder, which is the loop or a caller, changes jobs and writes the store.

Each change of threads costs a fraction of a millisecond, and a call that is handed to the loop takes two of
them.  So a call runs on the caller's own thread, unless the loop is at work.  What follows from it is left
to the loop, a moment later.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from typing import Final, TypeVar

from runner.base.errors import Unavailable
from runner.base.readable import readable_duration
from runner.control.inbox import Inbox
from runner.control.messages import Call
from runner.control.transitions import ANSWER_S, call_on_loop

T = TypeVar("T")

BUSY: Final = f"the daemon has been busy for {readable_duration(ANSWER_S)}; try again"


class ExclusiveSection:
    """One holder at a time."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the section, after waiting for it."""
        with self._lock:
            yield

    def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the section and return what it returns or raises.

        It runs on this thread if the section is free, else on the loop's.

        Raises:
            Unavailable: the loop has not answered for ``ANSWER_S``; work that has not begun is not done.
        """
        if not self._lock.acquire(blocking=False):
            return self._on_the_loop(work)
        try:
            self._inbox.yield_once()
            return work()
        finally:
            self._lock.release()
            self.wake()

    def _on_the_loop(self, work: Callable[[], T]) -> T:
        answer = self.submit(work)
        try:
            return answer.result(timeout=ANSWER_S)
        except TimeoutError as error:
            if answer.done():  # the work itself raised it, or has ended just now
                return answer.result()
            answer.cancel()
            raise Unavailable(BUSY) from error

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done on the loop's thread, and return the future of its result."""
        message, answer = call_on_loop(work)
        self._inbox.put(message)
        return answer

    def read(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which reads in the section and changes nothing.

        Raises:
            Unavailable: the section has been held for ``ANSWER_S``.
        """
        if not self._lock.acquire(timeout=ANSWER_S):
            raise Unavailable(BUSY)
        try:
            return work()
        finally:
            self._lock.release()

    def wake(self) -> None:
        """Let the loop do an iteration soon; from any thread."""
        self._inbox.put(Call(lambda: None))
