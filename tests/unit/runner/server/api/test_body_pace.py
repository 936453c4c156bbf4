"""Bodies of one person are read as fast as the daemon can parse them beside other requests, and no faster."""

import asyncio

from runner.server.api.body_pace import BODIES_BYTES_PER_S, BURST_BYTES, BodyPace, PacedFlow


class Transport(asyncio.Transport):
    """A transport that knows whether it is read."""

    reading, closing = True, False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closing


def test_a_burst_is_read_at_once_and_what_is_beyond_it_waits() -> None:
    pace = BodyPace(at_s=100.0)
    assert pace.wait_s(BURST_BYTES, 100.0) == 0
    assert pace.wait_s(BODIES_BYTES_PER_S, 100.0) == 1.0
    assert pace.wait_s(BODIES_BYTES_PER_S, 101.0) == 1.0
    assert pace.wait_s(BODIES_BYTES_PER_S, 1000.0) == 0
    assert pace.wait_s(BURST_BYTES, 1000.0) == 1.0


def test_a_held_connection_is_not_read_though_the_application_asks_for_more() -> None:
    async def scene() -> None:
        transport = Transport()
        flow = PacedFlow(transport)
        flow.pause_reading()
        flow.hold()
        flow.resume_reading()
        assert not transport.is_reading()
        flow.release()
        assert transport.is_reading()
        flow.pause_reading()
        flow.hold()
        flow.release()
        assert not transport.is_reading()
        flow.resume_reading()
        assert transport.is_reading()

    asyncio.run(scene())


def test_a_connection_that_closes_is_not_read_again() -> None:
    async def scene() -> None:
        transport = Transport()
        flow = PacedFlow(transport)
        flow.hold()
        transport.closing = True
        flow.release()
        assert not transport.is_reading()

    asyncio.run(scene())
