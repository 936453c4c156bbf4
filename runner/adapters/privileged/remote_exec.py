"""Commands inside of attempts, as a daemon without rights starts them: through its helper."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from runner.adapters.privileged.client import GONE, PrivilegedClient
from runner.adapters.privileged.interface import PRIVILEGED
from runner.adapters.privileged.session_frames import (
    FROM_HELPER,
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
from runner.adapters.privileged.sessions import BUFFER_BYTES
from runner.adapters.rpc.calls import Message
from runner.base.errors import Unavailable
from runner.core.ports.exec import ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key


@dataclass(slots=True)
class RemoteExecProcess:
    """Satisfies ``runner.core.ports.exec.ExecProcess``."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _end: Exit | None = None

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        while isinstance(frame := await self._read(), Output):
            yield frame.number, frame.data
        if isinstance(frame, Exit):
            self._end = frame

    async def write(self, content: bytes) -> None:
        await self._send(Input(data=content))

    async def end_input(self) -> None:
        await self._send(EndInput())

    async def resize(self, size: TerminalSize) -> None:
        await self._send(Resize(rows=size.rows, columns=size.columns))

    async def signal(self, number: int) -> None:
        await self._send(SendSignal(number=int(number)))

    async def exit_code(self) -> int:
        while self._end is None:
            frame = await self._read()
            self._end = frame if isinstance(frame, Exit) else None
        if self._end.code is None:
            raise Unavailable(self._end.problem)
        return self._end.code

    async def close(self) -> None:
        self.writer.close()

    async def _read(self) -> Output | EndOutput | Exit:
        content = await read_frame(self.reader)
        return Exit(code=None, problem=GONE) if content is None else FROM_HELPER.validate_json(content)

    async def _send(self, message: Message) -> None:
        with suppress(OSError):  # the command has ended, or the helper has
            await write_frame(self.writer, message.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class RemoteExec:
    """Satisfies ``runner.core.ports.exec.ExecPort``."""

    helper: PrivilegedClient

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        if recorded is not None:
            await recorded
        connection = await asyncio.to_thread(self.helper.attempts.execute, key, request)
        connection.settimeout(0)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=BUFFER_BYTES)
        with ExitStack() as unless_begun:
            unless_begun.callback(writer.close)
            begun = await read_frame(reader)
            if begun is None:
                raise Unavailable(GONE)
            PRIVILEGED.errors.raise_if_any(begun)
            unless_begun.pop_all()
        return RemoteExecProcess(reader, writer)
