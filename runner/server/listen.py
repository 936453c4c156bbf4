"""The socket of the daemon and the HTTP server on it: how they begin, and how they end in order.

Signals only mark that the daemon is asked to stop; nothing is done inside of a handler.  What is answered on
the socket is in ``runner.server.api``.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from runner.base.errors import Unavailable
from runner.client.autostart import SYSTEM_SOCKET, use_socket_path
from runner.server.api.peer import PeerProtocol
from runner.server.api.sessions import MAX_MESSAGE_BYTES
from runner.server.leaving import StopDeadline

BACKLOG: Final = 1024
"""Connections that wait to be accepted: many clients may wait for a daemon that starts."""

GRACE_S: Final = 2.0
"""For answers that are under way when the daemon stops."""


class Server(uvicorn.Server):
    """An HTTP server that announces its shutdown, so that no client keeps it waiting.

    A client without an answer after ``GRACE_S`` is cut off, as by a daemon that died, and asks again.  The
    base class would answer that the server has failed, which ends a command.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        stopping: Callable[[], None],
        asked_to_stop: Callable[[], bool],
        reload: Callable[[], None],
        deadline: StopDeadline,
    ) -> None:
        super().__init__(config)
        self._reload = reload
        self._deadline = deadline
        self._stopping = stopping
        self._asked_to_stop = asked_to_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal to stop, and from when on the daemon has to end, though its loop may hang."""
        self._deadline.set()
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Serve, unless the daemon was asked to stop before the server could hear it."""
        if not self._asked_to_stop():
            if signal.getsignal(signal.SIGHUP) is _ignore:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, self._reload)
            await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        asyncio.get_running_loop().call_later(GRACE_S, self._cut_off)
        await super().shutdown(sockets)

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def server_of(
    app: FastAPI,
    stopping: Callable[[], None],
    asked_to_stop: Callable[[], bool],
    reload: Callable[[], None],
    deadline: StopDeadline,
) -> Server:
    """Return the HTTP server of an application, not started yet; ``reload`` is called after a SIGHUP."""
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        ws=_web_socket_protocol,  # type: ignore[arg-type]  # a function, so that a daemon starts without the package
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=None,  # a Unix socket tells when its other end has gone
        ws_per_message_deflate=False,
        loop="uvloop",
        lifespan="off",
        log_config=None,
        log_level="error",  # it warns of each request that is none, and anybody sends thousands a second
        access_log=False,
        proxy_headers=False,  # the caller is who the kernel says, whatever a header says
        timeout_graceful_shutdown=round(GRACE_S) + 1,
    )
    return Server(config, stopping, asked_to_stop, reload, deadline)


def catch_stop_signals(deadline: StopDeadline) -> Callable[[], bool]:
    """Return True if SIGTERM or SIGINT has arrived since this call, as a function.

    It counts while the daemon starts; the server has its own handlers, and raises its signals again here.
    """
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        deadline.set()
        arrived.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return lambda: bool(arrived)


def keep_from_hangup() -> None:
    """Ignore SIGHUP until the server reloads the settings on it; at a terminal, it still ends the daemon."""
    if not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, _ignore)


def _ignore(number: int, frame: object) -> None:
    """Do nothing.  Unlike ``SIG_IGN``, programs that the daemon starts do not inherit this."""
    del number, frame


def ask_to_stop() -> None:
    """Ask this daemon to stop, as a signal from outside would."""
    os.kill(os.getpid(), signal.SIGTERM)


def _web_socket_protocol(**given: Any) -> asyncio.Protocol:  # noqa: ANN401  as uvicorn gives it
    """Return the protocol of one WebSocket, made as uvicorn asks for it.

    It is loaded by the first session: the package ``websockets`` takes 50 ms, and most daemons need it never.
    """
    from runner.server.api.websocket import PeerWebSocket  # noqa: PLC0415  see above

    return PeerWebSocket(**given)


@contextmanager
def bound(path: Path, *, system_wide: bool) -> Iterator[socket.socket]:
    """Make a socket, for all users or for this one, where nobody is answered yet; a stale one is replaced.

    The caller holds the lock of the state directory, so no other daemon listens there.

    Raises:
        Unavailable: the socket cannot be made.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        use_socket_path(made.bind, str(path))
        path.chmod(0o666 if system_wide else 0o600)
    except OSError as error:
        made.close()
        raise Unavailable(f"{path}: cannot listen: {error.strerror or error}") from error
    with made:
        try:
            yield made
        finally:
            if str(path) != SYSTEM_SOCKET:  # its presence says that there is a daemon of all users
                with suppress(PermissionError):  # the helper of this process made it, and removes it
                    path.unlink(missing_ok=True)
