"""A caller's end: a connection for each thread, made over one control socket."""

import os
import socket
import threading

from runner.adapters.rpc.frames import MAX_ANSWER_BYTES, Disconnected, receive, send
from runner.base.errors import Unavailable


class Connections:
    """Connections to a process that serves calls; every thread may ask at the same time."""

    def __init__(self, control: socket.socket, gone: str) -> None:
        self._control = control
        self._gone = gone  # why nothing can be asked any more
        self._local = threading.local()

    def exchange(self, request: bytes, given: tuple[int, ...] = ()) -> tuple[bytes, list[int]]:
        """Send a request with descriptors, and return the answer with those of the answer.

        Raises:
            Unavailable: the other process has ended.
        """
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.connect()
        try:
            send(connection, request, *given)
            return receive(connection, MAX_ANSWER_BYTES)
        except (OSError, Disconnected) as error:
            self.close()
            raise Unavailable(self._gone) from error

    def close(self) -> None:
        """Close the connection of this thread; the next request makes another one."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            connection.close()

    def connect(self) -> socket.socket:
        """Return a new connection, which the caller closes; may raise Unavailable."""
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise Unavailable(f"{self._gone}: {os.strerror(error.errno or 0)}") from error
        return mine
