"""The client's half of WebSockets, against the package of the server."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from runner.client.websocket import BINARY, TEXT, Rejected, WebSocket
from tests.fakes.patience import patience

SIZES = (0, 1, 125, 126, 65535, 65536, 300_000)


class Server(Thread):
    """Answers each message with the same one, as the package that the daemon uses does it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(daemon=True)
        self._connection = connection

    def run(self) -> None:
        protocol = ServerProtocol(max_size=2**20)
        with suppress(OSError):  # the test has ended
            while chunk := self._connection.recv(65536):
                protocol.receive_data(chunk)
                for event in protocol.events_received():
                    self._answer(protocol, event)
                self._connection.sendall(b"".join(protocol.data_to_send()))

    def _answer(self, protocol: ServerProtocol, event: object) -> None:
        if isinstance(event, Request):
            protocol.send_response(protocol.accept(event))
        elif isinstance(event, Frame) and event.opcode is Opcode.BINARY:
            protocol.send_ping(b"there?")
            half = len(event.data) // 2
            protocol.send_binary(bytes(event.data[:half]), fin=False)
            protocol.send_continuation(bytes(event.data[half:]), fin=True)
        elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
            protocol.send_text(bytes(event.data))
            if b"bye" in event.data:
                protocol.send_close(1000)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(patience())
        yield ours, theirs
        ours.shutdown(socket.SHUT_RDWR)


def test_messages_of_every_size_come_back_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    Server(pair[1]).start()
    session = WebSocket(pair[0], "/v1/jobs/1/exec")
    for size in SIZES:
        content = os.urandom(size)
        session.send(content)
        messages = list(session.receive())
        while not messages:
            messages = list(session.receive())
        assert [(each.kind, each.content) for each in messages] == [(BINARY, content)]


def test_text_is_json_and_a_close_is_the_end_after_the_last_message(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    Server(pair[1]).start()
    session = WebSocket(pair[0], "/")
    session.say({"bye": "ü"})
    messages = session.receive()
    message = next(messages)
    assert (message.kind, message.json()) == (TEXT, {"bye": "ü"})
    with pytest.raises(EOFError):
        next(messages)


def test_an_answer_without_an_upgrade_is_told_with_its_body(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(b'HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n{"error": 1}')
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(Rejected) as rejected:
        WebSocket(ours, "/")
    assert (rejected.value.status, rejected.value.body) == (404, b'{"error": 1}')


def test_a_daemon_that_leaves_during_the_upgrade_is_an_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[1].close()
    with pytest.raises(OSError, match=r"left|Broken pipe"):
        WebSocket(pair[0], "/")


def test_who_sends_more_than_the_daemon_takes_is_behind_and_waits_for_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The command may wait for its output to be read, by the same thread of this client."""
    ours, theirs = pair
    theirs.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    session = WebSocket(ours, "/v1/jobs/1/exec")
    ours.settimeout(None)
    content = os.urandom(2**20)
    session.send(content)
    assert session.is_behind
    session.say("next")
    daemon, come = ServerProtocol(max_size=2**20), list[bytes]()
    while len(come) < 2:
        daemon.receive_data(theirs.recv(65536))
        for event in daemon.events_received():
            if isinstance(event, Request):
                daemon.send_response(daemon.accept(event))
            elif isinstance(event, Frame):
                come.append(bytes(event.data))
        session.flush()
    assert come == [content, b'"next"']
    assert not session.is_behind


def test_a_daemon_that_has_gone_takes_all_and_the_next_read_says_so(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    session = WebSocket(ours, "/v1/jobs/1/exec")
    theirs.shutdown(socket.SHUT_RDWR)
    session.send(b"input")
    assert not session.is_behind
    with pytest.raises(EOFError):
        list(session.receive())
