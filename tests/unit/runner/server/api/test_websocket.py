"""Clients of WebSockets that send more than anybody takes, or take nothing."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from runner.server.api import websocket
from runner.server.api.peer import PeerProtocol
from runner.server.api.websocket import PeerWebSocket
from tests.fakes.patience import patience

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(application: Application, client: Talk) -> PeerWebSocket:
    """Have a client talk with an application once their handshake is done; return the daemon's half."""
    made: list[PeerWebSocket] = []

    class Made(PeerWebSocket):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            made.append(self)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        config = uvicorn.Config(
            application, http=PeerProtocol, ws=Made, lifespan="off", log_config=None, ws_ping_interval=None
        )
        config.load()
        loop, state = asyncio.get_running_loop(), uvicorn.server.ServerState()
        await loop.connect_accepted_socket(lambda: PeerProtocol(config, state, {}), theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        begin = ClientProtocol(parse_uri("ws://localhost/"))
        begin.send_request(begin.connect())
        writer.write(b"".join(begin.data_to_send()))
        async with asyncio.timeout(patience()):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            await client(reader, writer)
        writer.close()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    asyncio.run(main())
    return made[0]


async def accepts(receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return bytes(Frame(opcode, data, fin).serialize(mask=True))


async def end(reader: asyncio.StreamReader) -> None:
    """Return once the connection has ended."""
    with suppress(ConnectionError):
        while await reader.read(65536):
            continue


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG])
def test_who_sends_pings_or_pongs_without_end_is_cut_off(opcode: Opcode) -> None:
    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        assert (await receive())["type"] == "websocket.disconnect"

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(opcode) * (websocket.MAX_FRAMES + 1))
        await end(reader)

    talk(application, client)


def test_a_message_of_pieces_without_end_is_cut_off() -> None:
    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        assert (await receive())["type"] == "websocket.disconnect"

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces = frame(Opcode.CONT, fin=False) * (websocket.MAX_FRAMES + 1)
        writer.write(frame(Opcode.BINARY, fin=False) + pieces)
        await end(reader)

    talk(application, client)


def test_who_pings_now_and_then_is_never_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "FRAMES_S", 0.0)
    number = websocket.MAX_FRAMES + 1

    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        assert (await receive())["bytes"] == b"after"
        await send({"type": "websocket.send", "bytes": b"taken"})

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Opcode.PING) * number + frame(Opcode.BINARY, b"after"))
        pongs = await reader.readexactly(2 * number)
        assert pongs == b"\x8a\x00" * number
        assert (await reader.readexactly(7))[2:] == b"taken"

    talk(application, client)


def test_messages_that_nobody_takes_are_not_even_parsed() -> None:
    taken: list[bytes] = []
    sent = [os.urandom(5) for _ in range(20_000)]
    held: list[int] = []

    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        await asyncio.sleep(0.2)
        held.append(receive.__self__.queue.qsize())  # type: ignore[attr-defined]  # of the protocol
        while len(taken) < len(sent):
            taken.append((await receive())["bytes"])
        await send({"type": "websocket.send", "bytes": b"all"})

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frame(Opcode.BINARY, each) for each in sent))
        assert (await reader.readexactly(5))[2:] == b"all"

    talk(application, client)
    assert taken == sent
    assert held[0] <= websocket.PART_BYTES / 11  # one part, and a message has 11 bytes


def test_pings_of_a_client_that_reads_nothing_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_FRAMES", 10**9)
    written: list[int] = []
    arrived = asyncio.Event()

    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        assert (await receive())["bytes"] == b"after"
        arrived.set()
        written.append(receive.__self__.transport.get_write_buffer_size())  # type: ignore[attr-defined]
        await send({"type": "websocket.close", "code": 1000})

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(Opcode.PING, bytes(100)) * 40_000 + frame(Opcode.BINARY, b"after"))
        await writer.drain()
        await arrived.wait()
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        writer.write(frame(Opcode.CLOSE, b"\x03\xe8"))
        await end(reader)

    talk(application, client)
    assert written[0] < 128 * 1024


def test_a_close_behind_what_nobody_takes_is_answered_at_once() -> None:
    async def application(_scope: object, receive: Receive, send: Send) -> None:
        await accepts(receive, send)
        await receive()
        await send({"type": "websocket.close", "code": 1000})

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(Opcode.BINARY, bytes(1000)) * 100 + frame(Opcode.CLOSE, b"\x03\xe8"))
        await end(reader)

    made = talk(application, client)
    assert made.close_timer is None  # the connection did not have to wait for its limit
