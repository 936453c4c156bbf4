"""Frames of commands inside of attempts, over the connection to the helper, until one end closes it.

A frame is a letter, a length and the bytes.  The daemon sends what the client types; the helper sends that
the command has begun, what it writes, that this has ended, and its exit code.
"""

import asyncio
import struct
from typing import Final

MAX_FRAME_BYTES: Final = 4 * 1024**2
BUFFER_BYTES: Final = 1024**2
SIZE: Final = struct.Struct("!HH")  # of a terminal: rows and columns
_HEAD: Final = struct.Struct("!cI")

INPUT, END_INPUT, RESIZE, SIGNAL = b"i", b"e", b"r", b"s"
"""Kinds of frames of the daemon; a signal is one byte."""

BEGUN, OUTPUT, END_OUTPUT, EXIT, ERROR = b"B", b"O", b"E", b"X", b"!"
"""Kinds of frames of the helper; an output begins with its number in one byte."""


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
    """Return kind and content of the next frame, None if the other end has closed or sends none."""
    try:
        kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return (kind, await reader.readexactly(length)) if length <= MAX_FRAME_BYTES else None
    except (asyncio.IncompleteReadError, OSError):
        return None


async def write_frame(writer: asyncio.StreamWriter, kind: bytes, content: bytes = b"") -> None:
    """Write a frame, and wait while the other end does not read; may raise OSError."""
    writer.write(_HEAD.pack(kind, len(content)) + content)
    await writer.drain()
