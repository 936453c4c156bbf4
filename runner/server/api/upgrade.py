"""The protocol of a connection after its upgrade to a WebSocket.

It is loaded by the first session: the package ``websockets`` takes 50 ms, and most daemons need it never.
"""

import asyncio
from typing import Any


def web_socket_protocol(**given: Any) -> asyncio.Protocol:
    """Return the protocol of one WebSocket, made as uvicorn asks for it."""
    from runner.server.api.websocket import PeerWebSocket  # noqa: PLC0415  see above

    return PeerWebSocket(**given)
