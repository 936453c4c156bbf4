"""The terminal of this process as the terminal of a program inside of a job.

The program stays when its terminal is left, here with Ctrl-p Ctrl-q, and when the daemon dies: this
module then waits for the daemon and goes back.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal as signals
import struct
import termios
import tty
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from runner.base.durable import write_whole
from runner.base.errors import Unavailable
from runner.client.autostart import NoDaemon
from runner.client.client import ConnectionLost
from runner.client.sessions import (
    CHUNK_BYTES,
    await_ready,
    caught_signals,
    ended_line,
    finished,
    open_session,
)
from runner.client.websocket import BINARY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runner.client.client import Client
    from runner.client.websocket import DaemonMessage, WebSocket

DETACH_KEYS: Final = b"\x10\x11"
"""Ctrl-p Ctrl-q, as with ``docker attach``."""

RETURN_S: Final = 60.0
"""Longest wait of a terminal for its daemon to come back."""

RETRY_S: Final = 0.2
CAUGHT: Final = ("WINCH", "TERM", "HUP")


class DetachKeys:
    """Finds the keys that leave a terminal in what is typed."""

    def __init__(self) -> None:
        self._held = b""
        self.pressed = False

    def pass_on(self, typed: bytes) -> bytes:
        """Return the keys to send; the first key is held back until the next one is known."""
        typed = self._held + typed
        before, found, _ = typed.partition(DETACH_KEYS)
        if found:
            self._held, self.pressed = b"", True
            return before
        self._held = DETACH_KEYS[:1] if typed.endswith(DETACH_KEYS[:1]) else b""
        return typed[: len(typed) - len(self._held)]


class Terminal:
    """One terminal inside of a job, from here; its name is known once it has been reached."""

    def __init__(self, client: Client, ref: str) -> None:
        self.client = client
        self.ref = ref
        self.name: str | None = None
        self.ended = ""  # what is said of a job that has ended under its terminal
        self._keys = DetachKeys()
        self._left = False

    def use(self, verb: str, first: Mapping[str, object]) -> int | None:
        """Use a terminal until its program ends; return its exit code, None if the terminal was left.

        Raises:
            ErrorResponse: the daemon refused it.
            Unavailable: the daemon left and did not come back.
        """
        with caught_signals(CAUGHT) as caught, raw_terminal():
            session = open_session(self.client, self.ref, verb, {**first, "terminal": window_size()})
            while True:
                try:
                    return self._move(session, caught)
                except (EOFError, OSError) as error:
                    if self.name is None:
                        raise Unavailable("the daemon stopped before the terminal was reached") from error
                finally:
                    session.close()
                session = self._go_back()

    def _go_back(self) -> WebSocket:
        """Return a new session on the same terminal once the daemon is back."""
        write_whole(1, b"\r\n[the daemon has stopped; the program goes on; waiting for the daemon]\r\n")
        deadline = monotonic() + RETURN_S
        while True:
            with suppress(NoDaemon, ConnectionLost):
                if not self.client.was_stopped():
                    self.client.await_return()
                first = {"session": self.name, "terminal": window_size(), "repeat": False}
                return open_session(self.client, self.ref, "attach", first)
            if monotonic() > deadline:
                raise Unavailable(f"no daemon; runner attach {self.ref} goes back later")
            select.select([], [], [], RETRY_S)

    def _move(self, session: WebSocket, caught: int) -> int | None:
        code = self._show(session.pending())
        while code is None and not self._left:
            ready = await_ready(session, caught, *(() if session.is_behind else (0,)))
            if session in ready:
                code = self._show(session.receive())
            if caught in ready:
                self._handle_signals(session, caught)
            if 0 in ready:
                self._type(session)
        return code

    def _show(self, messages: Iterator[DaemonMessage]) -> int | None:
        for message in messages:
            if message.kind == BINARY:
                write_whole(1, message.content[1:])
                continue
            said = message.json()
            self.name = said.get("terminal", self.name)
            if (code := finished(said)) is not None:
                self.ended = ended_line(said, "the terminal") or ""
                return code
        return None

    def _type(self, session: WebSocket) -> None:
        try:
            typed = os.read(0, CHUNK_BYTES)
        except OSError:  # the terminal has gone away
            typed = b""
        if chunk := self._keys.pass_on(typed):
            session.send(chunk)
        self._left = self._keys.pressed or not typed

    def _handle_signals(self, session: WebSocket, caught: int) -> None:
        with suppress(BlockingIOError):
            for number in os.read(caught, 64):
                if number == signals.SIGWINCH:
                    session.say({"size": window_size()})
                else:
                    self._left = True


def window_size() -> dict[str, int]:
    """Return the size of the terminal of this process, as the daemon takes it."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    return {"rows": rows or 24, "columns": columns or 80}


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Let the terminal of this process pass on every key as it is, and restore it at the end."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal has gone away
            termios.tcsetattr(0, termios.TCSADRAIN, before)
