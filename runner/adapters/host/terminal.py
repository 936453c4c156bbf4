"""Terminals that a program inside of a job holds, reached through a socket in the run directory.

The job may put anything in place of the socket.  So no link is followed, and the process at the other end
must be one of the job's user before it gets a byte: a root daemon carries nobody's words to the socket of
another.  The name of a socket that is no terminal begins with a dot.
"""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from jobs.contract import open_directory
from runner.base.errors import Refused, Unavailable
from runner.core.ports.exec import STDOUT, TerminalSize

HEAD: Final = struct.Struct("!cI")
MAX_MESSAGE_BYTES: Final = 1024**2
CONNECT_S: Final = 5.0
CHUNK_BYTES: Final = 64 * 1024
MAX_REASON_BYTES: Final = 200
MOST_LISTED: Final = 100
_UCRED: Final = struct.Struct("3i")


def names(directory: Path) -> tuple[str, ...]:
    """Return the names of the sockets in a directory of the job, the oldest first."""
    found = _terminals(directory)
    return tuple(sorted(found, key=lambda name: found[name].st_ctime_ns))


def touched(directory: Path) -> float | None:
    """Return the last use of a terminal in a directory, in seconds since the epoch."""
    return max((each.st_mtime for each in _terminals(directory).values()), default=None)


def _terminals(directory: Path) -> dict[str, os.stat_result]:
    try:
        with _opened(directory) as opened:
            visible = [name for name in _first_names(opened) if not name.startswith(".")]
            found = {name: os.lstat(name, dir_fd=opened) for name in visible}
            return {name: each for name, each in found.items() if stat.S_ISSOCK(each.st_mode)}
    except OSError:
        return {}


def _first_names(directory: int) -> list[str]:
    """Return some names of a directory, which is not read to its end: a job may put any number there."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in islice(entries, MOST_LISTED)]


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open a directory of the job by way of the one above, which is the job's as well."""
    with open_directory(directory.parent) as parent, open_directory(directory.name, parent) as opened:
        yield opened


def connect(directory: Path, name: str, uid: int) -> socket.socket:
    """Return a connection to a socket in a directory of the job, at whose other end is a process of a user.

    Raises:
        Refused: there is none, or another user is at its other end.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        _connect(connection, directory, name)
        _, peer, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError as error:
        connection.close()
        raise Refused(f"{name}: no such terminal, or it has ended") from error
    if peer != uid:
        connection.close()
        raise Refused(f"{name}: uid {peer} is at the other end, and not the user of the job")
    return connection


def tell(directory: Path, name: str, uid: int, text: str) -> None:
    """Show a line on a terminal, between what its program writes; a terminal that has ended is left out."""
    content = f"\r\n[runner: {text}]\r\n".encode()
    with suppress(Refused, OSError), connect(directory, name, uid) as connection:
        connection.sendall(HEAD.pack(b"n", len(content)) + content)


def _connect(connection: socket.socket, directory: Path, name: str) -> None:
    """Connect to a socket in a directory of the job without following a link; connecting to a file fails."""
    with _opened(directory) as opened:
        target = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
        try:
            connection.settimeout(CONNECT_S)
            connection.connect(f"/proc/self/fd/{target}")
        finally:
            os.close(target)


@dataclass(slots=True)
class HeldTerminal:
    """Satisfies ``runner.core.ports.exec.ExecProcess``; ``jobs.inside.terminal`` is at the other end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _code: int | None = field(default=None, init=False)

    @classmethod
    async def open(cls, connection: socket.socket, size: TerminalSize, *, repeat: bool) -> "HeldTerminal":
        """Return a terminal at the other end of a connection, with or without its last output."""
        terminal = cls(*await asyncio.open_unix_connection(sock=connection))
        await terminal._send(b"h", struct.pack("!HH?", size.rows, size.columns, repeat))
        return terminal

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                kind, size = HEAD.unpack(await self.reader.readexactly(HEAD.size))
                if size > MAX_MESSAGE_BYTES:
                    return
                content = await self.reader.readexactly(size)
                if kind == b"x":
                    self._code = int.from_bytes(content, "big") & 0xFF
                    return
                yield STDOUT, content

    async def write(self, content: bytes) -> None:
        await self._send(b"d", content)

    async def end_input(self) -> None:
        """Do nothing: the end of a terminal's input is a character."""

    async def resize(self, size: TerminalSize) -> None:
        await self._send(b"s", struct.pack("!HH", size.rows, size.columns))

    async def signal(self, number: int) -> None:
        """Do nothing: a terminal makes its signals of characters."""

    async def exit_code(self) -> int:
        if self._code is None:
            raise Unavailable("the terminal has ended with its job, or was killed")
        return self._code

    async def close(self) -> None:
        self.writer.close()

    async def _send(self, kind: bytes, content: bytes) -> None:
        with suppress(OSError):
            self.writer.write(HEAD.pack(kind, len(content)) + content)
            await self.writer.drain()


@dataclass(frozen=True, slots=True)
class RelayedConnection:
    """Satisfies ``runner.core.ports.exec.ExecProcess``; ``jobs.inside.relay`` is at the other end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, connection: socket.socket) -> "RelayedConnection":
        """Return a connection to a port inside of a job; may raise Refused."""
        relayed = cls(*await asyncio.open_unix_connection(sock=connection))
        if await relayed.reader.read(1) != b"+":
            reason = (await relayed.reader.read(MAX_REASON_BYTES)).decode(errors="replace")
            relayed.writer.close()
            raise Refused(f"nothing answers at this port of the job ({reason or 'the relay has ended'})")
        return relayed

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        with suppress(OSError):
            while chunk := await self.reader.read(CHUNK_BYTES):
                yield STDOUT, chunk

    async def write(self, content: bytes) -> None:
        with suppress(OSError):
            self.writer.write(content)
            await self.writer.drain()

    async def end_input(self) -> None:
        with suppress(OSError):
            self.writer.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        """Do nothing: there is no terminal."""

    async def signal(self, number: int) -> None:
        """Do nothing: there is no command."""

    async def exit_code(self) -> int:
        return 0

    async def close(self) -> None:
        self.writer.close()
