"""A server inside of a job, and what answers through a forwarded port."""

import http.client
import re
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.fakes.daemon.service import RUNNER, Service
from tests.fakes.patience import patience

SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"inside " + self.path.encode() + b"x" * 300000
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer)
print("ready", flush=True)
server.serve_forever()
"""


@contextmanager
def forwarding(daemon: Service, job: str, ports: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Type ``runner forward`` and yield it with its port of this machine."""
    with subprocess.Popen(
        [*RUNNER, "forward", job, ports],
        env=daemon.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            assert command.stdout is not None
            line = command.stdout.readline()
            match = re.match(r"127\.0\.0\.1:([0-9]+) leads to port [0-9]+ of ", line)
            assert match, (line, command.stderr.read() if command.stderr else "")
            yield command, int(match[1])
        finally:
            command.terminate()


def fetch(port: int, path: str) -> bytes:
    """Return the answer of an HTTP server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience())
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def sockets(place: Path) -> list[str]:
    """Return the names of the sockets that a job holds."""
    return [each.name for each in place.iterdir()] if place.exists() else []


def free_port() -> int:
    """Return a port of the loopback at which nobody listens.

    The kernel gives it to nobody until it is used: it is below those that it gives to whoever names none.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
