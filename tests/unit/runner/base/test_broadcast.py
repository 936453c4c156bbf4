import asyncio
from threading import Thread

from runner.base.broadcast import ChangeBroadcast


def test_a_coroutine_is_woken_when_the_daemon_stops_and_none_waits_after_that() -> None:
    broadcast = ChangeBroadcast()

    async def waits_twice() -> None:
        first = asyncio.create_task(broadcast.wait(60))
        await asyncio.sleep(0)
        Thread(target=broadcast.leave).start()
        await first
        await broadcast.wait(60)

    asyncio.run(asyncio.wait_for(waits_twice(), 10))
    assert broadcast.leaving
