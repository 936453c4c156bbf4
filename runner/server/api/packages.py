"""Submissions that wait for their packages, without a thread."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from runner.agent.package_locks import PackagesPending, PendingLock
from runner.server.api.threads import run_check
from runner.services.jobs import JobService

T = TypeVar("T")


async def with_packages(service: JobService, wait_s: float, work: Callable[..., T], *args: object) -> T:
    """Return the result of a submission's check, when its packages are resolved.

    Raises:
        PackagesPending: they are not, after ``wait_s`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            return await run_check(work, *args)
        except PackagesPending as error:
            remaining_s = deadline - asyncio.get_running_loop().time()
            if remaining_s <= 0 or not await _done(service, error.pending, remaining_s):
                raise


async def _done(service: JobService, pending: PendingLock, wait_s: float) -> bool:
    """Return True if a resolution is done, after some seconds at most."""
    locks, loop, done = service.package_locks, asyncio.get_running_loop(), asyncio.Event()
    if locks is None:
        return False

    def tell() -> None:
        with suppress(RuntimeError):  # who no longer waits may have closed the loop, and others still wait
            loop.call_soon_threadsafe(done.set)

    locks.join(pending, tell)
    try:
        async with asyncio.timeout(wait_s):
            await done.wait()
    except TimeoutError:
        return False
    finally:
        locks.leave(pending)
    return True


def pending_json(pending: PendingLock) -> dict[str, Any]:
    """Return the reason why a submission waits."""
    try:
        lines = pending.log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    own = (line for line in reversed(lines) if line and not line[0].isspace())  # others are of its tools
    return {"text": next(own, "resolving packages")}
