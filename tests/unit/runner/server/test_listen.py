"""The socket and the server on it begin and end in order."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from runner.base.broadcast import ChangeBroadcast
from runner.server import listen
from runner.server.api.peer import PeerProtocol
from runner.server.leaving import StopDeadline
from runner.server.listen import Server, bound, server_of
from tests.fakes.patience import patience

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@pytest.mark.parametrize("of_all", [False, True])
def test_only_a_daemon_of_all_users_leaves_its_socket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_all: bool
) -> None:
    """That tells the commands to wait for it, rather than to start others."""
    path = tmp_path / "runner.sock"
    if of_all:
        monkeypatch.setattr(listen, "SYSTEM_SOCKET", str(path))
    for _ in range(2):  # the one that was left is removed
        with bound(path, system_wide=False):
            assert path.is_socket()
        assert path.exists() is of_all


def answer_to(
    application: Callable[[Any, Receive, Send], Awaitable[None]], begun: Event, leaving: Callable[[], None]
) -> bytes:
    """Return what a client is sent whose question is being answered when the server is asked to leave."""
    ours, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with ours, theirs, ThreadPoolExecutor(1) as thread:
        theirs.bind("")  # the kernel chooses a name
        theirs.listen()
        ours.settimeout(patience())
        ours.connect(theirs.getsockname())
        ours.sendall(b"GET / HTTP/1.1\r\nHost: runner\r\nConnection: close\r\n\r\n")
        config = uvicorn.Config(application, http=PeerProtocol, lifespan="off", log_config=None)
        server = Server(config, leaving, lambda: False, lambda: None, StopDeadline(60))
        served = thread.submit(lambda: asyncio.run(server.serve(sockets=[theirs])))
        assert begun.wait(patience())
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
    monkeypatch.setattr(listen, "GRACE_S", 0)
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
        server = Server(config, lambda: left.append(True), lambda: True, lambda: None, StopDeadline(60))
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(server.serve(sockets=[listener]))).result(20)
    assert left == [True]


def test_what_is_no_request_leaves_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may send thousands a second, and the log is the operator's."""
    server = server_of(FastAPI(), lambda: None, lambda: False, lambda: None, StopDeadline(60))
    ours, theirs = socket.socketpair()

    async def asked() -> bytes:
        server.config.load()
        protocol = partial(PeerProtocol, server.config, server.server_state, {})
        await asyncio.get_running_loop().connect_accepted_socket(protocol, theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(b"runner list\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), patience())
        writer.close()
        return answer

    assert asyncio.run(asked()).startswith(b"HTTP/1.1 400 ")
    assert caplog.text == ""


async def _nobody_asks(_scope: object, _receive: Receive, _send: Send) -> None:
    raise AssertionError("nobody has connected")
