"""What the composition root does by itself: it holds the state directory, and it leaves in order."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Event
from typing import IO, Any

import pytest
import uvicorn

from runner.base.broadcast import ChangeBroadcast
from runner.base.errors import Refused
from runner.client.autostart import LEAVE_LIMIT_S
from runner.files.settings.model import Settings
from runner.server import main as app
from runner.server.api import peer
from runner.server.api.peer import PeerProtocol

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@contextmanager
def holder(directory: Path, words: str) -> Iterator[IO[str]]:
    """Be another daemon that has the state directory, until the file is closed."""
    with (directory / "lock").open("w+") as file:
        flock(file, LOCK_EX)
        file.write(words)
        file.flush()
        yield file


@pytest.mark.parametrize("of_all", [False, True])
def test_only_a_daemon_of_all_users_leaves_its_socket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_all: bool
) -> None:
    """That tells the commands to wait for it, rather than to start others."""
    path = tmp_path / "runner.sock"
    if of_all:
        monkeypatch.setattr(app, "SYSTEM_SOCKET", str(path))
    for _ in range(2):  # the one that was left gives way
        with app._listening(path, Settings()):
            assert path.is_socket()
        assert path.exists() is of_all


def test_a_daemon_that_leaves_is_waited_for_and_its_state_is_taken_over(tmp_path: Path) -> None:
    waits: list[float] = []
    with holder(tmp_path, "123 leaving") as file:

        def goes_at_the_twentieth_look(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 20:
                file.close()

        with app._locked(tmp_path, goes_at_the_twentieth_look):
            assert (tmp_path / "lock").read_text().split() == [str(os.getpid())]
    assert len(waits) == 20


def test_a_daemon_that_stays_is_named_and_its_state_is_not_waited_for(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        holder(tmp_path, "123".ljust(20)),
        pytest.raises(Refused, match=r"another daemon \(pid 123\) has this state; runner stop ends it"),
        app._locked(tmp_path, waits.append),
    ):
        raise AssertionError
    assert sum(waits) < 1


def test_a_daemon_that_leaves_without_end_is_named_at_last(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        holder(tmp_path, "123 leaving"),
        pytest.raises(Refused, match=r"the daemon that leaves \(pid 123\) still has this state"),
        app._locked(tmp_path, waits.append),
    ):
        raise AssertionError
    assert sum(waits) == pytest.approx(LEAVE_LIMIT_S, abs=1)


def test_somebody_who_only_looks_whether_the_state_is_taken_does_not_turn_a_daemon_away(
    tmp_path: Path,
) -> None:
    with holder(tmp_path, "") as looks, app._locked(tmp_path, lambda _: looks.close()):
        assert looks.closed


# --- leaving


def answer_to(
    application: Callable[[Any, Receive, Send], Awaitable[None]], begun: Event, leaving: Callable[[], None]
) -> bytes:
    """Return what a client is sent whose question is being answered when the server is asked to leave."""
    ours, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        theirs.bind("")  # the kernel chooses a name
        theirs.listen()
        ours.settimeout(20)
        ours.connect(theirs.getsockname())
        ours.sendall(b"GET / HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n\r\n")
        config = uvicorn.Config(application, http=PeerProtocol, lifespan="off", log_config=None)
        server = app.Server(config, leaving)
        served = thread.submit(lambda: asyncio.run(server.serve(sockets=[theirs])))
        assert begun.wait(20)
        server.should_exit = True
        answer = ours.makefile("rb").read()
        served.result(20)
    return answer


def test_a_question_that_waits_is_answered_when_the_server_leaves() -> None:
    broadcast, begun = ChangeBroadcast(), Event()

    async def waits(_scope: object, _receive: Receive, send: Send) -> None:
        begun.set()
        await broadcast.wait(60)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    assert answer_to(waits, begun, broadcast.leave).startswith(b"HTTP/1.1 200 ")


def test_a_question_without_an_answer_in_time_is_cut_off_and_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "GRACE_S", 0)
    begun, cut = Event(), []

    async def hangs(_scope: object, receive: Receive, _send: Send) -> None:
        begun.set()
        await receive()
        cut.append((await receive())["type"])

    assert answer_to(hangs, begun, lambda: None) == b""
    assert cut == ["http.disconnect"]


def test_who_is_asked_to_leave_before_it_serves_does_not_begin() -> None:
    left: list[bool] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")
        listener.listen()
        config = uvicorn.Config(_nobody_asks, http=PeerProtocol, lifespan="off", log_config=None)
        server = app.Server(config, lambda: left.append(True), lambda: True)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(server.serve(sockets=[listener]))).result(20)
    assert left == [True]


async def _nobody_asks(_scope: object, _receive: Receive, _send: Send) -> None:
    raise AssertionError("nobody has connected")


# --- the protocol


def told(request: bytes) -> tuple[bytes, int]:
    """Return what a server answers to the beginning of a request, and how many its application was given."""
    calls: list[object] = []

    async def called(_scope: object, receive: Receive, send: Send) -> None:
        calls.append(1)
        while (await receive()).get("more_body"):
            continue
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def asked() -> bytes:
        ours, theirs = socket.socketpair()
        config = uvicorn.Config(called, http=PeerProtocol, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: PeerProtocol(config, state, {}), theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    return asyncio.run(asked()), len(calls)


CLOSING = b"GET / HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n"


def test_a_request_that_sends_headers_without_end_is_refused() -> None:
    answer, calls = told(CLOSING + b"X-Filler: 1234567\r\n" * 4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"The head of a request has 65536 bytes at most.")
    assert calls == 0


def test_a_request_of_many_headers_and_a_large_body_is_none_of_those() -> None:
    many = b"X-Filler: 1234567\r\n" * 3000
    answer, calls = told(CLOSING + many + b"Content-Length: 200000\r\n\r\n" + bytes(200_000))
    assert (answer[:13], calls) == (b"HTTP/1.1 204 ", 1)


def test_a_head_that_comes_in_one_piece_is_no_larger() -> None:
    answer, calls = told(CLOSING + b"X-Filler: " + b"1" * 70_000 + b"\r\n\r\n")
    assert answer.endswith(b"The head of a request has 65536 bytes at most.")
    assert calls == 0


def test_who_begins_a_request_and_does_not_go_on_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "HEAD_S", 0.01)
    assert told(b"GET /v1") == (b"", 0)
    assert told(b"") == (b"", 0)


def test_who_has_too_many_connections_is_turned_away_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_CONNECTIONS", 0)
    answer, calls = told(b"")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(f"uid {os.getuid()} has 0 connections already; end some".encode())
    assert calls == 0
    monkeypatch.setattr(peer, "MAX_CONNECTIONS", 1)
    assert told(CLOSING + b"\r\n")[1] == 1
    assert told(CLOSING + b"\r\n")[1] == 1  # those that have ended do not count


def test_what_is_no_request_is_refused() -> None:
    answer, calls = told(b"runner list\r\n\r\n")
    assert (answer[:13], calls) == (b"HTTP/1.1 400 ", 0)
