"""Limits of one person in a second."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from runner.agent.attempts.inside import NO_PYTHON
from runner.base.errors import Refused, Unavailable
from runner.files.settings.model import Settings
from runner.server.api import limits, sessions
from runner.server.api.limits import BURST_S, LONGEST_WAIT_S, REQUESTS_BURST_S, Pace, RequestLimit
from runner.server.api.sessions import (
    CONTROL_BYTES,
    LONGEST_POLL_S,
    MAX_SAID_BYTES,
    MESSAGE_BYTES,
    AttachBody,
    SessionRoutes,
    _await_ready,
    _NoPythonError,
)
from runner.server.api.threads import of_person
from runner.services.context import Caller

ANN, BOB = os.geteuid() + 1, os.geteuid() + 2


class Now:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


class Gate:
    """A limit before an application that answers everything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_s: float | None) -> None:
        self.now, self.served = Now(), 0
        monkeypatch.setattr(limits, "Pace", lambda burst_s=BURST_S: Pace(burst_s, self.now))
        monkeypatch.setattr(asyncio, "sleep", self._sleep)
        self.limit = RequestLimit(self._serve, lambda: Settings(requests_per_s=per_s))
        self.slept: list[float] = []

    async def _sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)

    async def _serve(self, *_: object) -> None:
        self.served += 1

    def ask(self, uid: int, kind: str = "http") -> list[MutableMapping[str, Any]]:
        """Return the answer in place of the application."""
        said: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            said.append(message)

        async def receive() -> None:
            return

        asyncio.run(self.limit({"type": kind, "client": (f"{uid}:{uid}", 1)}, receive, send))
        return said


def test_who_asks_too_often_waits_and_is_refused_in_the_end_and_nobody_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch, 2.0)
    answers = [gate.ask(ANN) for _ in range(100)]
    assert gate.served == 2 * (REQUESTS_BURST_S + LONGEST_WAIT_S) + 1
    assert gate.slept[: gate.served + 1] == [0] * int(2 * REQUESTS_BURST_S + 1) + [0.5, 1.0, LONGEST_WAIT_S]
    head, body = answers[-1]
    assert head["status"] == 429
    assert dict(head["headers"])[b"retry-after"] == b"2"
    error = json.loads(body["body"])["error"]
    assert error["message"] == f"uid {ANN} asks more than 2 times a second (requests_per_s); try again"
    assert gate.ask(BOB) == []
    gate.now.s += 1
    assert [bool(gate.ask(ANN)) for _ in range(3)] == [False, False, True]


def test_a_session_of_who_asks_too_often_begins_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, 2.0)
    for _ in range(int(2 * (REQUESTS_BURST_S + LONGEST_WAIT_S) + 10)):
        gate.ask(ANN)
    served = gate.served
    assert gate.ask(ANN, "websocket") == []
    assert gate.served == served + 1
    assert gate.slept[-1] == 1.5


@pytest.mark.parametrize(("uid", "per_s"), [(os.geteuid(), 2.0), (ANN, None)])
def test_the_own_user_of_the_daemon_or_all_have_no_limit(
    monkeypatch: pytest.MonkeyPatch, uid: int, per_s: float | None
) -> None:
    gate = Gate(monkeypatch, per_s)
    assert [gate.ask(uid) for _ in range(100)] == [[]] * 100


def test_what_was_not_taken_for_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KNOWN", 3)
    now = Now()
    pace = Pace(clock=now)
    for person in range(3):
        pace.take(person, 10, 10)
    now.s += 2
    pace.take(3, 10, 10)
    assert set(pace._due) == {3}
    pace.take(3, 1000, 10)
    assert pace.wait_s(3) == pytest.approx(101 - BURST_S)


class Talks:
    """A command that writes without end, and is its own client."""

    def __init__(self, uid: int, size: int = 1024) -> None:
        self.client = SimpleNamespace(host=f"{uid}:{uid}", port=1)
        self.size, self.sent = size, 0

    async def outputs(self) -> AsyncIterator[tuple[int, bytes]]:
        for _ in range(20):
            yield 1, bytes(self.size)

    async def send_bytes(self, content: bytes) -> None:
        self.sent += len(content) - 1

    async def receive(self) -> Any:
        return await asyncio.Event().wait()

    async def exit_code(self) -> int:
        return 0


@pytest.mark.parametrize(("uid", "limited"), [(ANN, True), (os.geteuid(), False)])
def test_the_bytes_of_a_session_wait_once_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch, uid: int, *, limited: bool
) -> None:
    gate = Gate(monkeypatch, None)
    service: Any = SimpleNamespace(settings=Settings(session_bytes_per_s=1024))
    nothing: Any = None
    routes = SessionRoutes(service, nothing, nothing, nothing, limits.Pace())
    talks: Any = Talks(uid)
    assert asyncio.run(routes._relay(talks, talks)) == 0
    assert talks.sent == 20 * 1024
    assert sum(map(bool, gate.slept)) == (20 - BURST_S if limited else 0)


def routes_of_a_kilobyte_a_second() -> SessionRoutes:
    service: Any = SimpleNamespace(settings=Settings(session_bytes_per_s=1024))
    nothing: Any = None
    return SessionRoutes(service, nothing, nothing, nothing, limits.Pace())


def test_messages_without_a_byte_wait_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, None)
    talks: Any = Talks(ANN, size=0)
    assert asyncio.run(routes_of_a_kilobyte_a_second()._relay(talks, talks)) == 0
    assert sum(map(bool, gate.slept)) == 20 - BURST_S * 1024 / MESSAGE_BYTES


@pytest.mark.parametrize("text", ["{}", '{"signal": "WINCH"}', '{"size": {}}', "{" + " " * 100_000 + "}"])
def test_messages_of_text_wait_as_well(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    gate = Gate(monkeypatch, None)
    messages = [{"type": "websocket.receive", "text": text}] * 20 + [{"type": "websocket.disconnect"}]

    class Controls(Talks):
        async def receive(self) -> Any:
            return messages.pop(0)

        async def resize(self, size: object) -> None: ...

        async def signal(self, number: int) -> None: ...

    controls: Any = Controls(ANN)
    with pytest.raises(WebSocketDisconnect):
        asyncio.run(routes_of_a_kilobyte_a_second()._incoming(controls, controls))
    assert gate.slept[-1] == 20 * max(len(text), CONTROL_BYTES) / 1024 - BURST_S


class Floods:
    """A program of the runner into whose output the job writes without end."""

    def __init__(self) -> None:
        self.taken = 0

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        while self.taken < 100:
            self.taken += 1
            yield 1, b"x" * 64 * 1024

    async def exit_code(self) -> int:
        raise AssertionError("it runs on")


def test_a_job_that_writes_before_a_program_of_the_runner_is_ready_fills_no_memory() -> None:
    floods: Any = Floods()
    session: Any = SimpleNamespace(row=SimpleNamespace(job=SimpleNamespace(id="j-1")))
    with pytest.raises(Unavailable, match=r"^job j-1: nothing was started: x+$") as caught:
        asyncio.run(_await_ready(floods, session))
    assert floods.taken == 1
    assert len(str(caught.value)) < 3 * MAX_SAID_BYTES


@pytest.mark.parametrize(("code", "kind"), [(NO_PYTHON, _NoPythonError), (1, Unavailable)])
def test_a_program_of_the_runner_that_ends_at_once_is_told_by_its_last_line(
    code: int, kind: type[Unavailable]
) -> None:
    class Ends(Floods):
        async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
            yield 2, b"Traceback:\n"
            yield 2, b"no room\n"

        async def exit_code(self) -> int:
            return code

    ends: Any = Ends()
    session: Any = SimpleNamespace(row=SimpleNamespace(job=SimpleNamespace(id="j-1")))
    with pytest.raises(Unavailable, match=r"^job j-1: nothing was started: no room$") as caught:
        asyncio.run(_await_ready(ends, session))
    assert type(caught.value) is kind


def test_a_client_that_waits_long_for_a_terminal_makes_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(20))

    class NoTerminal:
        def __init__(self, _: object) -> None: ...

        def find(self, *_: object) -> None: ...

        def choose_terminal(self, *_: object) -> str:
            if next(looks) < 19:
                raise Refused("no such terminal")
            return "main"

    gate = Gate(monkeypatch, None)
    monkeypatch.setattr(sessions, "SessionService", NoTerminal)
    waiting = routes_of_a_kilobyte_a_second()._await_terminal(Caller(ANN, ANN), "j-1", AttachBody(wait_s=60))
    with of_person(ANN):
        assert asyncio.run(waiting) == "main"
    assert gate.slept[4:] == [LONGEST_POLL_S] * 15
