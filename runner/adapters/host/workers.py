"""The workers of all users, from the daemon's side: a few of each are kept while they are used."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import Final
from weakref import finalize

from runner.adapters.rpc.frames import Disconnected, receive, send
from runner.base.errors import Unavailable
from runner.base.readable import readable_duration
from runner.core.ports.users import User

AT_A_TIME: Final = 4
"""Requests of one user at a time; others wait."""

SOON_S: Final = 1.0
"""A kept worker that ends within this time had ended before it was asked."""

START_S: Final = 20.0
"""More for the first answer of a worker, which has to start before, also on a busy machine."""

MAX_ANSWER_BYTES: Final = 64 * 1024**2

CHECK_MS: Final = 250
"""Between two looks whether an answer is still wanted."""


class WorkerEnded(Unavailable):
    """A worker has ended before its answer: it took too much time or memory, or was killed."""


class Spawner:
    """The process that starts workers, and the socket to it; both end with this object."""

    def __init__(self, requests: socket.socket, process: "subprocess.Popen[bytes] | None") -> None:
        self.requests, self.process = requests, process
        self.end = finalize(self, _end, requests, process)

    @classmethod
    def start(cls, instead_of_root: tuple[int, int] | None) -> "Spawner":
        """Start the process with an environment of its own, in a directory that nobody else writes to."""
        requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rights = [] if instead_of_root is None else ["{}:{}".format(*instead_of_root)]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "runner.adapters.host.spawner", str(theirs.fileno()), *rights],
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        return cls(requests, process)

    def is_running(self) -> bool:
        """Return True if the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def give(self) -> int:
        """Return the socket for another process, which has to close it."""
        descriptor = os.dup(self.requests.fileno())
        self.requests.close()
        return descriptor

    def spawn(self, who: User, cpu_s: int | None) -> socket.socket:
        """Return the connection to a new worker; with ``cpu_s`` for one request, of so much processor time.

        Raises:
            OSError: the process has ended.
        """
        packet = json.dumps({"uid": who.uid, "gid": who.gid, "groups": who.groups, "cpu_s": cpu_s})
        with ExitStack() as unless_sent:
            mine, theirs = socket.socketpair()
            unless_sent.callback(mine.close)
            with theirs:
                socket.send_fds(self.requests, [packet.encode()], [theirs.fileno()])
            unless_sent.pop_all()
        return mine


def _end(requests: socket.socket, process: "subprocess.Popen[bytes] | None") -> None:
    requests.close()  # which is what the process ends at
    if process is None:
        return
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class OneWorker:
    """A worker that is there for one request."""

    connection: socket.socket
    who: User
    within_s: float

    def send(self, request: bytes, given: tuple[int, ...] = ()) -> "Callable[[], tuple[bytes, list[int]]]":
        """Send the request, and return what waits for the answer; may raise Unavailable."""
        try:
            with _answering(self.connection, self.who, self.within_s):
                send(self.connection, request, *given)
        except Disconnected as error:
            raise _ended(self.who) from error
        return self.answer

    def answer(self, check: Callable[[], None] = lambda: None) -> tuple[bytes, list[int]]:
        """Wait for the answer; ``check`` is called now and then, and may raise."""
        waiting, until_s = select.poll(), time.monotonic() + self.within_s
        waiting.register(self.connection, select.POLLIN)
        try:
            check()
            while not waiting.poll(CHECK_MS) and time.monotonic() < until_s:
                check()
            with _answering(self.connection, self.who, self.within_s):
                return receive(self.connection, MAX_ANSWER_BYTES)
        except Disconnected as error:
            raise _ended(self.who) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the worker ends with its request."""
        self.connection.close()


@contextmanager
def _answering(connection: socket.socket, who: User, within_s: float) -> Iterator[None]:
    """Say what it means that a connection fails; may raise Disconnected, Unavailable."""
    connection.settimeout(within_s)
    try:
        yield
    except (Disconnected, OSError) as error:
        if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
            raise Unavailable(
                f"no answer from the file systems of {who.name} in {readable_duration(within_s)}"
            ) from error
        raise Disconnected(str(error)) from error


def _ended(who: User) -> WorkerEnded:
    return WorkerEnded(f"the process that reads it as {who.name} has ended")


@dataclass(slots=True, weakref_slot=True)
class Workers:
    """Asks the workers of users; every thread may ask at the same time."""

    spawn: Callable[[User, int | None], socket.socket]
    """Starts a worker of a user, as ``Spawner.spawn`` does."""
    _idle: dict[User, list[socket.socket]] = field(default_factory=dict)
    _rooms: defaultdict[int, BoundedSemaphore] = field(
        default_factory=lambda: defaultdict(lambda: BoundedSemaphore(AT_A_TIME))
    )
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        finalize(self, _close_all, self._idle)

    def one(self, who: User, cpu_s: int, within_s: float) -> OneWorker:
        """Start a worker for one request of so much processor time, whose answer takes so long at most."""
        return OneWorker(self.spawn(who, cpu_s), who, within_s)

    def exchange_alone(  # noqa: PLR0913, PLR0917  (one value per limit)
        self,
        who: User,
        cpu_s: int,
        within_s: float,
        check: Callable[[], None],
        request: bytes,
        given: tuple[int, ...] = (),
    ) -> tuple[bytes, list[int]]:
        """Send a request to a worker that is there for it alone, and return its answer.

        ``check`` is called while it works, and ends the wait by what it raises.

        Raises:
            Unavailable: there is no answer; ``WorkerEnded``: for it took too much time or memory.
        """
        worker = self.one(who, cpu_s, within_s)
        with closing(worker):
            worker.send(request, given)
            return worker.answer(check)

    def exchange(
        self, who: User, within_s: float, request: bytes, given: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        """Send a request to a worker of a user, and return its answer, which takes so long at most.

        Raises:
            Unavailable: there is no answer; ``WorkerEnded``: for it took too much time or memory.
        """
        with self._lock:
            room = self._rooms[who.uid]
        if not room.acquire(timeout=within_s):
            raise Unavailable(f"too many files of {who.name} are being read; try again")
        try:
            return self._ask(who, request, given, within_s)
        finally:
            room.release()

    def _ask(
        self, who: User, request: bytes, given: tuple[int, ...], within_s: float
    ) -> tuple[bytes, list[int]]:
        kept, began_s = self._take(who), time.monotonic()
        if kept is not None:
            try:
                return self._ask_one(who, kept, request, given, within_s)
            except Disconnected as error:
                if time.monotonic() - began_s > SOON_S:
                    raise _ended(who) from error
        try:
            return self._ask_one(who, self.spawn(who, None), request, given, within_s + START_S)
        except Disconnected as error:
            raise _ended(who) from error

    def _ask_one(
        self, who: User, connection: socket.socket, request: bytes, given: tuple[int, ...], within_s: float
    ) -> tuple[bytes, list[int]]:
        with ExitStack() as unless_answered:
            unless_answered.callback(connection.close)
            with _answering(connection, who, within_s):
                send(connection, request, *given)
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
            _close_all(self._idle)


def _close_all(idle: dict[User, list[socket.socket]]) -> None:
    while idle:
        for connection in idle.popitem()[1]:
            connection.close()
