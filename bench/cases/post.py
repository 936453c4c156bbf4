"""The cost of a submission as one request over the socket, without a client process.

The request is sent on a fresh connection, as by every command of the client, and on a persistent one.  Jobs
queue behind a blocked one and are cancelled before the next request.  A read-only request shows the cost of
HTTP itself.
"""

import http.client
import json
import secrets
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from bench.support import interleave
from bench.support.daemon import BenchDaemon, running_daemon, socket_path
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Effort, Scratch

BENCH: Final = "post"
FRESH: Final = "POST /v1/jobs, a new connection each"
KEPT: Final = "POST /v1/jobs, one connection"
FLOOR: Final = "GET /v1/version"
AIM_MS: Final = 5.0
AIM_BEHIND_OTHERS: Final = 2.0
"""What a submission may cost behind a long queue, beside one into an empty queue."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the cost of one accepted job over the socket, with an empty queue and with a long one."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        daemon.block()
        file = daemon.write(job_text())
        with _PersistentConnection(socket_path(daemon.directory)) as kept:
            contestants = {
                FRESH: _time_submission(daemon, lambda: daemon.submit(file)),
                KEPT: _time_submission(daemon, lambda: kept.submit(file)),
                FLOOR: lambda: _time_question(daemon),
            }
            seconds = interleave.interleave(scratch.effort.posts, scratch.effort.warmups, contestants)
        waiting = f"{FRESH}, {scratch.effort.waiting} jobs waiting"
        late = _behind_others(daemon, file, scratch.effort, waiting)
    empty = in_milliseconds(f"{FRESH}, empty queue", seconds[FRESH])
    floor = in_milliseconds(FLOOR, seconds.pop(FLOOR))
    for name, values in seconds.items():
        yield Result(BENCH, in_milliseconds(name, values), floor, Aim(AIM_MS, "p50"))
    yield Result(BENCH, in_milliseconds(waiting, late[waiting]), in_milliseconds(FLOOR, late[FLOOR]))
    yield Result(BENCH, in_milliseconds(waiting, late[waiting]), empty, Aim(AIM_BEHIND_OTHERS, "ratio"))


def _time_submission(daemon: BenchDaemon, submit: Callable[[], str]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        job = submit()
        took = time.perf_counter() - began
        daemon.withdraw(job)
        return took

    return measure


def _time_question(daemon: BenchDaemon) -> float:
    began = time.perf_counter()
    daemon.client.version()
    return time.perf_counter() - began


def _behind_others(
    daemon: BenchDaemon, file: Path, effort: Effort, name: str
) -> dict[str, tuple[float, ...]]:
    """Return the figures with many waiting jobs: each turn of the daemon's loop visits all of them."""
    for job in [daemon.submit(file) for _ in range(effort.waiting)]:
        daemon.await_state(job, "queued")
    contestants = {
        name: _time_submission(daemon, lambda: daemon.submit(file)),
        FLOOR: lambda: _time_question(daemon),
    }
    return interleave.interleave(effort.posts, effort.warmups, contestants)


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
