"""Gives each connection of a socket a program of its own, and copies bytes both ways.

``python -m runner.client.relay SOCKET COMMAND...``: used where a server forwards no sockets.  It ends when
nobody has connected for ten minutes.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from runner.base.durable import write_whole

IDLE_S: Final = 600.0

PIECE: Final = 65536


def copy(read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
    """Copy bytes until there are no more, or nobody takes them."""
    with suppress(OSError):
        while piece := read(PIECE):
            write(piece)


def join(connection: socket.socket, command: Sequence[str]) -> None:
    """Join a connection with the standard input and output of a command, until one of them ends."""
    with (
        connection,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as program,
    ):
        assert program.stdin is not None  # noqa: S101  both are pipes
        assert program.stdout is not None  # noqa: S101
        to, back = program.stdin.fileno(), program.stdout.fileno()

        def send() -> None:
            copy(connection.recv, lambda piece: write_whole(to, piece))
            with suppress(OSError):
                program.stdin.close()  # type: ignore[union-attr]  # a pipe

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        copy(lambda size: os.read(back, size), connection.sendall)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        program.terminate()
        sender.join()


def serve(path: str, command: Sequence[str], idle_s: float = IDLE_S) -> None:
    """Answer connections until there are none for a while; the socket gets its name when it listens."""
    listener = socket.socket(socket.AF_UNIX)
    draft = path.removesuffix(".sock") + ".new"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    before = os.umask(0o177)
    listener.bind(draft)
    os.umask(before)
    listener.listen(64)
    os.rename(draft, path)
    listener.settimeout(idle_s)
    threads: list[threading.Thread] = []
    with listener:
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                threads = [each for each in threads if each.is_alive()]
                if threads:
                    continue
                with suppress(OSError):
                    os.unlink(path)
                return
            connection.settimeout(None)
            thread = threading.Thread(target=join, args=(connection, command), daemon=True)
            thread.start()
            threads.append(thread)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
