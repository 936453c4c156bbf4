"""The user at the other end of the socket, as the kernel knows it and not as the request says.

No user can keep the daemon from answering others: the connections of each user are limited in number, and the
head of a request and its body in size and time.
"""

import asyncio
import json
import resource
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from threading import Event
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.errors import Unavailable
from runner.base.readable import readable_size

GONE: Final = "runner.gone"
"""The event in the scope of a request that is set when its connection has ended."""

MAX_HEAD_BYTES: Final = 64 * 1024
HEAD_S: Final = 30.0
"""Longest time in which a connection sends the head of a request."""

BODY_S: Final = 30.0
"""Longest time in which a request sends its body."""

UNREAD_S: Final = 60.0
"""Longest time for which a client leaves an answer unread that no buffer of the kernel takes."""

MAX_BODIES_BYTES: Final = 16 * 1024**2
"""Bodies that the daemon holds for the unanswered requests of one person."""

MAX_CONNECTIONS: Final = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
"""Connections of one person at a time; each command that follows a job holds one."""

MAX_PIPELINED: Final = 16
"""Requests of one connection that wait for the answer to an earlier one."""

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
    _bodies: ClassVar[Counter[int]] = Counter()  # bytes, by the uid of the person

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gone = Event()
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows to Transport
        self.client = client_of(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}  # each cuts the connection off
        self._body = 0  # bytes that the daemon holds for requests of this connection
        self._start_head()
        self._person = SUBORDINATE_IDS.person(peer_uid(self.client))
        self._connections[self._person] += 1
        if self._connections[self._person] > MAX_CONNECTIONS:
            self._refuse(f"uid {self._person} has {MAX_CONNECTIONS} connections already; end some")

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self.forget_connection(self._person)
        self._end(*self._timers)
        self._free_bodies()
        super().connection_lost(exc)

    @classmethod
    def forget_connection(cls, person: int) -> None:
        """Count a connection of a person no longer, by the uid: it has ended."""
        cls._connections[person] -= 1

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of WebSockets, which counts its end."""
        self._end(*self._timers)
        self._free_bodies()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(f"a connection has {MAX_PIPELINED} requests at most that wait for an earlier one")
            raise ValueError  # for the parser, which looks at no more
        super().on_message_begin()
        self.scope[GONE] = self._gone  # type: ignore[typeddict-unknown-key]  # for the threads of requests
        self._start_head()

    def on_headers_complete(self) -> None:
        self._end("head")
        size = len(self.url) + sum(len(name) + len(text) for name, text in self.headers)
        if size > MAX_HEAD_BYTES:
            self._head = size
            raise ValueError(_TOO_LARGE)  # for the parser, which has the request refused
        super().on_headers_complete()
        self._limit("body", BODY_S)

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        self._bodies[self._person] += len(body)
        if self._bodies[self._person] > MAX_BODIES_BYTES:
            fact = f"uid {self._person} sends more than {readable_size(MAX_BODIES_BYTES)} at a time"
            self._refuse(f"{fact}; try again")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._end("body")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._free_bodies()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit("unread", UNREAD_S)

    def resume_writing(self) -> None:
        self._end("unread")
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if "head" in self._timers and not self.transport.is_closing():
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self.send_400_response(_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():
            return  # it was refused
        super().send_400_response(_TOO_LARGE if self._head > MAX_HEAD_BYTES else msg)

    def _start_head(self) -> None:
        self._head = 0  # its bytes so far
        self._limit("head", HEAD_S)

    def _limit(self, what: str, seconds: float) -> None:
        """Cut the connection off unless ``_end`` is called for the same before."""
        self._end(what)
        self._timers[what] = asyncio.get_running_loop().call_later(seconds, self.transport.abort)

    def _end(self, *waits: str) -> None:
        for what in waits:
            if what in self._timers:
                self._timers.pop(what).cancel()

    def _free_bodies(self) -> None:
        """Count the bodies of this connection no longer: their request is answered."""
        self._bodies[self._person] -= self._body
        self._body = 0

    def _refuse(self, fact: str) -> None:
        if self.transport.is_closing():
            return
        head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        body = too_many(fact)
        self.transport.write(
            f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        )
        self.transport.close()


def too_many(fact: str) -> bytes:
    """Return the body of an answer with the status 429."""
    error = {"kind": "unavailable", "message": fact, "lines": [fact], "exit_code": Unavailable.exit_code}
    return json.dumps({"error": error}).encode()


def client_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Return the peer of a connection as a scope carries it: ``("uid:gid", pid)``."""
    sock = transport.get_extra_info("socket")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return f"{uid}:{gid}", pid


def peer_uid(client: tuple[str, int]) -> int:
    """Return the uid of a peer as a scope carries it."""
    return int(client[0].partition(":")[0])


def peer_of(client: Any) -> Peer:
    """Return the peer of a request's scope."""
    uid, _, gid = client.host.partition(":")
    return Peer(client.port, int(uid), int(gid))
