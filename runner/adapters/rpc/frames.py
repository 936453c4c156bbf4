"""Frames of calls between processes: a length, JSON, and descriptors beside it."""

import os
import socket
import struct
from array import array
from time import monotonic
from typing import Final

MAX_REQUEST_BYTES: Final = 64 * 1024**2
"""A longer request ends its connection; the largest has the secrets of a job."""

MAX_ANSWER_BYTES: Final = 512 * 1024**2
MAX_DESCRIPTORS: Final = 4
_LENGTH: Final = struct.Struct("!I")


class Disconnected(Exception):
    """The other end is gone, or has sent what is no frame."""


def send(connection: socket.socket, content: bytes, *descriptors: int) -> None:
    """Send a frame; may raise OSError."""
    head = _LENGTH.pack(len(content))
    sent = socket.send_fds(connection, [head], descriptors) if descriptors else connection.send(head)
    connection.sendall(head[sent:])
    connection.sendall(content)


def receive(connection: socket.socket, limit: int) -> tuple[bytes, list[int]]:
    """Return the content of the next frame and its descriptors, which belong to the caller.

    A limit of time of the connection is that of the whole content: the other end may send byte by byte.

    Raises:
        Disconnected: the other end is gone, or the frame is longer than ``limit`` bytes.
    """
    descriptors: list[int] = []
    try:
        (length,) = _LENGTH.unpack(_receive_head(connection, descriptors))
        return _receive_exactly(connection, length, limit), descriptors
    except OSError as error:
        close_all(descriptors)
        raise Disconnected(error.strerror or str(error)) from error
    except Disconnected:
        close_all(descriptors)
        raise


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        os.close(descriptor)


def receive_part(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int], int]:
    """Return some bytes, the descriptors that came with them and the flags of ``recvmsg``.

    No program that this process starts inherits them, as those of ``socket.recv_fds``.
    """
    found = array("i")
    room = socket.CMSG_LEN(most * found.itemsize)
    part, beside, flags, _ = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) // found.itemsize * found.itemsize])
    return part, list(found), flags


def _receive_head(connection: socket.socket, descriptors: list[int]) -> bytes:
    head = b""
    while len(head) < _LENGTH.size:
        part, more, flags = receive_part(connection, _LENGTH.size - len(head), MAX_DESCRIPTORS)
        descriptors += more
        if not part or flags & socket.MSG_CTRUNC or len(descriptors) > MAX_DESCRIPTORS:
            raise Disconnected("the other end has gone")
        head += part
    return head


def _receive_exactly(connection: socket.socket, length: int, limit: int) -> bytes:
    if length > limit:
        raise Disconnected(f"a message of {length} bytes")
    content = bytearray(length)
    left = memoryview(content)
    limit_s = connection.gettimeout()
    until_s = None if limit_s is None else monotonic() + limit_s
    while left:
        size = connection.recv_into(left)
        if not size:
            raise Disconnected("the other end has gone")
        left = left[size:]
        if left and until_s is not None:
            if (left_s := until_s - monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
    return bytes(content)
