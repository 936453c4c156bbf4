"""The threads that requests share: how many of them one person may use at a time.

All blocking work of requests runs in one pool.  Without shares, one person whose requests take seconds each
would keep it busy, and nobody else would be answered.  What is over a person's share waits without a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.waiting import is_wanted
from runner.server.api.peer import GONE, peer_of

T = TypeVar("T")

SHARE: Final = 8
"""Threads of one person at a time; the pool has 40."""

CHECKS: Final = 2
"""Of these, threads that check what the person wrote: files take long, and a list has to get past them."""


@dataclass(slots=True)
class _Share:
    """The threads of one person."""

    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SHARE))
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS))
    requests: int = 0


_person: Final[ContextVar[int]] = ContextVar("person")
"""The uid of the person whose request is handled."""

_shares: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Share]]] = WeakKeyDictionary()


@asynccontextmanager
async def _share_of(person: int) -> AsyncIterator[_Share]:
    """Yield the share of a person; it exists as long as a request uses it."""
    shares = _shares.setdefault(asyncio.get_running_loop(), {})
    share = shares.setdefault(person, _Share())
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
    """Return what blocking work returns; it runs on a thread out of the share of the caller."""
    async with _share_of(_person.get()) as share, share.threads:
        return await run_in_threadpool(partial(work, *args, **named))


async def run_check(work: Callable[..., T], *args: object, **named: object) -> T:
    """Return what the check of something that a caller wrote returns; a person has few of them at a time."""
    async with _share_of(_person.get()) as share, share.checks, share.threads:
        return await run_in_threadpool(partial(work, *args, **named))


class SharedThreadsRoute(APIRoute):
    """A route whose handler runs within the share of its caller, whether it is a coroutine or not."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        waits = iscoroutinefunction(self.endpoint)

        async def handle(request: Request) -> Response:
            person = SUBORDINATE_IDS.person(peer_of(request.client).uid)
            _person.set(person)
            is_wanted.set(partial(_is_wanted, request))
            if waits:
                return await handler(request)
            async with _share_of(person) as share, share.threads:
                return await handler(request)

        return handle
