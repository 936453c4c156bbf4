"""Requests that the HTTP protocol refuses before they reach the application."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from runner.server.api import peer
from runner.server.api.peer import PeerProtocol
from tests.fakes.patience import patience

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


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
        answer = await asyncio.wait_for(reader.read(), patience())
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
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nretry-after: 1\r\n" in answer
    assert f'"uid {os.getuid()} has 0 connections already; end some"'.encode() in answer
    assert calls == 0
    monkeypatch.setattr(peer, "MAX_CONNECTIONS", 1)
    assert told(CLOSING + b"\r\n")[1] == 1
    assert told(CLOSING + b"\r\n")[1] == 1  # those that have ended do not count


def test_who_asks_without_waiting_for_answers_is_turned_away_and_told() -> None:
    """One read of 256,000 bytes had 14,000 requests, each with a context of its own."""
    answer, calls = told(b"GET / HTTP/1.1\r\nHost: runner\r\n\r\n" * 5000)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b'"a connection has 16 requests at most that wait for an earlier one"' in answer
    assert b"HTTP/1.1 400 " not in answer
    assert calls <= 1 + peer.MAX_PIPELINED


def test_a_few_requests_in_a_row_are_all_answered() -> None:
    answer, calls = told(b"GET / HTTP/1.1\r\nHost: runner\r\n\r\n" * 15 + CLOSING + b"\r\n")
    assert (answer.count(b"HTTP/1.1 204 "), calls) == (16, 16)


def test_what_is_no_request_is_refused() -> None:
    answer, calls = told(b"runner list\r\n\r\n")
    assert (answer[:13], calls) == (b"HTTP/1.1 400 ", 0)


def test_subordinate_ids_share_the_connections_of_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``unshare --map-auto`` one person is 65,536 more uids, and each had connections of its own."""

    class EverybodyIsAnn:
        def person(self, uid: int) -> int:
            del uid
            return 4711

    monkeypatch.setattr(peer, "SUBORDINATE_IDS", EverybodyIsAnn())
    monkeypatch.setattr(peer, "MAX_CONNECTIONS", 0)
    assert b'"uid 4711 has 0 connections already; end some"' in told(b"")[0]


# --- bodies


def test_who_does_not_finish_a_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "BODY_S", 0.01)
    answer, _ = told(CLOSING + b"Content-Length: 2000\r\n\r\n" + bytes(1000))
    assert answer == b""


def test_a_body_that_is_complete_has_no_deadline_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[list[str]] = []
    complete = PeerProtocol.on_message_complete

    def completed(self: PeerProtocol) -> None:
        timers.append([*self._timers])
        complete(self)
        timers.append([*self._timers])

    monkeypatch.setattr(PeerProtocol, "on_message_complete", completed)
    assert told(CLOSING + b"Content-Length: 1000\r\n\r\n" + bytes(1000))[0].startswith(b"HTTP/1.1 204 ")
    assert timers == [["body"], []]


def test_the_bodies_of_one_person_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_BODIES_BYTES", 1500)
    whole = CLOSING + b"Content-Length: 1000\r\n\r\n" + bytes(1000)
    assert told(whole)[0].startswith(b"HTTP/1.1 204 ")
    assert told(whole)[0].startswith(b"HTTP/1.1 204 ")  # those that were answered do not count
    assert PeerProtocol._bodies[os.getuid()] == 0
    monkeypatch.setitem(PeerProtocol._bodies, os.getuid(), 1000)  # of another connection that is slow
    answer, _ = told(whole)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"try again" in answer
    assert PeerProtocol._bodies[os.getuid()] == 1000


def test_who_does_not_read_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "UNREAD_S", 0.01)

    async def unread() -> int:
        lost = asyncio.Event()

        async def called(_scope: object, _receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(10_000_000)})

        class Watched(PeerProtocol):
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                lost.set()

        ours, theirs = socket.socketpair()
        config = uvicorn.Config(called, http=Watched, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Watched(config, state, {}), theirs)
        ours.send(b"GET / HTTP/1.1\r\nHost: runner\r\n\r\n")
        await asyncio.wait_for(lost.wait(), patience())
        received, size = b"begun", 0
        while received:
            received = ours.recv(2**20)
            size += len(received)
        ours.close()
        return size

    assert 0 < asyncio.run(unread()) < 10_000_000
