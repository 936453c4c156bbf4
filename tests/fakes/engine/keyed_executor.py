"""Lanes that work only when told to, so that a test chooses every interleaving."""

from collections import deque
from collections.abc import Callable


class ManualLanes:
    """Satisfies ``runner.control.context.KeyedWork``."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[Callable[[], None]]] = {}

    def put(self, key: str, work: Callable[[], None], user: str = "") -> None:
        del user
        self.waiting.setdefault(key, deque()).append(work)

    def busy(self, key: str) -> bool:
        return key in self.waiting

    def close(self) -> None:
        self.waiting.clear()

    def step(self, choice: int = 0) -> bool:
        """Do the first piece of one lane; return whether there was any."""
        if not self.waiting:
            return False
        key = sorted(self.waiting)[choice % len(self.waiting)]
        lane = self.waiting[key]
        lane[0]()  # the lane is busy meanwhile
        lane.popleft()
        if not lane:
            del self.waiting[key]
        return True


class AtOnce:
    """Satisfies ``runner.control.context.RepeatedWork`` on the thread that gives the work."""

    def put_unless_busy(self, key: str, work: Callable[[], None]) -> None:
        del key
        work()

    def close(self) -> None:
        """Do nothing: nothing waits."""
