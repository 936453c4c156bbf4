"""Cancels a build that nobody waits for any more.

The builder registers how to end its present work: kill a program, close the connection to the engine.
Whoever knows that the image is no longer wanted calls ``cancel``, from any thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Timer

from images.errors import BuildCancelled


@contextmanager
def deadline(seconds: float | None, expire: Callable[[], None]) -> Iterator[Event]:
    """Call ``expire``, from another thread, if the block takes so long; yield an event that is set then."""
    late = Event()

    def end() -> None:
        late.set()
        expire()

    timer = None if seconds is None else Timer(seconds, end)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield late
    finally:
        if timer is not None:
            timer.cancel()


class CancellationToken:
    """Belongs to one build; once it is cancelled it stays so."""

    def __init__(self) -> None:
        self._cancelled = Event()
        self._why = ""
        self._lock = Lock()
        self._callbacks: list[Callable[[], None]] = []

    def cancel(self, why: str = "no job waits for the image any more") -> None:
        """End the present work, and everything that would follow it."""
        with self._lock:
            self._why = self._why or why
            self._cancelled.set()
            for callback in self._callbacks:
                callback()

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` if the build is cancelled within the block, or was before it.

        The callback must not block.  It is never called after the block.
        """
        with self._lock:
            self._callbacks.append(callback)
            if self._cancelled.is_set():
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def check(self) -> None:
        """Raise if the build was cancelled.

        Raises:
            BuildCancelled: with the reason.
        """
        if self._cancelled.is_set():
            raise BuildCancelled(f"the image build was cancelled: {self._why}")

    def wait(self, seconds: float) -> None:
        """Wait for a time, or until the build is cancelled.

        Raises:
            BuildCancelled: it was.
        """
        self._cancelled.wait(seconds)
        self.check()
