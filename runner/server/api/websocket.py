"""WebSockets over a Unix socket; the peer is told as in ``runner.server.api.peer``."""

import asyncio

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.server.api.peer import PeerProtocol, client_of, peer_uid


class PeerWebSocket(WebSocketsSansIOProtocol):
    """``scope["client"]`` carries the peer as ``("uid:gid", pid)``; its connection counts until it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.client = client_of(transport)
        self._person = SUBORDINATE_IDS.person(peer_uid(self.client))

    def connection_lost(self, exc: Exception | None) -> None:
        PeerProtocol.forget_connection(self._person)
        super().connection_lost(exc)
