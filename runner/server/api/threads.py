"""The threads that requests share: how many there are for each kind of work, and for one person of them.

There are pools for different work.  What checks a text that a person wrote waits for a worker of theirs.
What evaluates a change of a job may wait for a verification of its checkpoints.  What controls jobs, such as
list, show, cancel and signal, has threads that nothing else uses: however many people keep the other pools
busy, these requests are answered.  All else is in the general pool.

Without shares, one person whose requests take seconds each would keep a pool busy.  What is over a person's
share waits without a thread, and is dropped when its client has gone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from threading import Event
from typing import Any, Final, Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.errors import Unavailable
from runner.base.waiting import is_wanted
from runner.server.api.body import JsonRequest
from runner.server.api.peer import GONE, peer_of

T = TypeVar("T")

Pool: TypeAlias = Literal["general", "checks", "rollouts", "controls"]

GENERAL: Final = "general"
"""The pool of anyio, in which FastAPI runs functions as well."""

POOLS: Final[dict[Pool, int]] = {GENERAL: 40, "checks": 32, "rollouts": 16, "controls": 16}
"""The threads of each pool.  A check of a text mostly waits for a worker, and an evaluation of a change may
wait for a verification of checkpoints."""

SHARES: Final[dict[Pool, int]] = {GENERAL: 2, "checks": 2, "rollouts": 2, "controls": 1}
"""Threads of one person at a time in each pool.  Requests that control jobs wait for nothing but the
interpreter, so a second thread makes nobody faster: it is one more before which all others wait for it."""


@dataclass(slots=True)
class _Share:
    """The threads of one person."""

    pools: dict[Pool, asyncio.Semaphore] = field(
        default_factory=lambda: {name: asyncio.Semaphore(SHARES[name]) for name in POOLS}
    )
    requests: int = 0


@dataclass(slots=True)
class _Pools:
    """The threads of all, and the shares of the people who have requests."""

    limits: dict[Pool, CapacityLimiter] = field(
        default_factory=lambda: {name: CapacityLimiter(POOLS[name]) for name in POOLS if name != GENERAL}
    )
    shares: dict[int, _Share] = field(default_factory=dict)  # by the uid of the person


_person: Final[ContextVar[int]] = ContextVar("person")
"""The uid of the person whose request is handled."""

_gone: Final[ContextVar[Event | None]] = ContextVar("gone", default=None)
"""Set once the client of the request has gone; None without a connection."""

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
    """Return True if the client of a request is still there, and the daemon does not leave."""
    gone = request.scope.get(GONE)
    return not request.app.state.service.broadcast.leaving and not (gone is not None and gone.is_set())


async def _run(pool: Pool, work: Callable[[], T]) -> T:
    """Return the result of blocking work, on a thread of a pool.

    Raises:
        Unavailable: the client had gone when it was the turn of the work.
    """
    async with _share_of(_person.get()) as share, share.pools[pool]:
        return await run_sync(partial(_do_unless_gone, work), limiter=_pools_here().limits.get(pool))


async def run_in_share(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return the result of blocking work; as the next ones, it may raise ``Unavailable``."""
    return await _run(GENERAL, partial(work, *args, **named))


async def run_check(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return the result of a check of something that a caller wrote."""
    return await _run("checks", partial(work, *args, **named))


async def run_rollout(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return the result of a change's evaluation."""
    return await _run("rollouts", partial(work, *args, **named))


async def run_control(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return the result of short work for a request that controls jobs."""
    return await _run("controls", partial(work, *args, **named))


def _do_unless_gone(work: Callable[[], T]) -> T:
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise Unavailable(NOBODY_WAITS)
    return work()


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

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        waits = iscoroutinefunction(self.endpoint)

        async def handle(request: Request) -> Response:
            person = SUBORDINATE_IDS.person(peer_of(request.client).uid)
            _person.set(person)
            _gone.set(request.scope.get(GONE))
            is_wanted.set(partial(_is_wanted, request))
            parsed = JsonRequest(request.scope, request.receive)
            if waits:
                return await handler(parsed)
            async with _share_of(person) as share, share.pools[GENERAL]:
                return await handler(parsed)

        return handle
