"""One person's requests leave threads to the others, and their own checks leave some to their own lists."""

import asyncio
from threading import Event, Lock, Semaphore
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from runner.base.errors import Unavailable
from runner.server.api import threads
from runner.server.api.peer import GONE
from runner.server.api.threads import (
    POOLS,
    SHARES,
    SharedThreadsRoute,
    run_check,
    run_control,
    run_in_share,
    run_rollout,
)
from tests.fakes.patience import patience


class Work:
    """Blocking work that counts itself and goes on when it is told to."""

    def __init__(self) -> None:
        self.lock, self.go_on, self.begun = Lock(), Event(), Semaphore(0)
        self.now = self.most = 0

    def __call__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.begun.release()
        assert self.go_on.wait(patience())
        with self.lock:
            self.now -= 1


def application(work: Work) -> FastAPI:
    app = FastAPI()
    app.router.route_class = SharedThreadsRoute

    @app.get("/check")
    async def check() -> None:
        await run_check(work)

    @app.get("/work")
    async def share() -> None:
        await run_in_share(work)

    @app.get("/blocking")
    def blocking() -> None:
        work()

    @app.get("/rollout")
    async def rollout() -> None:
        await run_rollout(work)

    @app.get("/slow-control")
    async def slow_control() -> None:
        await run_control(work)

    @app.get("/quick")
    async def quick() -> int:
        return await run_in_share(lambda: 7)

    @app.get("/control")
    async def control() -> int:
        return await run_control(lambda: 7)

    return app


async def many(app: FastAPI, path: str, uid: int, count: int) -> list[asyncio.Task[int]]:
    async def one() -> int:
        transport = ASGITransport(app, client=(f"{uid}:{uid}", 1))
        async with AsyncClient(transport=transport, base_url="http://runner") as client:
            return (await client.get(path, timeout=patience())).status_code

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("path", "share"),
    [
        ("/check", SHARES["checks"]),
        ("/work", SHARES["general"]),
        ("/blocking", SHARES["general"]),
        ("/rollout", SHARES["rollouts"]),
        ("/slow-control", 1),
    ],
)
def test_a_person_with_a_hundred_slow_requests_keeps_nobody_else_waiting(path: str, share: int) -> None:
    work = Work()
    app = application(work)

    async def scene() -> None:
        slow = await many(app, path, 1001, 100)
        [others] = await many(app, "/quick", 1002, 1)
        assert await asyncio.wait_for(others, patience()) == 200
        assert work.most <= share
        work.go_on.set()
        assert set(await asyncio.gather(*slow)) == {200}

    asyncio.run(scene())
    assert 0 < work.most <= share  # on a busy machine the last thread may begin after the others


def test_a_list_gets_past_the_checks_of_the_same_person() -> None:
    work = Work()
    app = application(work)

    async def scene() -> None:
        slow = await many(app, "/check", 1001, 50)
        [own] = await many(app, "/quick", 1001, 1)
        assert await asyncio.wait_for(own, patience()) == 200
        work.go_on.set()
        await asyncio.gather(*slow)

    asyncio.run(scene())


def test_a_share_exists_only_as_long_as_it_is_used() -> None:
    work = Work()
    work.go_on.set()
    app = application(work)

    async def scene() -> None:
        await asyncio.gather(*await many(app, "/work", 1001, 3))
        assert threads._pools[asyncio.get_running_loop()].shares == {}

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/check", "/work", "/blocking", "/rollout"])
def test_however_many_people_send_slow_requests_another_may_list_and_cancel(path: str) -> None:
    work = Work()
    app = application(work)

    async def scene() -> None:
        people = range(1001, 1001 + max(POOLS.values()) // 2 + 2)
        slow = [task for uid in people for task in await many(app, path, uid, 10)]
        [other] = await many(app, "/control", 2000, 1)
        [own] = await many(app, "/control", 1001, 1)
        assert await asyncio.wait_for(other, patience()) == 200
        assert await asyncio.wait_for(own, patience()) == 200
        work.go_on.set()
        await asyncio.gather(*slow)

    asyncio.run(scene())


def test_work_whose_client_has_gone_is_not_begun() -> None:
    work, gone = Work(), Event()
    begun: list[int] = []
    app = application(work)

    @app.get("/mine")
    async def mine() -> None:
        await run_check(begun.append, 1)

    async def with_connection(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, GONE: gone}, receive, send)

    async def scene() -> None:
        slow = await many(app, "/check", 1001, SHARES["checks"])
        [waits] = await many(with_connection, "/mine", 1001, 1)  # type: ignore[arg-type]  # an application, too
        gone.set()
        work.go_on.set()
        await asyncio.gather(*slow)
        with pytest.raises(Unavailable):
            await waits

    asyncio.run(scene())
    assert begun == []
