"""The submission alone, without a program around it: one request over the socket.

On a fresh connection, which is what every command of the client opens, and on one that
stays open.  Jobs queue behind a blocked one and are cancelled before the next request; a
question that changes nothing shows what HTTP itself costs.
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

from bench.support import interleave as rounds
from bench.support.daemon import Stage, socket_of, stage
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Effort, Room

BENCH: Final = "post"
FRESH: Final = "POST /v1/jobs, a new connection each"
KEPT: Final = "POST /v1/jobs, one connection"
FLOOR: Final = "GET /v1/version"
AIM_MS: Final = 5.0


def measure(room: Room) -> Iterator[Line]:
    """Yield what one accepted job costs over the socket, into an empty queue and into a long one."""
    with stage(room.directory("stage")) as here:
        here.block()
        file = here.write(job_text())
        with _Kept(socket_of(here.directory)) as kept:
            contestants = {
                FRESH: _submitted(here, lambda: here.submit(file)),
                KEPT: _submitted(here, lambda: kept.submit(file)),
                FLOOR: lambda: _asked(here),
            }
            seconds = rounds.interleaved(room.effort.posts, room.effort.warmups, contestants)
        waiting = f"{FRESH}, {room.effort.waiting} jobs waiting"
        late = _behind_others(here, file, room.effort, waiting)
    floor = in_milliseconds(FLOOR, seconds.pop(FLOOR))
    for name, values in seconds.items():
        yield Result(BENCH, in_milliseconds(name, values), floor, Aim(AIM_MS, "p50"))
    yield Result(BENCH, in_milliseconds(waiting, late[waiting]), in_milliseconds(FLOOR, late[FLOOR]))


def _submitted(here: Stage, submit: Callable[[], str]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        job = submit()
        took = time.perf_counter() - began
        here.withdraw(job)
        return took

    return measure


def _asked(here: Stage) -> float:
    began = time.perf_counter()
    here.client.version()
    return time.perf_counter() - began


def _behind_others(here: Stage, file: Path, effort: Effort, name: str) -> dict[str, tuple[float, ...]]:
    """Measure again when many jobs wait: each turn of the daemon's loop looks at all of them."""
    for job in [here.submit(file) for _ in range(effort.waiting)]:
        here.await_state(job, "queued")
    contestants = {name: _submitted(here, lambda: here.submit(file)), FLOOR: lambda: _asked(here)}
    return rounds.interleaved(max(effort.posts // 3, 1), effort.warmups, contestants)


class _Kept(http.client.HTTPConnection):
    """A connection to a Unix socket, opened once and again if the server has let go of it."""

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
