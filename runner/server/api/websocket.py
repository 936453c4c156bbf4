"""WebSockets over a Unix socket; the peer is told as in ``runner.server.api.peer``.

What a client sends is parsed in small parts, between which everybody else has a turn, and only while the
messages before are taken.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.server.api.peer import PeerProtocol, client_of, peer_uid

PART_BYTES: Final = 4096
"""Bytes that are parsed at a time: frames without content have 6."""

MAX_FRAMES: Final = 1024
"""Pings, pongs and continued frames of a connection in a period; nobody paces them, as messages are."""

FRAMES_S: Final = 10.0
"""Period in which frames are counted."""


class PeerWebSocket(WebSocketsSansIOProtocol):
    """``scope["client"]`` carries the peer as ``("uid:gid", pid)``; its connection counts until it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = client_of(transport)
        self._person = SUBORDINATE_IDS.person(peer_uid(self.client))
        self._rest = bytearray()  # received, and not parsed yet
        self._turn: asyncio.Handle | None = None  # in which the next part is parsed
        self._frames, self._counted_s = 0, self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        PeerProtocol.forget_connection(self._person)
        self._rest.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_waiting = bool(self._rest)
        self._rest += data
        if not was_waiting:
            self._parse()

    async def receive(self) -> Any:
        message = await super().receive()
        self._go_on()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        self._go_on()

    def handle_ping(self) -> None:
        self._count()
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # an answer that nobody reads

    def handle_pong(self, event: Frame) -> None:
        self._count()
        super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        self._count()
        super().handle_cont(event)

    def _parse(self) -> None:
        """Parse one part."""
        self._turn = None
        if self.transport.is_closing():
            return
        part = bytes(self._rest[:PART_BYTES])
        super().data_received(part)
        del self._rest[:PART_BYTES]
        if self._rest:
            self._go_on()
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _go_on(self) -> None:
        """Read no more while there are parts; have the next one parsed as soon as that may be."""
        if not self._rest or self.transport.is_closing():
            return
        self.transport.pause_reading()
        if self._turn is None and not self.read_paused:
            self._turn = self.loop.call_soon(self._parse)

    def _count(self) -> None:
        """Cut off a connection that sends too many frames which are no messages."""
        now_s = self.loop.time()
        if now_s - self._counted_s > FRAMES_S:
            self._frames, self._counted_s = 0, now_s
        self._frames += 1
        if self._frames > MAX_FRAMES:
            self.transport.abort()
