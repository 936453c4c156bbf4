"""Sessions inside of jobs: a command whose streams are those of this process.

One thread moves all bytes, between standard input, standard output and the daemon.
"""

from __future__ import annotations

import os
import select
import signal as signals
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from runner.base.durable import write_whole
from runner.base.errors import UNWRITTEN, Unavailable
from runner.client.autostart import connect
from runner.client.http import Response, error_of, quote_path, raise_for_error
from runner.client.websocket import BINARY, Rejected, WebSocket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from socket import socket

    from runner.client.client import Client
    from runner.client.websocket import DaemonMessage

CHUNK_BYTES: Final = 32 * 1024
ENDED: Final = ("succeeded", "failed", "cancelled", "held")
"""States in which no further attempt comes by itself."""

FORWARDED: Final = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2")
"""Signals that a command gets as if it ran here."""


def open_session(client: Client, ref: str, verb: str, first: Mapping[str, object]) -> WebSocket:
    """Return a session inside of a job that has been asked for; the answer is still to come.

    Raises:
        NoDaemon: no daemon answers.
        ConnectionLost: the daemon left.
        ErrorResponse: the daemon knows no such sessions.
    """
    return open_on(connect(client.endpoint.socket), ref, verb, first)


def open_on(connection: socket, ref: str, verb: str, first: Mapping[str, object]) -> WebSocket:
    """Return a session on a fresh connection to the daemon; see ``open_session``."""
    place = connection.getpeername()
    try:
        session = WebSocket(connection, f"/v1/jobs/{quote_path(ref)}/{verb}")
        connection.settimeout(None)
        session.say(first)
    except Rejected as error:
        connection.close()
        raise_for_error(Response(error.status, {}, error.body))
    except OSError as error:
        connection.close()
        from runner.client.client import ConnectionLost

        raise ConnectionLost(f"{place}: the daemon stopped before it answered") from error
    return session


def run_command(client: Client, ref: str, argv: tuple[str, ...], *, has_input: bool) -> int:
    """Run a command inside of a job with the streams of this process; return its exit code."""
    return use_command(
        open_session(client, ref, "exec", {"argv": argv, "input": has_input}), has_input=has_input
    )


def use_command(session: WebSocket, *, has_input: bool) -> int:
    """Give a command inside of a job the streams of this process; return its exit code."""
    with caught_signals(FORWARDED) as caught:
        try:
            return _move(session, caught, has_input=has_input)
        finally:
            session.close()


def _move(session: WebSocket, caught: int, *, has_input: bool) -> int:
    code = _print(session.pending())
    while code is None:
        ready = await_ready(session, caught, *((0,) if has_input and not session.is_behind else ()))
        if session in ready:
            code = _print(session.receive())
        if caught in ready:
            _forward_signals(session, caught)
        if 0 not in ready or code is not None:
            continue
        if chunk := os.read(0, CHUNK_BYTES):
            session.send(chunk)
        else:
            has_input = False
            session.say({"eof": True})
    return code


def await_ready(session: WebSocket, *others: int) -> list[WebSocket | int]:
    """Wait, and return which of a session and others can be read; what it is behind with is sent."""
    sources: list[WebSocket | int] = [session, *others]
    ready, writable, _ = select.select(sources, [session] if session.is_behind else [], [])
    if writable:
        session.flush()
    return ready


def _print(messages: Iterator[DaemonMessage]) -> int | None:
    """Print messages; return the exit code if the command has ended.

    Raises:
        ErrorResponse: the daemon refused the session, or it failed.
        Unavailable: the daemon left; what the command does is unknown.
        OSError: the output of this process cannot be written.
    """
    try:
        for message in messages:
            if message.kind == BINARY:
                write_whole(message.content[0], message.content[1:])
            elif (code := finished(said := message.json())) is not None:
                if line := ended_line(said, "the command"):
                    write_whole(2, line.encode() + b"\n")
                return code
    except (EOFError, OSError) as error:
        if isinstance(error, BrokenPipeError) or getattr(error, "errno", None) in UNWRITTEN:
            raise
        raise Unavailable(
            "the daemon stopped during the session; whether the command goes on is unknown"
        ) from error
    return None


def finished(message: Mapping[str, Any]) -> int | None:
    """Return the exit code that a message says, if any; raise the error that it says."""
    if "error" in message:
        raise error_of(message["error"])
    return int(message["exit"]) if "exit" in message else None


def ended_line(message: Mapping[str, Any], what: str) -> str | None:
    """Return the last line about a session whose attempt has ended under it; None if it goes on."""
    ended = message.get("ended")
    if ended is None:
        return None
    if ended["state"] in ENDED:
        return f"job {ended['name']} ended ({ended['verdict']}); {what} ended with it"
    fact = f"attempt of job {ended['name']} ended ({ended['verdict']}); {what} ended with it"
    return f"the {fact}; the job is {ended['state']}"


@contextmanager
def caught_signals(names: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor from which the numbers of the signals can be read that arrive meanwhile."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signals.set_wakeup_fd(writing)
    handlers = {name: signals.signal(getattr(signals, f"SIG{name}"), _ignore) for name in names}
    try:
        yield reading
    finally:
        for name, handler in handlers.items():
            signals.signal(getattr(signals, f"SIG{name}"), handler)
        signals.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the number of the signal is in the pipe."""


def _forward_signals(session: WebSocket, caught: int) -> None:
    with suppress(BlockingIOError):
        for number in os.read(caught, 64):
            session.say({"signal": signals.Signals(number).name.removeprefix("SIG")})
