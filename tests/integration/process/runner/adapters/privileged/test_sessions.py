"""Commands inside of attempts between a daemon without rights and its helper, over a real socket."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.adapters.privileged import session_frames as frames
from runner.adapters.privileged.remote_exec import RemoteExec
from runner.adapters.privileged.sessions import serve_session
from runner.base.errors import Refused, Unavailable
from runner.core.ports.exec import STDERR, STDOUT, ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key
from runner.core.ports.users import Owner

KEY = Key("i1", "7", 1)
REQUEST = ExecRequest(("cat",), Owner(4321, 4321, "ann"), has_input=True)


@dataclass
class Echo:
    """A command that says what it reads, and ends with its input."""

    asked: list[object] = field(default_factory=list)
    ends: int | None = 3  # None: the executor cannot tell
    refuses: bool = False
    _input: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        del key, request, recorded
        if self.refuses:
            raise Refused("it does not run")
        return self

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        yield STDERR, b"begun"
        while chunk := await self._input.get():
            yield STDOUT, chunk

    async def write(self, content: bytes) -> None:
        await self._input.put(content)

    async def end_input(self) -> None:
        await self._input.put(b"")

    async def resize(self, size: TerminalSize) -> None:
        self.asked.append(size)

    async def signal(self, number: int) -> None:
        self.asked.append(number)

    async def exit_code(self) -> int:
        if self.ends is None:
            raise Unavailable("nobody knows")
        return self.ends

    async def close(self) -> None:
        self.asked.append("closed")


def between(command: Echo, work: Callable[[ExecProcess], Awaitable[None]]) -> None:
    """Do some work with a command that a helper runs."""

    async def both() -> None:
        loop, sessions = asyncio.get_running_loop(), []

        def execute(key: Key, request: ExecRequest) -> socket.socket:
            mine, theirs = socket.socketpair()
            session = serve_session(mine, command, key, request)
            sessions.append(asyncio.run_coroutine_threadsafe(session, loop))
            return theirs

        helper = SimpleNamespace(attempts=SimpleNamespace(execute=execute))
        try:
            process = await RemoteExec(cast("Any", helper)).start(KEY, REQUEST)
            await work(process)
            await process.close()
        finally:
            await asyncio.gather(*map(asyncio.wrap_future, sessions))

    asyncio.run(both())


def test_a_command_is_written_to_and_tells_what_it_writes_and_its_exit_code() -> None:
    command, said = Echo(), []

    async def work(process: ExecProcess) -> None:
        await process.resize(TerminalSize(40, 100))
        await process.signal(10)
        await process.write(b"a\0" * 5000)
        await process.end_input()
        said.extend([each async for each in process.outputs()])
        assert await process.exit_code() == 3

    between(command, work)
    assert said == [(STDERR, b"begun"), (STDOUT, b"a\0" * 5000)]
    assert command.asked == [TerminalSize(40, 100), 10, "closed"]


def test_an_exit_code_that_nobody_knows_is_unavailable() -> None:
    async def work(process: ExecProcess) -> None:
        await process.end_input()
        with pytest.raises(Unavailable, match="nobody knows"):
            await process.exit_code()

    between(Echo(ends=None), work)


def test_a_command_that_is_refused_is_so_for_the_daemon() -> None:
    async def work(_: ExecProcess) -> None:
        raise AssertionError

    with pytest.raises(Refused, match="it does not run"):
        between(Echo(refuses=True), work)


@pytest.mark.parametrize(
    ("kind", "content"), [(b"?", b""), (frames.SIGNAL, b"\x41"), (frames.SIGNAL, b""), (frames.RESIZE, b"x")]
)
def test_a_frame_that_no_daemon_sends_ends_the_session(kind: bytes, content: bytes) -> None:
    command = Echo()

    async def work(process: ExecProcess) -> None:
        await process._send(kind, content)  # type: ignore[attr-defined]
        assert [each async for each in process.outputs()] in ([], [(STDERR, b"begun")])
        with pytest.raises(Unavailable, match="the helper of the daemon has ended"):
            await process.exit_code()

    between(command, work)
    assert command.asked == ["closed"]
