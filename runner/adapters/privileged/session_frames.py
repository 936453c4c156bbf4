"""Frames of commands inside of attempts, over the connection to the helper, until one end closes it.

The daemon sends what the client types; the helper sends what the command writes, then that it has ended, then
its exit code.
"""

import asyncio
import struct
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from runner.adapters.rpc.calls import Message

MAX_FRAME_BYTES: Final = 4 * 1024**2
LENGTH: Final = struct.Struct("!I")


class Input(Message):
    op: Literal["input"] = "input"
    data: bytes


class EndInput(Message):
    op: Literal["end_input"] = "end_input"


class Resize(Message):
    op: Literal["resize"] = "resize"
    rows: Annotated[int, Field(ge=0, le=65535)]
    columns: Annotated[int, Field(ge=0, le=65535)]


class SendSignal(Message):
    op: Literal["send_signal"] = "send_signal"
    number: Annotated[int, Field(ge=1, le=64)]


class Output(Message):
    op: Literal["output"] = "output"
    number: int
    data: bytes


class EndOutput(Message):
    op: Literal["end_output"] = "end_output"


class Exit(Message):
    op: Literal["exit"] = "exit"
    code: int | None
    problem: str = ""


FromDaemon: TypeAlias = Annotated[Input | EndInput | Resize | SendSignal, Field(discriminator="op")]
FromHelper: TypeAlias = Annotated[Output | EndOutput | Exit, Field(discriminator="op")]
FROM_DAEMON: Final[TypeAdapter[Input | EndInput | Resize | SendSignal]] = TypeAdapter(FromDaemon)
FROM_HELPER: Final[TypeAdapter[Output | EndOutput | Exit]] = TypeAdapter(FromHelper)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the content of the next frame, None if the other end has closed or sends none."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return await reader.readexactly(length) if length <= MAX_FRAME_BYTES else None
    except (asyncio.IncompleteReadError, OSError):
        return None


async def write_frame(writer: asyncio.StreamWriter, content: bytes) -> None:
    """Write a frame, and wait while the other end does not read; may raise OSError."""
    writer.write(LENGTH.pack(len(content)) + content)
    await writer.drain()
