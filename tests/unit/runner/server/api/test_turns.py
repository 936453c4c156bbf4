"""Requests of who gives way wait for their turns; their processor time is counted wherever they use it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from runner.base.cpu_limit import check_cpu
from runner.base.waiting import without_pauses
from runner.server.api.peer import GONE
from runner.server.api.processor_shares import BURST_S, SHARE, shares_here
from runner.server.api.threads import SharedThreadsRoute, run_check, run_control, run_in_share, run_rollout
from runner.server.api.turns import Counted, TurnsMiddleware, turns_here
from tests.fakes.patience import patience

HEAVY, LIGHT = 1001, 1002
WORK_S = 0.02


def compute() -> None:
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass


def application() -> FastAPI:
    app = FastAPI()
    app.router.route_class = SharedThreadsRoute
    app.add_middleware(TurnsMiddleware)
    runs: dict[str, Callable[..., Awaitable[None]]] = {
        "check": run_check, "control": run_control, "rollout": run_rollout, "share": run_in_share,
    }  # fmt: skip

    @app.get("/thread/{kind}")
    async def on_a_thread(kind: str) -> None:
        await runs[kind](compute)

    @app.get("/loop")
    async def on_the_loop() -> None:
        compute()

    @app.get("/function")
    def function() -> None:
        compute()

    return app


async def get(app: FastAPI, path: str, uid: int) -> int:
    transport = ASGITransport(app, client=(f"{uid}:{uid}", 1))
    async with AsyncClient(transport=transport, base_url="http://runner") as client:
        return (await client.get(path, timeout=patience())).status_code


def run(scene: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
    return asyncio.run(asyncio.wait_for(scene(), patience()))


@pytest.mark.parametrize(
    "path", ["/thread/check", "/thread/control", "/thread/rollout", "/thread/share", "/loop", "/function"]
)
def test_the_processor_time_of_a_request_is_counted_wherever_it_is_used(path: str) -> None:
    async def scene() -> float:
        app = application()
        assert await get(app, path, HEAVY) == 200
        return shares_here()._uses[HEAVY].seconds

    assert run(scene) >= WORK_S


@pytest.mark.parametrize("path", ["/thread/check", "/thread/control", "/loop", "/function"])
def test_requests_that_give_way_use_their_share_and_others_do_not_wait_for_them(path: str) -> None:
    async def scene() -> float:
        app, shares = application(), shares_here()
        shares.charge(HEAVY, 5 * BURST_S)
        assert await get(app, path, LIGHT) == 200
        began_s = time.monotonic()
        heavy = [asyncio.create_task(get(app, path, HEAVY)) for _ in range(4)]
        assert await get(app, "/thread/control", LIGHT) == 200
        assert not all(task.done() for task in heavy)
        assert [await task for task in heavy] == [200] * 4
        return time.monotonic() - began_s

    took_s = run(scene)
    least_s = 3 * WORK_S / SHARE  # the first turn is free, and the last one waits for nothing after it
    assert took_s >= 0.9 * least_s


def test_a_check_that_gives_way_pauses_within_its_work() -> None:
    async def scene() -> float:
        shares, turns = shares_here(), turns_here()
        shares.charge(HEAVY, 5 * BURST_S)
        shares.ask(LIGHT)

        def long_check() -> None:
            until_s = time.thread_time() + WORK_S
            while time.thread_time() < until_s:
                check_cpu()

        began_s = time.monotonic()
        await asyncio.to_thread(turns.do, HEAVY, None, long_check)
        return time.monotonic() - began_s

    assert run(scene) >= 0.5 * WORK_S / SHARE


def test_nothing_pauses_that_others_wait_for() -> None:
    async def scene() -> float:
        shares, turns = shares_here(), turns_here()
        shares.charge(HEAVY, 5 * BURST_S)
        shares.ask(LIGHT)
        shares.charge(HEAVY, 10.0)  # the next turn is 10 s away

        def in_the_section() -> None:
            with without_pauses():
                compute()
                check_cpu()

        began_s = time.monotonic()
        await asyncio.to_thread(turns.do, HEAVY, None, in_the_section)
        assert shares._uses[HEAVY].seconds > 5 * BURST_S
        return time.monotonic() - began_s

    assert run(scene) < 5.0


def test_a_pause_ends_when_the_client_has_gone() -> None:
    async def scene() -> float:
        shares, turns, gone = shares_here(), turns_here(), Event()
        shares.charge(HEAVY, 50 * BURST_S)
        shares.ask(LIGHT)
        shares.charge(HEAVY, 10.0)  # the next turn is 10 s away
        gone.set()

        def check() -> None:
            compute()
            check_cpu()

        began_s = time.monotonic()
        await asyncio.to_thread(turns.do, HEAVY, gone, check)
        return time.monotonic() - began_s

    assert run(scene) < 5.0


def test_a_request_whose_client_has_gone_while_it_waited_is_not_begun() -> None:
    begun = []

    async def app(*request: object) -> None:
        begun.append(request)

    async def scene() -> None:
        gone = Event()
        shares_here().charge(HEAVY, 5 * BURST_S)
        shares_here().ask(LIGHT)
        gone.set()
        await TurnsMiddleware(app)({"client": (f"{HEAVY}:1", 1), GONE: gone}, None, None)  # type: ignore[arg-type]

    run(scene)
    assert begun == []


def test_a_counted_coroutine_is_cancelled_and_closed_as_any_other() -> None:
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(patience())
        finally:
            seen.append("ended")

    async def scene() -> None:
        async def waits() -> None:
            await Counted(work(), lambda _: None)

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scene)
    never_begun = Counted(work(), lambda _: None)
    never_begun.close()
    assert seen == ["ended"]
