"""Whose turn it is to change jobs: the loop's, or that of somebody who asks for something while it waits.

Every change of threads costs a fraction of a millisecond, and a question that is handed to the loop
takes two of them.  So it is done where it was asked, unless the loop is at work; what follows from it
is the loop's, a moment later.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from runner.control.context import KeyedWork
from runner.control.inbox import Inbox
from runner.control.messages import Call
from runner.control.transitions import ANSWER_S, call_on_loop

T = TypeVar("T")


class ExclusiveSection:
    """One at a time changes jobs; what it puts into lanes begins when its turn is over."""

    def __init__(self, news: Inbox, work_queue: KeyedWork, build_queue: KeyedWork) -> None:
        self._news = news
        self._lanes = work_queue
        self._builds = build_queue
        self._lock = Lock()

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Have the turn."""
        with self._lock, self._lanes.together(), self._builds.together():
            yield

    def ask(self, work: Callable[[], T]) -> T:
        """Do ``work`` between two turns, here if the loop waits, and return what it returns or raises."""
        if not self._lock.acquire(blocking=False):
            return self.asked(work).result(timeout=ANSWER_S)
        try:
            self._news.answering()
            with self._lanes.together(), self._builds.together():
                return work()
        finally:
            self._lock.release()
            self.wake()

    def asked(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done on the loop's thread; what it returns or raises can be waited for."""
        message, answer = call_on_loop(work)
        self._news.put(message)
        return answer

    def peek(self, work: Callable[[], T]) -> T:
        """Return what ``work`` finds between two turns of the loop; it changes nothing.

        Raises:
            TimeoutError: the loop has been at one turn for ``ANSWER_S``.
        """
        if not self._lock.acquire(timeout=ANSWER_S):
            raise TimeoutError
        try:
            return work()
        finally:
            self._lock.release()

    def wake(self) -> None:
        """Let the loop look at everything again, soon; from any thread."""
        self._news.put(Call(lambda: None))
