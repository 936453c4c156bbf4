"""The metrics over TCP, for a collector that cannot read a Unix socket.

The port serves ``/metrics`` and nothing else.  Another program may have taken the port: the daemon starts
anyway, and tries again for as long as it serves.
"""

from contextlib import suppress
from errno import EADDRINUSE, EADDRNOTAVAIL
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Timer
from typing import Any, Final

import structlog

from runner.base.errors import UsageError
from runner.base.retry import RETRY_S
from runner.base.threads import PeriodicThread
from runner.server.api.metrics import CONTENT_TYPE, MetricsCollector

log = structlog.get_logger()

TEMPORARY: Final = frozenset({EADDRINUSE, EADDRNOTAVAIL})
"""Errors that may pass: another program has the port, or the address is not configured yet."""

POLL_S: Final = 0.5  # between two looks at whether to stop, while no request comes
STOP_S: Final = 2.0  # for a response that is being sent; a slow client does not keep the daemon from stopping


CONNECTION_S: Final = 5.0
"""How long a connection may take in all, however it spends the time."""

MAX_CONNECTIONS: Final = 16
"""Connections at a time."""


class _Server(ThreadingMixIn, TCPServer):
    """Serves a few connections at a time, each for a few seconds; a new one takes the place of the oldest."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    timeout: float | None = POLL_S

    def __init__(self, listen: str, metrics: MetricsCollector) -> None:
        host, _, port = listen.rpartition(":")
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.metrics = metrics
        self._open: dict[socket, Timer] = {}  # the oldest first
        self._lock = Lock()
        super().__init__((host.strip("[]"), int(port)), _RequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        deadline = Timer(CONNECTION_S, _cut_off, (request,))
        deadline.daemon = True
        with self._lock:
            for oldest in list(self._open)[: max(0, len(self._open) - MAX_CONNECTIONS + 1)]:
                _cut_off(oldest)
            self._open[request] = deadline
        deadline.start()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            deadline = self._open.pop(request, None)
        if deadline is not None:
            deadline.cancel()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.info("metrics.broken_off", client=str(client_address))


class _RequestHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        assert isinstance(self.server, _Server)  # noqa: S101  (it is made above)
        body = self.server.metrics.text()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's own name
        """Log nothing: a scrape comes every few seconds."""


def _cut_off(connection: socket) -> None:
    """End a connection, whose thread then finds it closed."""
    with suppress(OSError):  # it has ended already
        connection.shutdown(SHUT_RDWR)


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
        self._server: _Server | None = None
        self._problem = ""  # as it was logged last
        self._thread = PeriodicThread("metrics", self._wait_s, self._round, begin_at_once=True)
        try:
            self._bind()
        except (OSError, OverflowError) as error:
            if not (isinstance(error, OSError) and error.errno in TEMPORARY):
                raise UsageError(f"metrics.listen: {listen}: cannot listen: {error}") from error
            self._log_problem(str(error))

    @property
    def address(self) -> tuple[str, int] | None:
        """The address that it listens at; None until the port is taken."""
        if self._server is None:
            return None
        host, port, *_ = self._server.server_address
        return str(host), int(port)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop to serve, and give the port back."""
        self._thread.stop()
        self._thread.join(STOP_S)
        if self._server is not None:
            self._server.server_close()

    def _wait_s(self) -> float:
        """Return the wait before the next round: none while the server listens."""
        return self._retry_s if self._server is None else 0.0

    def _round(self) -> None:
        """Serve one request, or try to take the port."""
        if self._server is not None:
            self._server.handle_request()
            return
        try:
            self._bind()
        except OSError as error:
            self._log_problem(str(error))
        else:
            log.info("metrics.listening", listen=self._listen)

    def _bind(self) -> None:
        self._server = _Server(self._listen, self._metrics)

    def _log_problem(self, problem: str) -> None:
        """Log why nobody listens, once for each reason."""
        if problem != self._problem:
            log.warning(
                "metrics.cannot_listen", listen=self._listen, problem=problem, again_in_s=self._retry_s
            )
        self._problem = problem
