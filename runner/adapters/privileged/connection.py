"""The daemon's end of the connection to its helper; each thread has one of its own."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from runner.adapters.privileged.answers import unpack
from runner.adapters.privileged.messages import Message, OpenBroker, Watch
from runner.adapters.rpc.frames import MAX_ANSWER_BYTES, Disconnected, close_all, receive, send
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread

GONE = "the helper of the daemon has ended"

JOIN_S: Final = 10.0
"""How long the end of a watch waits for its thread."""


class HelperConnection:
    """Asks the helper; every thread may ask at the same time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._local = threading.local()

    def ask(self, request: Message, *given: int) -> Any:  # noqa: ANN401  (JSON)
        """Return the value of the helper's answer; ``given`` are descriptors that the request needs.

        Raises:
            Exception: what the helper's work has raised.
            Unavailable: the helper has ended.
        """
        value, descriptors = self._ask(request, *given)
        close_all(descriptors)
        return value

    def open(self, request: Message, *directory: int) -> int:
        """Return the descriptor of the helper's answer, which belongs to the caller.

        Raises:
            Exception: what the helper's work has raised.
            Unavailable: the helper has ended.
        """
        _, descriptors = self._ask(request, *directory)
        descriptor, *others = descriptors
        close_all(others)
        return descriptor

    def open_broker(self) -> socket.socket:
        """Return a socket to a process that opens files with the rights of users."""
        return socket.socket(fileno=self.open(OpenBroker()))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` on a thread whenever an attempt may have changed; return how to end that."""
        connection = self.connect()
        with ExitStack() as unless_watched:
            unless_watched.callback(connection.close)
            try:
                send(connection, Watch().model_dump_json().encode())
                unpack(receive(connection, MAX_ANSWER_BYTES)[0])  # the helper watches now, or says why not
            except (OSError, Disconnected) as error:
                raise Unavailable(GONE) from error
            unless_watched.pop_all()

        def listen() -> None:
            try:
                receive(connection, MAX_ANSWER_BYTES)
            except Disconnected:
                thread.stop()
                return
            wake()

        thread = PeriodicThread("helper-events", 0.0, listen, begin_at_once=True)

        def stop() -> None:
            thread.stop()
            connection.shutdown(socket.SHUT_RDWR)
            thread.join(JOIN_S)
            connection.close()

        thread.start()
        return stop

    def close(self) -> None:
        """Close the connection of this thread; the next request makes another one."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            connection.close()

    def _ask(self, request: Message, *descriptors: int) -> tuple[Any, list[int]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.connect()
        try:
            send(connection, request.model_dump_json().encode(), *descriptors)
            content, found = receive(connection, MAX_ANSWER_BYTES)
        except (OSError, Disconnected) as error:
            self.close()
            raise Unavailable(GONE) from error
        with ExitStack() as unless_answered:
            unless_answered.callback(close_all, found)
            answer = unpack(content)
            unless_answered.pop_all()
        return answer, found

    def connect(self) -> socket.socket:
        """Return a new connection, which the caller closes.

        Raises:
            Unavailable: the helper has ended.
        """
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"c"], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise Unavailable(f"{GONE}: {os.strerror(error.errno or 0)}") from error
        return mine
