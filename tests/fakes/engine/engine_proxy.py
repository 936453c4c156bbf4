"""A door to a real engine: what an outage, a hang, or a lost answer looks like from here.

``shut`` and ``resume``    the engine is gone, and back
``hang`` and ``go_on``     it accepts, and answers nothing until it goes on
``lose_answer_to``         it acts, and breaks off instead of answering
``stop_before``, ``stop_after``   one request stops short of the engine, or was carried out
                           and is never answered; whoever asked can be killed meanwhile
``fail`` and ``mend``      such requests are answered with 500, and no longer
``cut_answer``             the next such answer ends in the middle of a line
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(eq=False)
class Trap:
    """One request that is caught, by a part of its text."""

    fragment: bytes
    where: Literal["before", "after", "lost", "cut"]
    caught: threading.Event = field(default_factory=threading.Event)
    cut_at: bytes = b""


BROKEN = b'{"message": "the engine is broken"}'
ANSWER_500 = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"


class EngineProxy:
    """Passes bytes between a Unix socket of its own and the engine's."""

    def __init__(self, path: Path, engine: Path) -> None:
        self.path = path
        self._engine = engine
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._traps: list[Trap] = []
        self._failing: set[bytes] = set()
        self._going = threading.Event()
        self._going.set()
        self.resume()

    def resume(self) -> None:
        """Listen, as an engine that was started again."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen()
        self._acceptor = _begin(self._accept, self._listener)

    def shut(self) -> None:
        """Break every connection and listen no more, as an engine that was killed."""
        self.path.unlink()
        self._going.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()  # from here on nobody new comes in
        with self._lock:
            for connection in self._open:
                _hang_up(connection)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def close(self) -> None:
        """Leave nothing behind, in whatever state it is."""
        if self.path.exists():
            self.shut()

    def hang(self) -> None:
        """Accept whoever comes, and pass nothing on in either direction."""
        self._going.clear()

    def go_on(self) -> None:
        """Pass on what has piled up, and everything from now on."""
        self._going.set()

    def lose_answer_to(self, fragment: str) -> None:
        """Pass the next request on whose text contains ``fragment``, and break off instead of answering."""
        self._trap(fragment, "lost")

    def stop_before(self, fragment: str) -> threading.Event:
        """Keep the next such request from the engine, and never answer; the event says when it came."""
        return self._trap(fragment, "before")

    def stop_after(self, fragment: str) -> threading.Event:
        """Let the engine carry the next such request out, and never answer; the event says when it has."""
        return self._trap(fragment, "after")

    def fail(self, fragment: str) -> None:
        """Answer every such request with 500 from now on; the engine does not get it."""
        self._failing.add(fragment.encode())

    def mend(self) -> None:
        """Fail no request any more."""
        self._failing.clear()

    def fails(self, received: bytes) -> bool:
        """Return True if a request is to be answered with 500."""
        head = received.partition(b"\r\n")[0]
        return any(fragment in head for fragment in tuple(self._failing))

    def cut_answer(self, fragment: str, at: str) -> threading.Event:
        """Pass the answer to the next such request on up to the text ``at``, and break off there."""
        trap = Trap(fragment.encode(), "cut", cut_at=at.encode())
        with self._lock:
            self._traps.append(trap)
        return trap.caught

    def _trap(self, fragment: str, where: Literal["before", "after", "lost"]) -> threading.Event:
        trap = Trap(fragment.encode(), where)
        with self._lock:
            self._traps.append(trap)
        return trap.caught

    def caught(self, received: bytes) -> Trap | None:
        """Return the trap that this request has walked into, if any; each catches one."""
        with self._lock:
            for trap in self._traps:
                if trap.fragment in received:
                    self._traps.remove(trap)
                    return trap
        return None

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    self._open.add(client)
                self._threads.append(_begin(self._serve, client))

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine:
            with suppress(OSError):
                engine.connect(str(self._engine))
                _Exchange(self, client, engine).carry()
            with self._lock:
                self._open.discard(client)

    def pass_on(self, received: bytes, to: socket.socket) -> None:
        """Send, once nothing hangs."""
        self._going.wait()
        to.sendall(received)


class _Exchange:
    """One connection, with the trap that one of its requests may have walked into."""

    def __init__(self, proxy: EngineProxy, client: socket.socket, engine: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._engine = engine
        self._trap: Trap | None = None

    def carry(self) -> None:
        back = threading.Thread(target=self._answer, daemon=True)
        back.start()
        self._ask()
        _hang_up(self._engine)
        back.join()

    def _ask(self) -> None:
        with suppress(OSError):
            while received := self._client.recv(65536):
                if self._proxy.fails(received):
                    length = f"Content-Length: {len(BROKEN)}\r\n\r\n".encode()
                    self._client.sendall(ANSWER_500 + length + BROKEN)
                    break
                self._trap = self._trap or self._proxy.caught(received)
                if self._trap and self._trap.where == "before":
                    self._trap.caught.set()
                    continue
                self._proxy.pass_on(received, self._engine)

    def _answer(self) -> None:
        with suppress(OSError):
            while received := self._engine.recv(65536):
                if self._trap is None:
                    self._proxy.pass_on(received, self._client)
                    continue
                if self._trap.where == "cut":
                    head, found, _ = received.partition(self._trap.cut_at)
                    self._proxy.pass_on(head + found, self._client)
                    if not found:
                        continue
                self._trap.caught.set()
                if self._trap.where in {"lost", "cut"}:
                    break
        if self._trap is None or self._trap.where in {"lost", "cut"}:
            _hang_up(self._client)


def _begin(target: Callable[[socket.socket], None], connection: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=target, args=(connection,), daemon=True)
    thread.start()
    return thread


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
