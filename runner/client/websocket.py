"""One WebSocket over a connected socket, the client's half.

The packages for WebSockets take as long to import as a whole command runs.  This module therefore implements
the small part of RFC 6455 that a client of the daemon needs: no extensions, no fragments of its own, and no
proof that the server has understood the handshake, because no cache or proxy stands on a Unix socket.
"""

import json
import os
import socket
from binascii import b2a_base64
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from runner.client.http import MAX_HEAD_BYTES, parse_head

TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
READ_BYTES: Final = 256 * 1024
FINAL: Final = 0x80
MASKED: Final = 0x80
TWO_BYTES, EIGHT_BYTES = 126, 127  # lengths that stand in as many further bytes


class DaemonMessage(NamedTuple):
    """A message of the daemon: binary, or text with JSON."""

    kind: int
    content: bytes

    def json(self) -> dict[str, Any]:
        """Return the object of a text message."""
        answer: dict[str, Any] = json.loads(self.content)
        return answer


class Rejected(Exception):
    """The daemon did not upgrade the connection."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class WebSocket:
    """A connection that has been upgraded, and has no limit of time then; reads block.

    What the daemon does not take at once is sent later: whoever waited for that with a command that waits for
    its output to be read would wait for ever.  While a session is behind, its user waits until it can be
    written, calls ``flush``, and gives it nothing more.
    """

    def __init__(self, connection: socket.socket, target: str) -> None:
        """Upgrade a fresh connection.

        Raises:
            Rejected: the daemon answered otherwise.
            OSError: the connection broke.
        """
        self._connection = connection
        self._buffer = bytearray()
        self._parts = bytearray()
        self._unsent = bytearray()
        key = b2a_base64(os.urandom(16), newline=False).decode()
        connection.sendall(
            f"GET {target} HTTP/1.1\r\nHost: runner\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode("ascii")
        )
        self._upgrade()

    def _upgrade(self) -> None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES or not self._fill():
                raise OSError("the daemon stopped before it answered")
        status, _ = parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        if status != 101:
            while self._fill():
                continue
            raise Rejected(status, bytes(self._buffer))

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    @property
    def is_behind(self) -> bool:
        """True: the daemon has not taken all that was sent."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what the daemon takes now; a daemon that has gone takes all, and the next read says so."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()

    def send(self, content: bytes) -> None:
        """Send bytes."""
        self._send(BINARY, content)

    def say(self, message: object) -> None:
        """Send a JSON object."""
        self._send(TEXT, json.dumps(message).encode())

    def _send(self, kind: int, content: bytes) -> None:
        size = len(content)
        if size < TWO_BYTES:
            head = bytes((FINAL | kind, MASKED | size))
        elif size < 2**16:
            head = bytes((FINAL | kind, MASKED | TWO_BYTES)) + size.to_bytes(2, "big")
        else:
            head = bytes((FINAL | kind, MASKED | EIGHT_BYTES)) + size.to_bytes(8, "big")
        key = os.urandom(4)
        self._unsent += head + key + _masked(content, key)
        self.flush()

    def receive(self) -> Iterator[DaemonMessage]:
        """Read once from the connection, and yield the messages that are complete then.

        Raises:
            EOFError: the daemon has closed the connection.
            OSError: the connection broke.
        """
        has_come = self._fill()
        yield from self.pending()
        if not has_come:
            raise EOFError("the daemon stopped")

    def pending(self) -> Iterator[DaemonMessage]:
        """Yield the messages that have been read already, perhaps together with the answer to the upgrade."""
        while (frame := self._next_frame()) is not None:
            kind, is_final, content = frame
            if kind == CLOSE:
                raise EOFError("the daemon closed the session")
            if kind == PING:
                self._send(PONG, content)
                continue
            if kind == PONG:
                continue
            if kind:
                self._kind = kind
            self._parts += content
            if is_final:
                message = DaemonMessage(self._kind, bytes(self._parts))
                self._parts.clear()
                yield message

    def _fill(self) -> bool:
        chunk = self._connection.recv(READ_BYTES)
        self._buffer += chunk
        return bool(chunk)

    def _next_frame(self) -> tuple[int, bool, bytes] | None:
        """Return and remove the next whole frame: its kind, whether it ends a message, its content."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, begin = buffer[1] & 0x7F, 2
        if size == TWO_BYTES:
            size, begin = int.from_bytes(buffer[2:4], "big"), 4
        elif size == EIGHT_BYTES:
            size, begin = int.from_bytes(buffer[2:10], "big"), 10
        if len(buffer) < begin + size:
            return None
        frame = buffer[0] & 0x0F, bool(buffer[0] & FINAL), bytes(buffer[begin : begin + size])
        del buffer[: begin + size]
        return frame


def _masked(content: bytes, key: bytes) -> bytes:
    """Return content masked with a key of four bytes."""
    size = len(content)
    whole = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(content, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
