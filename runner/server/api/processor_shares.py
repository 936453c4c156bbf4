"""How much processor time the requests of each person have taken lately, and who gives way to whom.

One thread at a time runs Python.  So a person whose requests compute a lot slows down everybody else's,
however few threads they have.  While others ask who have used less, the requests of a person who has used
more than ``BURST_S`` give way: they get turns with pauses between them, so that all such requests together
use ``SHARE`` of a processor.  Who is alone is never slowed down, nor is root or the daemon's own user.

Here is what is counted; who waits for a turn, and where, is in ``turns``.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

BURST_S: Final = 1.0
"""Processor time that a person may use at once before their requests give way."""

FORGET_S: Final = 10.0
"""After this time half of what a person has used is forgotten."""

SHARE: Final = 0.15
"""The part of a processor that all requests which give way use together."""

PRESENT_S: Final = 5.0
"""Who has asked within this time is there: others give way to them."""

TURN_S: Final = 0.0005
"""Processor time that a turn takes at least: turns that were given have not used theirs yet."""

LONGEST_BACKLOG_S: Final = 10.0
"""The longest wait for a turn, whatever those before it have used."""

MOST_PEOPLE: Final = 1024
"""Whose use is remembered; of more, those who have used least are forgotten."""


def _privileged() -> Collection[int]:
    return frozenset((0, os.geteuid()))


@dataclass(slots=True)
class _Use:
    """What a person has used lately, in seconds of processor time, as it was at a time."""

    seconds: float = 0.0
    at_s: float = 0.0
    asked_s: float = 0.0


@dataclass(slots=True)
class ProcessorShares:
    """The processor time of each person's requests, by uid; from any thread."""

    monotonic: Callable[[], float] = time.monotonic
    privileged: Collection[int] = field(default_factory=_privileged)
    """The uids that never give way."""
    _uses: dict[int, _Use] = field(default_factory=dict)
    _free_s: float = 0.0  # when the next turn may begin
    _lock: Lock = field(default_factory=Lock)

    def ask(self, person: int) -> None:
        """Note that a person asks for something."""
        with self._lock:
            self._use(person).asked_s = self.monotonic()

    def charge(self, person: int, seconds: float) -> None:
        """Add processor time that a person's request has used."""
        with self._lock:
            now_s, use = self.monotonic(), self._use(person)
            use.seconds = _left(use, now_s) + seconds
            use.at_s = now_s
            if self._gives_way(person, now_s):
                self._push_back(seconds, now_s)

    def gives_way(self, person: int) -> bool:
        """Return whether the requests of a person wait for turns."""
        with self._lock:
            return self._gives_way(person, self.monotonic())

    def wait_s(self, person: int) -> float:
        """Take a turn for a person, and return how long to wait for it; 0 for who does not give way."""
        with self._lock:
            now_s = self.monotonic()
            if not self._gives_way(person, now_s):
                return 0.0
            wait_s = max(self._free_s - now_s, 0.0)
            self._push_back(TURN_S, now_s)
            return wait_s

    def _gives_way(self, person: int, now_s: float) -> bool:
        use = self._uses.get(person)
        if use is None or person in self.privileged or (own_s := _left(use, now_s)) <= BURST_S:
            return False
        return any(
            now_s - other.asked_s <= PRESENT_S and _left(other, now_s) < own_s
            for uid, other in self._uses.items()
            if uid != person
        )

    def _push_back(self, seconds: float, now_s: float) -> None:
        """Let the next turn begin later, by what keeps these seconds to ``SHARE`` of a processor."""
        free_s = max(self._free_s, now_s) + seconds * (1 / SHARE - 1)
        self._free_s = min(free_s, now_s + LONGEST_BACKLOG_S)

    def _use(self, person: int) -> _Use:
        found = self._uses.get(person)
        if found is None:
            if len(self._uses) >= MOST_PEOPLE:
                now_s = self.monotonic()
                del self._uses[min(self._uses, key=lambda uid: _left(self._uses[uid], now_s))]
            found = self._uses[person] = _Use()
        return found


_shares: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, ProcessorShares]] = WeakKeyDictionary()


def shares_here() -> ProcessorShares:
    """Return the shares of the requests of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _shares.get(loop)
    if found is None:
        found = _shares[loop] = ProcessorShares()
    return found


def _left(use: _Use, now_s: float) -> float:
    """Return what is remembered of a person's use."""
    return float(use.seconds * 0.5 ** ((now_s - use.at_s) / FORGET_S))
