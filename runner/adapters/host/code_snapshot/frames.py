"""Frames on a stream between the daemon and a process of its own: a letter, a length, and the bytes."""

import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, Protocol


class SupportsRead(Protocol):
    """A stream that is read."""

    def read(self, size: int, /) -> bytes: ...


_HEADER: Final = struct.Struct(">cI")

CHUNK_BYTES: Final = 1024 * 1024
"""The most bytes of a file in one frame."""

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""A longer frame is not ours: a listing of the most files that the settings allow has less."""


def write_frame(stream: BinaryIO, kind: bytes, payload: bytes) -> None:
    """Write one frame; ``kind`` is one letter."""
    stream.write(_HEADER.pack(kind, len(payload)))
    stream.write(payload)


def read_frames(stream: SupportsRead, most_bytes: int = MAX_FRAME_BYTES) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each frame until the stream ends or one is too long.

    Raises:
        EOFError: the last one is not complete, or too long.
    """
    while header := stream.read(_HEADER.size):
        if len(header) < _HEADER.size:
            raise EOFError
        kind, length = _HEADER.unpack(header)
        payload = b"" if length > most_bytes else stream.read(length)
        if len(payload) < length:
            raise EOFError
        yield kind, payload
