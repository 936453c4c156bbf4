"""Connects people outside of a job with a port on the loopback of the job.

``relay.py DIRECTORY NAME PORT`` listens on the socket ``DIRECTORY/NAME``.  Each connection is connected with
PORT of 127.0.0.1, else of ::1, in the network of the job, whether or not that leads anywhere else.  The first
byte that it sends is ``+``, or ``-`` and the reason.  It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading

# Any Python from 3.7 on runs this file, and a start should take little: no pathlib.
# ruff: noqa: PTH101, PTH103, PTH108

CHUNK_BYTES = 64 * 1024
CONNECT_S = 10.0
MAX_CONNECTIONS = 64


def reach(port: int) -> socket.socket:
    """Return a connection to a port of the loopback; raise OSError if nobody listens there."""
    try:
        return socket.create_connection(("127.0.0.1", port), CONNECT_S)
    except OSError as error:
        try:
            return socket.create_connection(("::1", port), CONNECT_S)
        except OSError:
            raise error from None


def serve(connection: socket.socket, port: int, free: threading.Semaphore) -> None:
    """Move bytes between a connection and a port until both have nothing more to say."""
    with contextlib.suppress(OSError), connection:
        try:
            target = reach(port)
        except OSError as error:
            connection.sendall(b"-" + (error.strerror or str(error)).encode())
        else:
            with target:
                target.settimeout(None)
                connection.sendall(b"+")
                move(connection, target)
    free.release()


def move(one: socket.socket, other: socket.socket) -> None:
    """Move bytes both ways; the end of one direction leaves the other open."""
    towards = {one: other, other: one}
    while towards:
        for source in select.select(list(towards), [], [])[0]:
            chunk = source.recv(CHUNK_BYTES)
            if chunk:
                towards[source].sendall(chunk)
            else:
                with contextlib.suppress(OSError):
                    towards[source].shutdown(socket.SHUT_WR)
                del towards[source]


def listen(directory: str, name: str) -> socket.socket:
    """Return a socket that listens at a path, even if it is longer than an address can be."""
    os.makedirs(directory, 0o700, exist_ok=True)
    os.chdir(directory)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    os.chmod(name, 0o600)
    listener.listen(64)
    return listener


def accept(listener: socket.socket, port: int) -> None:
    """Serve connections, a limited number at a time."""
    free = threading.Semaphore(MAX_CONNECTIONS)
    while True:
        free.acquire()
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, port, free), daemon=True).start()


def main(arguments: list[str]) -> None:
    directory, name, port = arguments
    listener = listen(directory, name)
    try:
        threading.Thread(target=accept, args=(listener, int(port)), daemon=True).start()
        os.write(1, b"ready\n")
        while os.read(0, CHUNK_BYTES):
            continue
    finally:
        os.unlink(name)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
