"""Who is on the other end of the socket, from the kernel and not from the message."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, at the time when it did."""

    pid: int
    uid: int
    gid: int


class PeerProtocol(H11Protocol):
    """HTTP over a Unix socket; ``scope["client"]`` carries the peer as ``("uid:gid", pid)``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows to Transport
        sock = transport.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(raw)
        self.client = (f"{uid}:{gid}", pid)


def peer_of(client: Any) -> Peer:  # noqa: ANN401  (starlette's Address, or None in its own tests)
    """Return the peer of a request's scope."""
    uid, _, gid = client.host.partition(":")
    return Peer(client.port, int(uid), int(gid))
