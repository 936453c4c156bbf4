"""A port of this machine's loopback that leads to a port inside of a job, for this user alone.

Everybody on a host reaches its loopback.  So the kernel's table of connections is asked whose each new
connection is, and those of others are closed before a byte has passed.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from runner.base.errors import RunnerError, Unavailable, UsageError
from runner.client.autostart import NoDaemon
from runner.client.client import ConnectionLost
from runner.client.sessions import CHUNK_BYTES, ended_line, finished, open_session
from runner.client.websocket import BINARY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from runner.client.autostart import Tell
    from runner.client.client import Client
    from runner.client.websocket import WebSocket

LOOPBACK: Final = "127.0.0.1"
CONNECTIONS: Final = "/proc/net/tcp"
ESTABLISHED: Final = "01"
BACKLOG: Final = 64
RETRY_S: Final = 0.5

OUTCOMES: Final = {"succeeded": 0, "failed": 10, "cancelled": 11, "held": 12}
"""Exit codes by what has become of the job; if it goes on in another attempt, forward it again: 4."""


def listen(port: int) -> socket.socket:
    """Return a socket that listens on the loopback; port 0 is any that is free.

    Raises:
        UsageError: the port is taken, or not for this user.
    """
    listener = socket.socket(socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fact = str(error.strerror or error).lower()
        raise UsageError(f"port {port} of this machine: {fact}; name another one: LOCAL:REMOTE") from error
    return listener


def is_of_user(peer: tuple[str, int], local: tuple[str, int], uid: int, table: str) -> bool:
    """Return True if the process at the other end of a connection of the loopback is one of a user.

    ``table`` is the text of ``/proc/net/tcp``.  A connection that its process has closed already belongs to
    nobody: the kernel shows it as root's.
    """
    wanted = [_hexadecimal(*peer), _hexadecimal(*local), ESTABLISHED]
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:4] == wanted:
            return fields[7] == str(uid) and fields[9] != "0"
    return False


def _hexadecimal(address: str, port: int) -> str:
    """Return an address as the kernel's table has it."""
    number = int.from_bytes(socket.inet_aton(address), "little")
    return f"{number:08X}:{port:04X}"


class Forwarder:
    """Forwards connections to one port of a job until the job ends."""

    def __init__(self, client: Client, ref: str, port: int, tell: Tell) -> None:
        self._client = client
        self._ref = ref
        self._port = port
        self._tell = tell
        self._told: set[str] = set()
        self._relay = ""

    def run(self, listener: socket.socket, ready: Tell) -> int:
        """Serve the connections to a socket; call ``ready`` once they lead into the job.

        Raises:
            ErrorResponse: the daemon refused it, or the job has ended.
        """
        control = self._open()
        ready(f"{LOOPBACK}:{listener.getsockname()[1]}")
        while True:
            try:
                return self._serve(listener, control)
            except (EOFError, OSError):
                self._tell("the daemon has stopped; waiting for it")
            finally:
                control.close()
            control = self._reopen()

    def _open(self) -> WebSocket:
        control = open_session(self._client, self._ref, "forward", {"port": self._port})
        try:
            messages = control.pending()
            while True:
                for message in messages:
                    if message.kind != BINARY:
                        said = message.json()
                        finished(said)
                        self._relay = str(said["relay"])
                        return control
                messages = control.receive()
        except (EOFError, OSError) as error:
            control.close()
            raise ConnectionLost("the daemon stopped before it answered") from error

    def _reopen(self) -> WebSocket:
        never = threading.Event()
        while True:
            with suppress(NoDaemon, ConnectionLost):
                if not self._client.was_stopped():
                    self._client.await_return()
                return self._open()
            never.wait(RETRY_S)

    def _serve(self, listener: socket.socket, control: WebSocket) -> int:
        """Accept connections until the session ends; return the exit code that it ends with."""
        while True:
            sources: list[socket.socket | WebSocket] = [listener, control]
            ready, _, _ = select.select(sources, [], [])
            if control in ready:
                for message in control.receive():
                    if message.kind != BINARY and (code := finished(said := message.json())) is not None:
                        return self._end(said, code)
            if listener in ready:
                self._accept(listener)

    def _end(self, said: Mapping[str, Any], code: int) -> int:
        """Say why it ends, and return the exit code: that of the outcome of the job, as ``wait`` has it."""
        line = ended_line(said, "the forwarding")
        self._tell(line or f"what forwards the port inside of job {self._ref} has ended (exit code {code})")
        state = said["ended"]["state"] if line else None
        return OUTCOMES.get(state, Unavailable.exit_code) if state else Unavailable.exit_code

    def _accept(self, listener: socket.socket) -> None:
        connection, peer = listener.accept()
        with open(CONNECTIONS, encoding="ascii") as table:
            if not is_of_user(peer, listener.getsockname(), os.getuid(), table.read()):
                self._tell_once("a process of another user was turned away")
                connection.close()
                return
        threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        """Move the bytes of one connection."""
        with connection:
            try:
                session = open_session(self._client, self._ref, "connect", {"relay": self._relay})
            except RunnerError as error:
                self._tell_once(str(error))
                return
            try:
                _move(connection, session)
            except (RunnerError, Unavailable) as error:
                self._tell_once(str(error))
            except (EOFError, OSError):
                return
            finally:
                session.close()

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def _move(connection: socket.socket, session: WebSocket) -> None:
    """Move bytes both ways until the job's end is closed; neither way waits for the other one."""
    unsent, is_open = bytearray(), True
    messages = session.pending()
    while True:
        for message in messages:
            if message.kind == BINARY:
                unsent += message.content[1:]
            elif finished(message.json()) is not None:
                connection.sendall(unsent)
                return
        messages = iter(())
        sources: list[socket.socket | WebSocket] = [] if unsent else [session]
        if is_open and not session.is_behind:
            sources.append(connection)
        waiting: list[socket.socket | WebSocket] = [connection] if unsent else []
        if session.is_behind:
            waiting.append(session)
        ready, writable, _ = select.select(sources, waiting, [])
        if session in writable:
            session.flush()
        if connection in writable:
            del unsent[: connection.send(unsent, socket.MSG_DONTWAIT)]
        if connection in ready:
            if chunk := connection.recv(CHUNK_BYTES):
                session.send(chunk)
            else:
                is_open = False
                session.say({"eof": True})
        if session in ready:
            messages = session.receive()
