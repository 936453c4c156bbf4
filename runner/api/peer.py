"""Who is on the other end of the socket, from the kernel and not from the message."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request before its body: nobody can have the daemon collect headers for ever."""

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, at the time when it did."""

    pid: int
    uid: int
    gid: int


class PeerProtocol(HttpToolsProtocol):
    """HTTP over a Unix socket; ``scope["client"]`` carries the peer as ``("uid:gid", pid)``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows to Transport
        sock = transport.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(raw)
        self.client = (f"{uid}:{gid}", pid)
        self._head: int | None = None  # its bytes so far, while more of them are to come

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is None or self.transport.is_closing():
            return
        self._head += len(data)
        if self._head > MAX_HEAD_BYTES:
            self.send_400_response(f"The head of a request has {MAX_HEAD_BYTES} bytes at most.")


def peer_of(client: Any) -> Peer:  # noqa: ANN401  (starlette's Address, or None in its own tests)
    """Return the peer of a request's scope."""
    uid, _, gid = client.host.partition(":")
    return Peer(client.port, int(uid), int(gid))
