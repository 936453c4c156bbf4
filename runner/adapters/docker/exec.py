"""Commands inside of containers: the engine's ``exec``, in the user, place and umask of the attempt.

The engine starts the command with what the container was created with: capabilities, no-new-privileges,
seccomp, resource limits, environment, devices, namespaces and control group.  The stream of the engine is
read by an event loop, so a session costs no thread.  The SDK cannot do this: it blocks, and its sockets lose
output that arrives together with the head of the engine's answer.
"""

import asyncio
import json
import os
import re
import signal as signals
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from runner.adapters.docker.connection import DEFAULT_URL, shortened
from runner.adapters.docker.hardening import LABEL_ATTEMPT, LABEL_INSTANCE, LABEL_JOB, Json, key_of
from runner.adapters.host.process_status import open_process
from runner.adapters.launch import attempt_name, directory_of, inside_script
from runner.base.errors import Refused, Unavailable
from runner.core.ports.exec import STDOUT, ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key

MAX_HEAD_BYTES: Final = 64 * 1024
CHUNK_BYTES: Final = 64 * 1024
FRAME_HEAD_BYTES: Final = 8
"""Of the engine's multiplexed stream: the number of the output, three zeros, the length in four bytes."""

EXIT_POLL_S: Final = (0.002, 0.05)
"""Between two looks for an exit code: at first, and at most."""
EXIT_LIMIT_S: Final = 10.0
"""Time in which the engine knows the exit code of a command whose output has ended."""

_CHUNKED: Final = re.compile(rb"^transfer-encoding:\s*chunked", re.IGNORECASE | re.MULTILINE)
_LENGTH: Final = re.compile(rb"^content-length:\s*([0-9]+)", re.IGNORECASE | re.MULTILINE)


class _EngineError(Exception):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Stream:
    """A connection to the engine: requests in turn, and at last the streams of a command."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Json:
        """Return the JSON answer to a request; may raise _EngineError."""
        status, head = await self._send(method, path, body)
        content = await self._content(head)
        if status >= 400:
            raise _EngineError(status, _message(content))
        answer: Json = json.loads(content) if content.strip() else {}
        return answer

    async def begin(self, path: str, body: Mapping[str, object]) -> None:
        """Turn this connection into the streams of a command."""
        status, head = await self._send("POST", path, body, "Connection: Upgrade\r\nUpgrade: tcp\r\n")
        if status not in {101, 200}:
            raise _EngineError(status, _message(await self._content(head)))

    async def _send(
        self, method: str, path: str, body: Mapping[str, object] | None, more: str = ""
    ) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if content else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: engine\r\n{kind}{more}\r\n"
        self.writer.write(head.encode("ascii") + content)
        await self.writer.drain()
        answer = await self.reader.readuntil(b"\r\n\r\n")
        return int(answer.split(b" ", 2)[1]), answer

    async def _content(self, head: bytes) -> bytes:
        if _CHUNKED.search(head):
            parts = []
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                parts.append(await self.reader.readexactly(size))
                await self.reader.readline()
            await self.reader.readline()
            return b"".join(parts)
        length = _LENGTH.search(head)
        return await self.reader.readexactly(int(length[1])) if length else b""

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, slots=True)
class DockerExec:
    """Satisfies ``runner.core.ports.exec.ExecPort``."""

    url: str | None = None
    """As in ``DockerExecutorSettings``; a Unix socket or plain TCP."""
    timeout_s: int = 10

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        name = attempt_name(key)
        with _engine_errors(f"exec in {name}"):
            async with asyncio.timeout(self.timeout_s):
                stream = await self._open()
                with ExitStack() as unless_begun:
                    unless_begun.callback(stream.close)
                    container = await self._container(stream, key)
                    place, body = str(container["Id"]), _exec_config(container, request)
                    made = await stream.ask("POST", f"/containers/{place}/exec", body)
                    tty = request.terminal is not None
                    if recorded is not None:
                        await asyncio.shield(recorded)
                    await stream.begin(f"/exec/{made['Id']}/start", {"Detach": False, "Tty": tty})
                    unless_begun.pop_all()
        number = str(made["Id"])
        process = DockerExecProcess(self, stream, number, place, tty=tty, outlives=request.outlives)
        if request.terminal is not None:
            await process.resize(request.terminal)
        return process

    async def ask(self, method: str, path: str) -> Json:
        """Return the engine's answer to one request."""
        async with asyncio.timeout(self.timeout_s):
            stream = await self._open()
            try:
                return await stream.ask(method, path)
            finally:
                stream.close()

    async def _open(self) -> _Stream:
        url = urlsplit(self.url or os.environ.get("DOCKER_HOST") or DEFAULT_URL)
        if url.scheme in {"unix", "http+unix"}:
            return _Stream(*await asyncio.open_unix_connection(url.path, limit=MAX_HEAD_BYTES))
        if url.scheme in {"tcp", "http"}:
            port = url.port or 2375
            return _Stream(*await asyncio.open_connection(url.hostname, port, limit=MAX_HEAD_BYTES))
        raise Unavailable(f"engine {url.scheme}: commands inside of jobs need a Unix socket or tcp")

    @staticmethod
    async def _container(stream: _Stream, key: Key) -> Json:
        """Return the inspection of the running container of an attempt, which may have been renamed."""
        labels = [
            f"{LABEL_INSTANCE}={key.instance}",
            f"{LABEL_JOB}={key.job_id}",
            f"{LABEL_ATTEMPT}={key.attempt}",
        ]
        filters = quote(json.dumps({"label": labels}))
        # All of them: the list shows one that has just begun as created.
        listed: Any = await stream.ask("GET", f"/containers/json?all=1&filters={filters}")
        for entry in listed:
            if key_of(entry) == key:
                found = await stream.ask("GET", f"/containers/{entry['Id']}/json")
                if found["State"]["Running"]:
                    return found
        raise Refused(f"job {key.job_id}: attempt {key.attempt} does not run (any more)")


@dataclass(slots=True)
class DockerExecProcess:
    """Satisfies ``runner.core.ports.exec.ExecProcess``."""

    engine: DockerExec
    stream: _Stream
    number: str  # the engine's id of the command
    container: str
    tty: bool
    outlives: bool
    _ended: bool = field(default=False, init=False)

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        reader = self.stream.reader
        with suppress(OSError, asyncio.IncompleteReadError):  # the engine died; exit_code tells
            while True:
                if self.tty:
                    chunk, number = await reader.read(CHUNK_BYTES), STDOUT
                    if not chunk:
                        break
                    yield number, chunk
                    continue
                head = await reader.readexactly(FRAME_HEAD_BYTES)
                number, left = head[0], int.from_bytes(head[4:], "big")
                while left:
                    chunk = await reader.read(min(left, CHUNK_BYTES))
                    if not chunk:
                        return
                    left -= len(chunk)
                    yield number, chunk

    async def write(self, content: bytes) -> None:
        with suppress(OSError):
            self.stream.writer.write(content)
            await self.stream.writer.drain()

    async def end_input(self) -> None:
        with suppress(OSError, NotImplementedError):
            self.stream.writer.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        if self.tty:
            with suppress(_EngineError, OSError, TimeoutError):  # it has ended, or not begun
                query = f"h={size.rows}&w={size.columns}"
                await self.engine.ask("POST", f"/exec/{self.number}/resize?{query}")

    async def signal(self, number: int) -> None:
        with _engine_errors("signal a command"):
            state = await self.engine.ask("GET", f"/exec/{self.number}/json")
        if state["Running"] and not _send_signal(int(state["Pid"]), self.container, number):
            raise Unavailable("the command runs where this daemon cannot signal it")

    async def exit_code(self) -> int:
        """Return the exit code; the engine may know it a moment after the end of the output."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EXIT_LIMIT_S
        pause_s, longest_s = EXIT_POLL_S
        while True:
            with _engine_errors("ask for an exit code"):
                state = await self.engine.ask("GET", f"/exec/{self.number}/json")
            if not state["Running"] and state["ExitCode"] is not None:
                self._ended = True
                return int(state["ExitCode"])
            if loop.time() > deadline:
                raise Unavailable("the command has closed its output and runs on; its exit code is unknown")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def close(self) -> None:
        self.stream.close()
        if not (self._ended or self.outlives):
            with suppress(Unavailable):
                await self.signal(signals.SIGHUP)


def _exec_config(container: Json, request: ExecRequest) -> Json:
    """Return the body of the request that makes a command; its user is that of the container.

    Raises:
        Refused: the container does not run as the owner of the job, or runs as root.
    """
    user = str(container["Config"]["User"])
    uid = user.partition(":")[0]
    if uid != str(request.owner.uid) or uid == "0":
        raise Refused(f"the container runs as {user or 'root'}, and not as {request.owner.name}")
    directory = directory_of(container["Config"]["Entrypoint"] or ())
    return {
        "User": user,
        "Cmd": list(inside_script(directory, request.argv)),
        "Env": [f"{name}={value}" for name, value in request.environment.items()],
        "Privileged": False,
        "Tty": request.terminal is not None,
        "AttachStdin": request.has_input,
        "AttachStdout": True,
        "AttachStderr": True,
    }


def _send_signal(pid: int, container: str, number: int) -> bool:
    """Send a signal to a process of a container; return False if the process cannot be reached from here.

    An engine in another pid namespace tells pids of that namespace.  So the process must be in the control
    group of the container.
    """
    try:
        descriptor = open_process(pid)
    except ProcessLookupError:
        return True
    try:
        if container not in Path(f"/proc/{pid}/cgroup").read_text():
            return False
        signals.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, FileNotFoundError):
        return True
    except PermissionError:
        return False
    finally:
        os.close(descriptor)
    return True


def _message(content: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return shortened(str(json.loads(content)["message"]))
    return shortened(content.decode(errors="replace"))


@contextmanager
def _engine_errors(action: str) -> Iterator[None]:
    """Translate what the engine answers, and its silence."""
    try:
        yield
    except _EngineError as error:
        if error.status == 409:  # the container has stopped meanwhile
            raise Refused(f"{action}: {error}") from error
        raise Unavailable(f"{action}: the container engine says: {error}") from error
    except TimeoutError as error:
        raise Unavailable(f"{action}: the container engine does not answer; try again") from error
    except (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError) as error:
        fact = shortened(str(error) or type(error).__name__)
        raise Unavailable(f"{action}: the container engine does not answer ({fact}); try again") from error
