"""Figures over TCP, for a monitoring system that reads no Unix socket.

The port knows no other question, and shows no names of jobs or of people.
"""

from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socket import AF_INET6
from socketserver import TCPServer
from threading import Thread
from typing import Any, ClassVar

import structlog

from runner.api.figures import Figures
from runner.errors import UsageError
from runner.telling.exposition import CONTENT_TYPE

log = structlog.get_logger()


class _Server(TCPServer):
    """One question at a time, and none for long."""

    allow_reuse_address = True
    figures: Figures

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
class TcpFigures:
    """Gives figures over TCP, on a thread of its own."""

    server: _Server

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port, *_ = self.server.server_address
        return str(host), int(port)

    def start(self) -> None:
        Thread(target=self.server.serve_forever, name="metrics", daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def over_tcp(figures: Figures, listen: str) -> TcpFigures:
    """Return a server at ``host:port`` that is not started yet.

    Raises:
        UsageError: nobody can listen there.
    """
    host, _, port = listen.rpartition(":")
    try:
        server = _listening(host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise UsageError(f"metrics.listen: {listen}: cannot listen: {error}") from error
    server.figures = figures
    return TcpFigures(server)


def _listening(host: str, port: int) -> _Server:
    kind = type("_Server6", (_Server,), {"address_family": AF_INET6}) if ":" in host else _Server
    made: _Server = kind((host, port), _Exchange)
    return made
