"""Commands inside of attempts, as a daemon without rights starts them: through its helper."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from runner.adapters.privileged import session_frames as frames
from runner.adapters.privileged.client import GONE, PrivilegedClient
from runner.adapters.privileged.interface import PRIVILEGED
from runner.adapters.privileged.session_frames import read_frame, write_frame
from runner.base.errors import Unavailable
from runner.core.ports.exec import ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key


@dataclass(slots=True)
class RemoteExecProcess:
    """Satisfies ``runner.core.ports.exec.ExecProcess``."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _code: int | None = None

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        while (frame := await read_frame(self.reader)) is not None and frame[0] == frames.OUTPUT:
            yield frame[1][0], frame[1][1:]

    async def write(self, content: bytes) -> None:
        await self._send(frames.INPUT, content)

    async def end_input(self) -> None:
        await self._send(frames.END_INPUT)

    async def resize(self, size: TerminalSize) -> None:
        await self._send(frames.RESIZE, frames.SIZE.pack(size.rows, size.columns))

    async def signal(self, number: int) -> None:
        await self._send(frames.SIGNAL, bytes((number,)))

    async def exit_code(self) -> int:
        if self._code is None:
            self._code = int(await _expect(self.reader, frames.EXIT))
        return self._code

    async def close(self) -> None:
        self.writer.close()

    async def _send(self, kind: bytes, content: bytes = b"") -> None:
        with suppress(OSError):  # the command has ended, or the helper has
            await write_frame(self.writer, kind, content)


async def _expect(reader: asyncio.StreamReader, kind: bytes) -> bytes:
    """Return the content of the next frame of a kind; raises the error of the helper if that comes before."""
    while (frame := await read_frame(reader)) is not None:
        if frame[0] == frames.ERROR:
            PRIVILEGED.errors.raise_if_any(frame[1])
        if frame[0] == kind:
            return frame[1]
    raise Unavailable(GONE)


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
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=frames.BUFFER_BYTES)
        with ExitStack() as unless_begun:
            unless_begun.callback(writer.close)
            await _expect(reader, frames.BEGUN)
            unless_begun.pop_all()
        return RemoteExecProcess(reader, writer)
