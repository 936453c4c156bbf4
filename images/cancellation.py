"""Whether anybody still waits for an image: what is done for nobody is ended.

Whoever builds registers how to end what it is doing just now (kill a program, hang up on the
engine); whoever knows that nobody waits any more calls ``abandon``, from any thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock

from images.errors import BuildAbandoned


class CancellationToken:
    """The interest in one image; once it is abandoned it stays so."""

    def __init__(self) -> None:
        self._gone = Event()
        self._why = ""
        self._lock = Lock()
        self._ends: list[Callable[[], None]] = []

    def abandon(self, why: str = "nobody waits for it any more") -> None:
        """End what is being done, and everything that would be done from now on."""
        with self._lock:
            self._why = self._why or why
            self._gone.set()
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Have ``end`` called when the interest is abandoned within the block, or was before it.

        It must not block.  It is never called when the block has been left.
        """
        with self._lock:
            self._ends.append(end)
            if self._gone.is_set():
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    def check(self) -> None:
        """Go on only if the interest was not abandoned.

        Raises:
            BuildAbandoned: it was; with the reason.
        """
        if self._gone.is_set():
            raise BuildAbandoned(f"the image build was ended: {self._why}")

    def wait(self, seconds: float) -> None:
        """Wait so long, or until the interest is abandoned.

        Raises:
            BuildAbandoned: it was.
        """
        self._gone.wait(seconds)
        self.check()
