"""The cost of a submission as one request over the socket, without a client process.

The request is sent on a fresh connection, as by every command of the client, and on a persistent one.  Jobs
queue behind a blocked one and are cancelled before the next request.  A read-only request shows the cost of
HTTP itself.
"""

import http.client
import json
import secrets
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from bench.support import interleave
from bench.support.daemon import running_daemon, socket_path
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "post"
FRESH: Final = "POST /v1/jobs, a new connection each"
KEPT: Final = "POST /v1/jobs, one connection"
FLOOR: Final = "GET /v1/version"
AIM_MS: Final = 5.0


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the cost of one accepted job over the socket."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        daemon.block()
        file = daemon.write(job_text())
        with _PersistentConnection(socket_path(daemon.directory)) as kept:
            contestants = {
                FRESH: daemon.time_submission(lambda: daemon.submit(file)),
                KEPT: daemon.time_submission(lambda: kept.submit(file)),
                FLOOR: interleave.time_call(daemon.client.version),
            }
            seconds = interleave.interleave(scratch.effort.posts, scratch.effort.warmups, contestants)
    floor = in_milliseconds(FLOOR, seconds.pop(FLOOR))
    for name, values in seconds.items():
        yield Result(BENCH, in_milliseconds(name, values), floor, Aim(AIM_MS, "p50"))


class _PersistentConnection(http.client.HTTPConnection):
    """A connection to a Unix socket that is reopened if the server has closed it."""

    def __init__(self, path: Path) -> None:
        super().__init__("runner", timeout=30)
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def submit(self, file: Path) -> str:
        body = {
            "path": str(file),
            "text_b64": b64encode(file.read_bytes()).decode(),
            "token": secrets.token_hex(16),
        }
        self.request("POST", "/v1/jobs", json.dumps(body), {"Content-Type": "application/json"})
        answer = self.getresponse()
        content = json.loads(answer.read())
        if answer.status != http.client.CREATED:
            raise CannotMeasure(f"the daemon answered {answer.status} to a submission")
        return str(content["job"]["id"])
