"""The threads that requests share: how many there are for each kind of work, and for one person of them.

There are pools for different work.  What checks a text that a person wrote computes for seconds, and has few
threads, because only one thread at a time runs Python; people whose checks took long lately share fewer
still.  What evaluates a change of a job may wait for a verification of its checkpoints.  What controls jobs,
such as list, show, cancel and signal, has threads that nothing else uses: however many people keep the other
pools busy, these requests are answered.  All else is in the general pool.

Without shares, one person whose requests take seconds each would keep a pool busy.  What is over a person's
share waits without a thread, and is dropped when its client has gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import iscoroutinefunction
from threading import Event
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.errors import Unavailable
from runner.base.waiting import is_wanted
from runner.server.api.peer import GONE, peer_of
from runner.server.api.turns import Turns, turns_here

T = TypeVar("T")

SHARE: Final = 2
"""Threads of one person at a time in the general pool, which has 40."""

CHECKS: Final = 2
"""Threads that check what one person wrote."""

ALL_CHECKS: Final = 4
"""Threads that check what anybody wrote: each of them slows everything else down by its part."""

LONG_CHECKS: Final = 2
"""Threads for the people whose checks took long lately, one for each: they keep nobody else waiting."""

LONG_S: Final = 1.0
"""Processor time for a person's checks from which on they take long."""

FORGET_S: Final = 60.0
"""After this time half of what a person's checks took is forgotten."""

ROLLOUTS: Final = 2
"""Threads of one person that evaluate changes, which may wait for a verification of checkpoints."""

ALL_ROLLOUTS: Final = 16
"""Threads that evaluate changes."""

CONTROLS: Final = 2
"""Threads of one person for requests that control jobs."""

ALL_CONTROLS: Final = 16
"""Threads for requests that control jobs."""


@dataclass(slots=True)
class _Share:
    """The threads of one person."""

    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SHARE))
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS))
    long_checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    rollouts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ROLLOUTS))
    controls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONTROLS))
    requests: int = 0


@dataclass(slots=True)
class CheckTimes:
    """The processor time that each person's checks took lately."""

    monotonic: Callable[[], float] = time.monotonic
    _spent: dict[int, tuple[float, float]] = field(default_factory=dict)  # by person: seconds, and when

    def add(self, person: int, seconds: float) -> None:
        """Add what a check took, and forget the people whose checks take long no more."""
        self._spent[person] = (self._lately_s(person) + seconds, self.monotonic())
        for other in [each for each in self._spent if self._lately_s(each) < LONG_S / 100]:
            del self._spent[other]

    def are_long(self, person: int) -> bool:
        """Return whether the checks of a person took long lately."""
        return self._lately_s(person) > LONG_S

    def _lately_s(self, person: int) -> float:
        seconds, at_s = self._spent.get(person, (0.0, 0.0))
        return float(seconds * 0.5 ** ((self.monotonic() - at_s) / FORGET_S))


@dataclass(slots=True)
class _Pools:
    """The threads beside the general pool, and the shares of the people who have requests."""

    checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(ALL_CHECKS))
    long_checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(LONG_CHECKS))
    rollouts: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(ALL_ROLLOUTS))
    controls: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(ALL_CONTROLS))
    check_times: CheckTimes = field(default_factory=CheckTimes)
    shares: dict[int, _Share] = field(default_factory=dict)  # by the uid of the person


_person: Final[ContextVar[int]] = ContextVar("person")
"""The uid of the person whose request is handled."""

_gone: Final[ContextVar[Event | None]] = ContextVar("gone", default=None)
"""Set once the client of the request has gone; None without a connection."""

_turns_of_request: Final[ContextVar[Turns]] = ContextVar("turns")
"""The turns of the event loop of the request, for functions that answer it on a thread."""

NOBODY_WAITS: Final = "nobody waits for the answer any more"

_pools: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Pools]] = WeakKeyDictionary()


def _pools_here() -> _Pools:
    """Return the pools of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _pools.get(loop)
    if found is None:
        found = _pools[loop] = _Pools()
    return found


@asynccontextmanager
async def _share_of(person: int) -> AsyncIterator[_Share]:
    """Yield the share of a person; it exists as long as a request uses it."""
    shares = _pools_here().shares
    share = shares.get(person)
    if share is None:
        share = shares[person] = _Share()
    share.requests += 1
    try:
        yield share
    finally:
        share.requests -= 1
        if not share.requests:
            del shares[person]


def _is_wanted(request: Request) -> bool:
    """Return whether the client of a request is still there, and the daemon does not leave."""
    gone = request.scope.get(GONE)
    return not request.app.state.service.broadcast.leaving and not (gone is not None and gone.is_set())


async def run_in_share(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return what blocking work returns; it runs on a thread of the general pool.

    Raises:
        Unavailable: the client had gone when it was the turn of the work.
    """
    person = _person.get()
    async with _share_of(person) as share, share.threads, _turn(person, "share"):
        return await run_sync(_counted(person, work, *args, **named))


async def run_check(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return what the check of something that a caller wrote returns; there are few threads for that.

    Raises:
        Unavailable: the client had gone when it was the turn of the work.
    """
    pools, person = _pools_here(), _person.get()
    are_long = pools.check_times.are_long(person)
    limiter = pools.long_checks if are_long else pools.checks
    threads = _share_of(person)
    async with threads as share, share.long_checks if are_long else share.checks, _turn(person, "check"):
        call, took_s = _counted(person, work, *args, **named), [0.0]
        try:
            return await run_sync(_timed, call, took_s, limiter=limiter)
        finally:
            pools.check_times.add(person, took_s[0])


async def run_rollout(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return what the evaluation of a change returns, which may wait for a verification of checkpoints.

    Raises:
        Unavailable: the client had gone when it was the turn of the work.
    """
    person, pools = _person.get(), _pools_here()
    async with _share_of(person) as share, share.rollouts, _turn(person, "rollout"):
        return await run_sync(_counted(person, work, *args, **named), limiter=pools.rollouts)


async def run_control(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return what short work for a request that controls jobs returns, on a thread that is kept for that.

    Raises:
        Unavailable: the client had gone when it was the turn of the work.
    """
    person, pools = _person.get(), _pools_here()
    async with _share_of(person) as share, share.controls, _turn(person, "control"):
        return await run_sync(_counted(person, work, *args, **named), limiter=pools.controls)


def _turn(person: int, place: str) -> AbstractAsyncContextManager[None]:
    return turns_here().turn(person, place, _gone.get())


def _counted(person: int, work: Callable[..., T], *args: object, **named: object) -> Callable[[], T]:
    """Return work whose processor time is counted, and that is not begun when its client has gone."""
    call = partial(_do_unless_gone, work, *args, **named)
    return partial(turns_here().do, person, _gone.get(), call)


def _do_unless_gone(work: Callable[..., T], *args: object, **named: object) -> T:
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise Unavailable(NOBODY_WAITS)
    return work(*args, **named)


def _timed(work: Callable[[], T], took_s: list[float]) -> T:
    """Return what work returns, and note the processor time that it took."""
    began_s = time.thread_time()
    try:
        return work()
    finally:
        took_s[0] = time.thread_time() - began_s


@contextmanager
def of_person(person: int) -> Iterator[None]:
    """Let work in this block take threads out of the share of a person, by uid."""
    token = _person.set(person)
    try:
        yield
    finally:
        _person.reset(token)


class SharedThreadsRoute(APIRoute):
    """A route whose handler runs within the share of its caller, whether it is a coroutine or not."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **named: Any) -> None:  # noqa: ANN401  (FastAPI's)
        counted = iscoroutinefunction(endpoint) or hasattr(endpoint, "is_counted")
        super().__init__(path, endpoint if counted else _counted_endpoint(endpoint), **named)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        waits = iscoroutinefunction(self.endpoint)

        async def handle(request: Request) -> Response:
            person = SUBORDINATE_IDS.person(peer_of(request.client).uid)
            _person.set(person)
            _gone.set(request.scope.get(GONE))
            is_wanted.set(partial(_is_wanted, request))
            if waits:
                return await handler(request)
            _turns_of_request.set(turns_here())
            async with _share_of(person) as share, share.threads, _turn(person, "share"):
                return await handler(request)

        return handle


def _counted_endpoint(endpoint: Callable[..., T]) -> Callable[..., T]:
    """Return a function that answers requests, whose processor time is counted."""

    @wraps(endpoint)
    def counted(*args: object, **named: object) -> T:
        return _turns_of_request.get().do(_person.get(), _gone.get(), partial(endpoint, *args, **named))

    counted.is_counted = True  # type: ignore[attr-defined]  # a router that includes another makes routes again
    return counted
