"""One person's requests leave threads to the others, and their own checks leave some to their own lists."""

import asyncio
from threading import Event, Lock

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from runner.server.api import threads
from runner.server.api.threads import CHECKS, SHARE, SharedThreadsRoute, run_check, run_in_share

LIMIT_S = 20.0


class Work:
    """Blocking work that counts itself and goes on when it is told to."""

    def __init__(self) -> None:
        self.lock, self.go_on = Lock(), Event()
        self.now = self.most = 0

    def __call__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go_on.wait(LIMIT_S)
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

    @app.get("/quick")
    async def quick() -> int:
        return await run_in_share(lambda: 7)

    return app


async def many(app: FastAPI, path: str, uid: int, count: int) -> list[asyncio.Task[int]]:
    async def one() -> int:
        transport = ASGITransport(app, client=(f"{uid}:{uid}", 1))
        async with AsyncClient(transport=transport, base_url="http://runner") as client:
            return (await client.get(path, timeout=LIMIT_S)).status_code

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("path", "most"), [("/check", CHECKS), ("/work", SHARE), ("/blocking", SHARE)])
def test_a_person_with_a_hundred_slow_requests_keeps_nobody_else_waiting(path: str, most: int) -> None:
    work = Work()
    app = application(work)

    async def scene() -> None:
        slow = await many(app, path, 1001, 100)
        [others] = await many(app, "/quick", 1002, 1)
        assert await asyncio.wait_for(others, LIMIT_S) == 200
        assert work.most <= most
        work.go_on.set()
        assert set(await asyncio.gather(*slow)) == {200}

    asyncio.run(scene())
    assert 0 < work.most <= most  # on a busy machine the last thread may begin after the others


def test_a_list_gets_past_the_checks_of_the_same_person() -> None:
    work = Work()
    app = application(work)

    async def scene() -> None:
        slow = await many(app, "/check", 1001, 50)
        [own] = await many(app, "/quick", 1001, 1)
        assert await asyncio.wait_for(own, LIMIT_S) == 200
        work.go_on.set()
        await asyncio.gather(*slow)

    asyncio.run(scene())


def test_a_share_exists_only_as_long_as_it_is_used() -> None:
    work = Work()
    work.go_on.set()
    app = application(work)

    async def scene() -> None:
        await asyncio.gather(*await many(app, "/work", 1001, 3))
        assert threads._shares[asyncio.get_running_loop()] == {}

    asyncio.run(scene())
