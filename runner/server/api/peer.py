"""The user at the other end of the socket, as the kernel knows it and not as the request says.

No user can keep the daemon from answering others: the connections of each user are limited in number, and the
head of a request in size and time.
"""

import asyncio
import resource
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runner.adapters.host.users import SUBORDINATE_IDS

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_S: Final = 30.0
"""How long a connection may take to send the head of a request."""

MAX_CONNECTIONS: Final = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Connections of one person at a time; each command that follows a job holds one."""

_TOO_LARGE: Final = f"The head of a request has {MAX_HEAD_BYTES} bytes at most."

_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as it was when it connected."""

    pid: int
    uid: int
    gid: int


class PeerProtocol(HttpToolsProtocol):
    """HTTP over a Unix socket; ``scope["client"]`` carries the peer as ``("uid:gid", pid)``."""

    _connections: ClassVar[Counter[int]] = Counter()  # by the uid of the person

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows to Transport
        sock = transport.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, self._uid, gid = _UCRED.unpack(raw)
        self.client = (f"{self._uid}:{gid}", pid)
        self._timer: asyncio.TimerHandle | None = None
        self._start_head()
        self._person = SUBORDINATE_IDS.person(self._uid)
        self._connections[self._person] += 1
        if self._connections[self._person] > MAX_CONNECTIONS:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections[self._person] -= 1
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        size = len(self.url) + sum(len(name) + len(text) for name, text in self.headers)
        if size > MAX_HEAD_BYTES:
            self._head = size
            raise ValueError(_TOO_LARGE)  # for the parser, which has the request refused
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None and not self.transport.is_closing():
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self.send_400_response(_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(_TOO_LARGE if self._head > MAX_HEAD_BYTES else msg)

    def _start_head(self) -> None:
        self._end_head()
        self._head = 0  # its bytes so far
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.transport.abort)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        fact = f"uid {self._person} has {MAX_CONNECTIONS} connections already; end some".encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-length: {len(fact)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + fact)
        self.transport.close()


def peer_of(client: Any) -> Peer:  # noqa: ANN401  (starlette's Address, or None in its own tests)
    """Return the peer of a request's scope."""
    uid, _, gid = client.host.partition(":")
    return Peer(client.port, int(uid), int(gid))
