"""The helper's end of a command inside of an attempt."""

import asyncio
import socket
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from runner.adapters.privileged.interface import PRIVILEGED
from runner.adapters.privileged.session_frames import (
    FROM_DAEMON,
    EndInput,
    EndOutput,
    Exit,
    Input,
    Output,
    Resize,
    SendSignal,
    read_frame,
    write_frame,
)
from runner.base.errors import RunnerError
from runner.core.ports.exec import ExecPort, ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key

BUFFER_BYTES: Final = 1024**2
BEGUN: Final = b"{}"
"""The first frame of a session, if it is no error."""


async def serve_session(
    connection: socket.socket, commands: ExecPort, key: Key, request: ExecRequest
) -> None:
    """Run a command inside of an attempt for the other end of a connection, until one of them ends."""
    connection.settimeout(0)
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=BUFFER_BYTES)
    try:
        process = await commands.start(key, request)
    except (RunnerError, OSError) as error:
        with suppress(OSError):
            await write_frame(writer, PRIVILEGED.errors.pack(error))
        writer.close()
        return
    try:
        await write_frame(writer, BEGUN)
        await _relay(process, reader, writer)
    except OSError:
        return  # the daemon has closed its end
    finally:
        await process.close()
        writer.close()


async def _relay(process: ExecProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pump = asyncio.create_task(_pump(process, writer))
    try:
        while (content := await read_frame(reader)) is not None:
            await _act(process, FROM_DAEMON.validate_json(content))
    except ValidationError:
        return
    finally:
        pump.cancel()


async def _act(process: ExecProcess, message: Input | EndInput | Resize | SendSignal) -> None:
    match message:
        case Input(data=content):
            await process.write(content)
        case EndInput():
            await process.end_input()
        case Resize(rows=rows, columns=columns):
            await process.resize(TerminalSize(rows, columns))
        case SendSignal(number=number):
            with suppress(ProcessLookupError):
                await process.signal(number)


async def _pump(process: ExecProcess, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        async for number, chunk in process.outputs():
            await write_frame(writer, Output(number=number, data=chunk).model_dump_json().encode())
        await write_frame(writer, EndOutput().model_dump_json().encode())
        try:
            end = Exit(code=await process.exit_code())
        except RunnerError as error:
            end = Exit(code=None, problem=str(error))
        await write_frame(writer, end.model_dump_json().encode())
