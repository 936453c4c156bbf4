"""The helper's end of a command inside of an attempt."""

import asyncio
import socket
import struct
from contextlib import suppress

from runner.adapters.privileged import session_frames as frames
from runner.adapters.privileged.interface import PRIVILEGED
from runner.adapters.privileged.session_frames import read_frame, write_frame
from runner.base.errors import RunnerError
from runner.core.ports.exec import ExecPort, ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key


async def serve_session(
    connection: socket.socket, commands: ExecPort, key: Key, request: ExecRequest
) -> None:
    """Run a command inside of an attempt for the other end of a connection, until one of them ends."""
    connection.settimeout(0)
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=frames.BUFFER_BYTES)
    try:
        process = await commands.start(key, request)
    except (RunnerError, OSError) as error:
        with suppress(OSError):
            await write_frame(writer, frames.ERROR, PRIVILEGED.errors.pack(error))
        writer.close()
        return
    try:
        await write_frame(writer, frames.BEGUN)
        await _relay(process, reader, writer)
    except OSError:
        return  # the daemon has closed its end
    finally:
        await process.close()
        writer.close()


async def _relay(process: ExecProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pump = asyncio.create_task(_pump(process, writer))
    try:
        while (frame := await read_frame(reader)) is not None:
            await _act(process, *frame)
    except (ValueError, struct.error):
        return  # a frame that no daemon sends
    finally:
        pump.cancel()


async def _act(process: ExecProcess, kind: bytes, content: bytes) -> None:
    match kind:
        case frames.INPUT:
            await process.write(content)
        case frames.END_INPUT:
            await process.end_input()
        case frames.RESIZE:
            await process.resize(TerminalSize(*frames.SIZE.unpack(content)))
        case frames.SIGNAL if 1 <= (number := int.from_bytes(content)) <= 64:
            with suppress(ProcessLookupError):
                await process.signal(number)
        case _:
            raise ValueError(kind)


async def _pump(process: ExecProcess, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        async for number, chunk in process.outputs():
            await write_frame(writer, frames.OUTPUT, bytes((number,)) + chunk)
        await write_frame(writer, frames.END_OUTPUT)
        try:
            code = await process.exit_code()
        except RunnerError as error:
            await write_frame(writer, frames.ERROR, PRIVILEGED.errors.pack(error))
        else:
            await write_frame(writer, frames.EXIT, b"%d" % code)
