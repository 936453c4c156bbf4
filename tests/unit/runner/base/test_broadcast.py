import asyncio
from threading import Thread

from runner.base.broadcast import ChangeBroadcast
from tests.fakes.patience import patience


def test_a_coroutine_is_woken_when_the_daemon_stops_and_none_waits_after_that() -> None:
    broadcast = ChangeBroadcast()

    async def waits_twice() -> None:
        first = asyncio.create_task(broadcast.wait(60))
        await asyncio.sleep(0)
        Thread(target=broadcast.leave).start()
        await first
        await broadcast.wait(60)

    asyncio.run(asyncio.wait_for(waits_twice(), patience()))
    assert broadcast.leaving


def test_who_follows_one_job_is_woken_by_that_job_alone() -> None:
    broadcast = ChangeBroadcast()

    async def scene() -> None:
        own = asyncio.create_task(broadcast.wait(60, "7"))
        other = asyncio.create_task(broadcast.wait(60, "8"))
        every = asyncio.create_task(broadcast.wait(60))
        await asyncio.sleep(0)
        broadcast.announce(("7",))
        await asyncio.gather(own, every)
        assert not other.done()
        broadcast.announce()
        await other

    asyncio.run(asyncio.wait_for(scene(), patience()))
    assert broadcast._waiting == {}


def test_a_wait_that_ends_by_itself_leaves_nothing_behind() -> None:
    broadcast = ChangeBroadcast()
    asyncio.run(broadcast.wait(0.001, "7"))
    assert broadcast._waiting == {}


def test_a_change_between_two_waits_of_a_listener_is_heard() -> None:
    broadcast = ChangeBroadcast()

    async def scene() -> None:
        with broadcast.listen("7") as listener:
            for _ in range(2):
                broadcast.announce(("7",))  # while the listener looks at the job, and does not wait
                await asyncio.sleep(0)
                await listener.wait(60)

    asyncio.run(asyncio.wait_for(scene(), patience()))
    assert broadcast._waiting == {}


def test_a_listener_waits_for_nothing_when_the_daemon_leaves() -> None:
    broadcast = ChangeBroadcast()

    async def scene() -> None:
        with broadcast.listen() as listener:
            broadcast.leave()
            await listener.wait(60)
            await listener.wait(60)

    asyncio.run(asyncio.wait_for(scene(), patience()))
    assert broadcast._waiting == {}
