"""Where requests wait for their turns if they give way to others, and where their processor time is counted.

It is counted on the event loop at each step of a request, on threads when their work is done, and within the
check of a long text every few milliseconds.  A request that gives way waits for a turn before it is read,
before it gets a thread, and within such a check.  At each of these places one request of a person waits for a
turn, and the person's other requests wait for that one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.waiting import give_way
from runner.server.api.peer import GONE, peer_uid
from runner.server.api.processor_shares import ProcessorShares, shares_here

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

STEP_S: Final = 0.002
"""Processor time of a check between two looks at whether it gives way."""

LOOK_S: Final = 0.25
"""Between two looks of who waits: the others may have left, or the client."""


@dataclass(slots=True)
class Turns:
    """The turns of the requests of one event loop."""

    shares: ProcessorShares = field(default_factory=shares_here)
    _first: WeakValueDictionary[tuple[int, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @asynccontextmanager
    async def turn(self, person: int, place: str, gone: Event | None) -> AsyncIterator[None]:
        """Wait for a turn of a person; no other request of theirs gets one at this place within the block.

        Who does not give way does not wait, and keeps nobody waiting.
        """
        if not self.shares.gives_way(person):
            yield
            return
        first = self._first.setdefault((person, place), asyncio.Lock())
        async with first:
            until_s = time.monotonic() + self.shares.wait_s(person)
            # No event says that the others have left.
            while (left_s := until_s - time.monotonic()) > 0 and self._has_to_wait(person, gone):  # noqa: ASYNC110
                await asyncio.sleep(min(left_s, LOOK_S))
            yield

    def _has_to_wait(self, person: int, gone: Event | None) -> bool:
        return not (gone is not None and gone.is_set()) and self.shares.gives_way(person)

    def do(self, person: int, gone: Event | None, work: Callable[[], T]) -> T:
        """Return what work on this thread returns; its time is counted, and it pauses in its checks."""
        work_pauses = _Pauses(self, person, gone or Event())
        token = give_way.set(work_pauses)
        try:
            return work()
        finally:
            give_way.reset(token)
            work_pauses.count()


@dataclass(slots=True)
class _Pauses:
    """Counts the processor time of one piece of work, and pauses it while it gives way."""

    turns: Turns
    person: int
    gone: Event  # a client that has gone ends a pause
    counted_s: float = field(default_factory=time.thread_time)

    def __call__(self) -> None:
        if time.thread_time() - self.counted_s < STEP_S:
            return
        self.count()
        until_s = time.monotonic() + self.turns.shares.wait_s(self.person)
        while (left_s := until_s - time.monotonic()) > 0 and self.turns.shares.gives_way(self.person):
            if self.gone.wait(min(left_s, LOOK_S)):
                return

    def count(self) -> None:
        """Count what was used since the last time."""
        used_s = time.thread_time()
        self.turns.shares.charge(self.person, used_s - self.counted_s)
        self.counted_s = used_s


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


def turns_here() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns()
    return found


class TurnsMiddleware:
    """Lets requests wait for their turns before their body is read, and counts their steps."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on when it is its turn; not at all if its client has gone by then."""
        client, turns = scope.get("client"), turns_here()
        if client is None:
            await self._app(scope, receive, send)
            return
        person, gone = SUBORDINATE_IDS.person(peer_uid(client)), scope.get(GONE)
        turns.shares.ask(person)
        async with turns.turn(person, "request", gone):
            pass
        if gone is None or not gone.is_set():
            await Counted(self._answer(scope, receive, send), partial(turns.shares.charge, person))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Counted(Generator[Any, Any, None]):
    """A coroutine whose steps on the event loop are counted."""

    __slots__ = ("_charge", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], charge: Callable[[float], object]) -> None:
        self._coroutine, self._charge = coroutine, charge

    def __await__(self) -> Generator[Any, Any, None]:
        return self

    def send(self, value: Any) -> Any:  # noqa: ANN401  (whatever the event loop sends)
        """Do a step."""
        return self._step(partial(self._coroutine.send, value))

    def throw(self, *error: Any) -> Any:  # noqa: ANN401  (as of any generator)
        """Do a step that begins with an error, such as a cancellation."""
        return self._step(partial(self._coroutine.throw, *error))

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def _step(self, step: Callable[[], Any]) -> Any:  # noqa: ANN401  (what the coroutine waits for)
        began_s = time.thread_time()
        try:
            return step()
        finally:
            self._charge(time.thread_time() - began_s)
