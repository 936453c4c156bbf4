"""The workers of all users, from the daemon's side: at most a few of each, kept while they are used."""

import socket
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import Final

from runner.adapters.rpc.frames import Disconnected, receive, send
from runner.base.errors import Unavailable, UsageError
from runner.core.ports.users import User

AT_A_TIME: Final = 4
"""Requests of one user at a time; others wait."""

WAIT_S: Final = 60.0
"""The longest wait for a worker that is free, and for its answer."""

SOON_S: Final = 1.0
"""A kept worker that ends within this time had ended before it was asked."""

MAX_ANSWER_BYTES: Final = 64 * 1024**2

TOO_MUCH: Final = "takes more time or memory to read than a text of one user may (20 s of a processor, 2 GiB)"


@dataclass(slots=True)
class Workers:
    """Asks the workers of users; every thread may ask at the same time."""

    start: Callable[[User], socket.socket]
    """Starts a worker of a user, and returns the connection to it."""
    _idle: dict[User, list[socket.socket]] = field(default_factory=dict)
    _rooms: defaultdict[int, BoundedSemaphore] = field(
        default_factory=lambda: defaultdict(lambda: BoundedSemaphore(AT_A_TIME))
    )
    _lock: Lock = field(default_factory=Lock)

    def exchange(self, who: User, request: bytes, given: tuple[int, ...] = ()) -> tuple[bytes, list[int]]:
        """Send a request to a worker of a user, and return its answer.

        Raises:
            UsageError: it took too much time or memory.
            Unavailable: there is no answer.
        """
        with self._lock:
            room = self._rooms[who.uid]
        if not room.acquire(timeout=WAIT_S):
            raise Unavailable(f"too many texts of {who.name} are being read; try again")
        try:
            return self._ask(who, request, given)
        finally:
            room.release()

    def _ask(self, who: User, request: bytes, given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        kept = self._take(who)
        began_s = time.monotonic()
        try:
            return self._ask_one(who, kept or self.start(who), request, given)
        except Disconnected as error:
            if isinstance(error.__cause__, TimeoutError):
                raise Unavailable(f"no answer from the file systems of {who.name} in {WAIT_S:g} s") from error
            if kept is None or time.monotonic() - began_s > SOON_S:
                raise UsageError(TOO_MUCH) from error
        return self._ask_anew(who, request, given)

    def _ask_anew(self, who: User, request: bytes, given: tuple[int, ...]) -> tuple[bytes, list[int]]:
        try:
            return self._ask_one(who, self.start(who), request, given)
        except Disconnected as error:
            raise UsageError(TOO_MUCH) from error

    def _ask_one(
        self, who: User, connection: socket.socket, request: bytes, given: tuple[int, ...]
    ) -> tuple[bytes, list[int]]:
        connection.settimeout(WAIT_S)
        with ExitStack() as unless_answered:
            unless_answered.callback(connection.close)
            try:
                send(connection, request, *given)
            except OSError as error:
                raise Disconnected(error.strerror or str(error)) from error
            answer = receive(connection, MAX_ANSWER_BYTES)
            unless_answered.pop_all()
        with self._lock:
            self._idle.setdefault(who, []).append(connection)
        return answer

    def _take(self, who: User) -> socket.socket | None:
        with self._lock:
            connections = self._idle.get(who)
            found = connections.pop() if connections else None
            if not connections:
                self._idle.pop(who, None)
            return found

    def close(self) -> None:
        """Close all connections; the workers end."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()
