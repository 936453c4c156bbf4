"""Figures over TCP, for a monitoring system that reads no Unix socket.

The port knows no other question, and shows no names of jobs or of people.  Any user of the machine may have
taken it: that keeps no job from running, and it is tried again for as long as the daemon serves.
"""

from dataclasses import dataclass, field
from errno import EADDRINUSE, EADDRNOTAVAIL
from http.server import BaseHTTPRequestHandler
from socket import AF_INET6
from socketserver import TCPServer
from threading import Event, Thread
from typing import Any, ClassVar, Final

import structlog

from runner.base.errors import UsageError
from runner.base.retry import RETRY_S
from runner.server.api.exposition import CONTENT_TYPE
from runner.server.api.metrics import MetricsPage

log = structlog.get_logger()

PASSING: Final = frozenset({EADDRINUSE, EADDRNOTAVAIL})
"""What may be otherwise in a moment: another program has the port, or the address is not there yet."""

POLL_S: Final = 0.5  # between two looks whether to leave, while nobody asks anything
LEAVE_S: Final = 2.0  # for an answer that is on its way; a client that dawdles keeps no daemon from leaving


class _Server(TCPServer):
    """One question at a time, and none for long."""

    allow_reuse_address = True
    timeout: float | None = POLL_S
    figures: MetricsPage

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  socketserver's own
        del request
        log.info("metrics.broken_off", client=str(client_address))


class _Exchange(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = 5.0  # a client that says nothing keeps the others waiting

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        assert isinstance(self.server, _Server)  # noqa: S101  (it is made below)
        body = self.server.figures.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's own name
        """Stay silent: a scrape every few seconds is no news."""


@dataclass(slots=True)
class MetricsPort:
    """Gives figures over TCP, on a thread of its own; where the port cannot be had yet, as soon as it can."""

    figures: MetricsPage
    listen: str  # host:port
    again_s: float = RETRY_S
    _server: _Server | None = None
    _problem: str = ""  # why nobody listens, as it was last said
    _leaving: Event = field(default_factory=Event)
    _thread: Thread | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens; None while it cannot."""
        if self._server is None:
            return None
        host, port, *_ = self._server.server_address
        return str(host), int(port)

    def take(self) -> None:
        """Take the port, if it can be had just now; that it cannot is said once.

        Raises:
            OSError, OverflowError: it never can.
        """
        try:
            self._server = _listening(self.listen, self.figures)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self._waits(str(error))

    def start(self) -> None:
        self._thread = Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Listen no more, and try no more to."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        elif self._server is not None:
            self._server.server_close()

    def _run(self) -> None:
        while self._server is None and not self._leaving.wait(self.again_s):
            self._take_again()
        if self._server is None:
            return
        with self._server as server:
            while not self._leaving.is_set():
                server.handle_request()

    def _take_again(self) -> None:
        """Try once more: what could be had later when the daemon started is never given up."""
        try:
            self.take()
        except OSError as error:
            self._waits(str(error))
        if self._server is not None:
            log.info("metrics.listening", listen=self.listen)

    def _waits(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("metrics.cannot_listen", listen=self.listen, problem=problem, again_in_s=self.again_s)
        self._problem = problem


def over_tcp(figures: MetricsPage, listen: str, again_s: float = RETRY_S) -> MetricsPort:
    """Return a server at ``host:port`` that is not started yet.

    An address that is in use, or not there yet, is tried again every ``again_s`` once it has started.

    Raises:
        UsageError: nobody can ever listen there.
    """
    made = MetricsPort(figures, listen, again_s)
    try:
        made.take()
    except (OSError, OverflowError) as error:
        raise UsageError(f"metrics.listen: {listen}: cannot listen: {error}") from error
    return made


def _listening(listen: str, figures: MetricsPage) -> _Server:
    host, _, port = listen.rpartition(":")
    kind = type("_Server6", (_Server,), {"address_family": AF_INET6}) if ":" in host else _Server
    made: _Server = kind((host.strip("[]"), int(port)), _Exchange)
    made.figures = figures
    return made
