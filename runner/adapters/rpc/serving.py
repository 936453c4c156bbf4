"""A server's end: one thread for each connection takes one request at a time.

What is refused, and everything else that goes wrong, is an answer; only a connection that sends no frames is
ended.
"""

import socket
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import BoundedSemaphore, Thread
from typing import Any, Final

import structlog

from runner.adapters.rpc.calls import Calls
from runner.adapters.rpc.frames import (
    MAX_REQUEST_BYTES,
    Disconnected,
    close_all,
    receive,
    receive_part,
    send,
)
from runner.base.threads import run_to_future

MAX_CONNECTIONS: Final = 1024

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class CallServer:
    """Serves calls to some objects; ``targets`` as ``Calls.do`` takes them."""

    calls: Calls
    targets: Mapping[str, Any]
    name: str
    _free: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MAX_CONNECTIONS))

    def accept(self, control: socket.socket) -> None:
        """Serve every connection that comes in over a socket, until its other end is closed."""
        while True:
            packet, descriptors, _ = receive_part(control, 1, 1)
            for descriptor in descriptors:
                self._begin(socket.socket(fileno=descriptor))
            if not packet:
                return

    def _begin(self, connection: socket.socket) -> None:
        if not self._free.acquire(blocking=False):
            connection.close()
            return
        Thread(target=self._serve_one, args=(connection,), name=self.name, daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            self.serve(connection)
        finally:
            self._free.release()

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a connection until its other end is closed."""
        with connection, suppress(Disconnected, OSError):
            while True:
                self._answer(connection, *receive(connection, MAX_REQUEST_BYTES))

    def _answer(self, connection: socket.socket, content: bytes, descriptors: list[int]) -> None:
        done: Future[tuple[bytes, tuple[int, ...]]] = Future()
        try:
            run_to_future(done, partial(self.calls.do, self.targets, content, descriptors))
        finally:
            close_all(descriptors)
        error = done.exception()
        if error is not None:
            if not self.calls.errors.expects(error):
                log.error("rpc.failed", server=self.name, exc_info=error)
            send(connection, self.calls.errors.pack(error))
            return
        answer, given = done.result()
        try:
            send(connection, answer, *given)
        finally:
            close_all(list(given))
