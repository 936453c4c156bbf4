"""A door to a real engine that can be shut, or lose one answer: what an outage looks like from here."""

import socket
import threading
from contextlib import suppress
from pathlib import Path


class EngineProxy:
    """Passes bytes between a Unix socket of its own and the engine's."""

    def __init__(self, path: Path, engine: Path) -> None:
        self.path = path
        self._engine = engine
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lose = b""
        self.resume()

    def resume(self) -> None:
        """Listen, as an engine that was started again."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._begin(self._accept, self._listener)

    def shut(self) -> None:
        """Break every connection and listen no more, as an engine that was killed."""
        self.path.unlink()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _hang_up(connection)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def lose_answer_to(self, fragment: str) -> None:
        """Pass the next request on whose text contains ``fragment``, and break off instead of answering."""
        self._lose = fragment.encode()

    def _begin(self, target: object, *arguments: socket.socket) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._begin(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine:
            with self._lock:
                self._open |= {client, engine}
            lost = threading.Event()
            with suppress(OSError):
                engine.connect(str(self._engine))
                back = threading.Thread(target=self._answer, args=(engine, client, lost), daemon=True)
                back.start()
                self._ask(client, engine, lost)
                _hang_up(engine)
                back.join()
            with self._lock:
                self._open -= {client, engine}

    def _ask(self, client: socket.socket, engine: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while received := client.recv(65536):
                if self._lose and self._lose in received:
                    self._lose = b""
                    lost.set()
                engine.sendall(received)

    def _answer(self, engine: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (received := engine.recv(65536)) and not lost.is_set():
                client.sendall(received)
        _hang_up(client)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
