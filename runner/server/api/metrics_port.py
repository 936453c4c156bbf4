"""The metrics over TCP, for a collector that cannot read a Unix socket.

The port serves ``/metrics`` and nothing else.  Another program may have taken the port: the daemon starts
anyway, and tries again for as long as it serves.
"""

import asyncio
import socket
from errno import EADDRINUSE, EADDRNOTAVAIL
from typing import Any, Final

import structlog

from runner.base.errors import UsageError
from runner.base.retry import RETRY_S
from runner.base.threads import PeriodicThread
from runner.server.api.metrics import CONTENT_TYPE, MetricsCollector

log = structlog.get_logger()

TEMPORARY: Final = frozenset({EADDRINUSE, EADDRNOTAVAIL})
"""Errors that may pass: another program has the port, or the address is not configured yet."""

POLL_S: Final = 0.5  # between two looks at whether to stop
STOP_S: Final = 2.0  # for a response that is being made

CONNECTION_S: Final = 5.0
"""Longest life of a connection, however it spends the time."""

MAX_CONNECTIONS: Final = 16
"""Connections at a time; a new one takes the place of the oldest."""

HEAD: Final = "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"


class MetricsPort:
    """Serves the metrics over TCP on a thread of its own, as soon as the port can be taken."""

    def __init__(self, metrics: MetricsCollector, listen: str, retry_s: float = RETRY_S) -> None:
        """Try to take the port ``listen``, which is ``host:port``.

        Raises:
            UsageError: the port can never be taken.
        """
        self._metrics = metrics
        self._listen = listen
        self._retry_s = retry_s
        self._socket: socket.socket | None = None
        self._problem = ""  # as it was logged last
        self._open: dict[Any, None] = {}  # tasks, the oldest first
        self._thread = PeriodicThread("metrics", retry_s, self._round, begin_at_once=True)
        try:
            self._socket = self._bind()
        except (OSError, OverflowError) as error:
            if not (isinstance(error, OSError) and error.errno in TEMPORARY):
                raise UsageError(f"metrics.listen: {listen}: cannot listen: {error}") from error
            self._log_problem(str(error))

    @property
    def address(self) -> tuple[str, int] | None:
        """The address that it listens at; None until the port is taken."""
        if self._socket is None:
            return None
        host, port, *_ = self._socket.getsockname()
        return str(host), int(port)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to serve, and give the port back."""
        self._thread.stop()
        self._thread.join(STOP_S)
        if self._socket is not None:
            self._socket.close()

    def _bind(self) -> socket.socket:
        host, _, port = self._listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), int(port)), family=family)

    def _round(self) -> None:
        """Take the port if it can be had, and serve until the thread is stopped."""
        if self._socket is None:
            try:
                self._socket = self._bind()
            except OSError as error:
                self._log_problem(str(error))
                return
            log.info("metrics.listening", listen=self._listen)
        asyncio.run(self._serve(self._socket))

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._answer, sock=listening)
        while not self._thread.stopped:  # noqa: ASYNC110  (another thread stops it)
            await asyncio.sleep(POLL_S)
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request within its time."""
        this: Any = asyncio.current_task()
        if len(self._open) == MAX_CONNECTIONS:
            oldest, *_ = self._open
            del self._open[oldest]
            oldest.cancel()
        self._open[this] = None
        try:
            async with asyncio.timeout(CONNECTION_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(request.split()[1:2]))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.info("metrics.broken_off", client=str(writer.get_extra_info("peername")))
        finally:
            self._open.pop(this, None)
            writer.close()

    def _response(self, target: list[bytes]) -> bytes:
        if not target or target[0].partition(b"?")[0] != b"/metrics":
            return HEAD.format(status="404 Not Found", kind="text/plain", size=0).encode()
        body = self._metrics.text()
        return HEAD.format(status="200 OK", kind=CONTENT_TYPE, size=len(body)).encode() + body

    def _log_problem(self, problem: str) -> None:
        """Log why nobody listens, once for each reason."""
        if problem != self._problem:
            log.warning(
                "metrics.cannot_listen", listen=self._listen, problem=problem, again_in_s=self._retry_s
            )
        self._problem = problem
