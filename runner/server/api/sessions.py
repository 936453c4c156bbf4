"""Sessions inside of jobs over WebSockets: the bytes of a command, of a terminal, of a forwarded port.

A session begins with one JSON message of the client.  Then binary messages carry bytes: to the job as they
are, from the job behind one byte that names the output.  Text messages carry JSON: from the client the size
of its terminal, a signal or the end of its input, from the daemon at last its exit code or an error.

Users never reach the socket of the container engine.
"""

import asyncio
import json
import re
import secrets
import signal as signals
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, FailFast, Field, ValidationError
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from runner.adapters.host.terminal import HeldTerminal, RelayedConnection
from runner.adapters.host.users import SUBORDINATE_IDS
from runner.agent.attempts.inside import MAIN, NO_PYTHON
from runner.base.errors import Refused, RunnerError, Unavailable, UsageError
from runner.base.readable import readable_duration
from runner.core.ports.exec import ExecPort, ExecProcess, ExecRequest, TerminalSize
from runner.server.api.application import error_body
from runner.server.api.audit import AuditLog
from runner.server.api.deps import AdmittedUids, Body
from runner.server.api.limits import Pace, is_limited
from runner.server.api.peer import Peer, peer_of
from runner.server.api.threads import of_person, run_control
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.sessions.service import AttemptOutcome, Session, SessionService

M = TypeVar("M", bound=BaseModel)

MAX_MESSAGE_BYTES: Final = 1024**2
"""Of one message of a client; the largest holds the arguments of a command."""

FIRST_MESSAGE_S: Final = 30.0
"""Longest time until a client has said what it wants."""

MAX_ARGUMENTS: Final = 4096

MOST_MISTAKES: Final = 100
"""In a message of which the first one is told."""

SIGNALLED: Final = 128
"""Larger exit codes are those of commands that a signal has ended."""

HOLDER_S: Final = 30.0
"""Longest start of a program of the runner inside of a job."""

MAX_SAID_BYTES: Final = 4096
"""Of what such a program says before it is ready; the job itself may write to the same pipe."""

MESSAGE_BYTES: Final = 1024
"""Least count of a message, beside its bytes: an empty one costs the daemon as much."""

CONTROL_BYTES: Final = 16 * 1024
"""Count of a message that the executor has to be asked for."""

TERMINAL_POLL_S: Final = 0.05

LONGEST_POLL_S: Final = 0.5
"""Between two looks for a terminal, which a client may wait for for long."""

SEEN_ALIVE_S: Final = 0.5
"""Time in which the executor may still show an attempt whose commands were killed with it."""

OUTCOME_S: Final = 10.0
"""Wait for an outcome, at the end of a session that ended with its attempt."""
READY: Final = b"ready\n"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


class SizeBody(Body):
    rows: int = Field(24, ge=1, le=10_000)
    columns: int = Field(80, ge=1, le=10_000)

    def size(self) -> TerminalSize:
        """Return the size as the executor knows it."""
        return TerminalSize(self.rows, self.columns)


Word = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""An argument of a program, which the kernel ends at a NUL."""


class ExecBody(Body):
    argv: Annotated[tuple[Word, ...], FailFast()] = Field(min_length=1, max_length=MAX_ARGUMENTS)
    input: bool = False
    terminal: SizeBody | None = None
    term: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9_.+-]*$", description="The variable TERM.")


class AttachBody(Body):
    session: str | None = Field(None, max_length=64, description="The name of a terminal.")
    terminal: SizeBody | None = None
    repeat: bool = True
    wait_s: float = Field(
        0, ge=0, le=60, description="How long to wait for a terminal that is not there yet."
    )


class ForwardBody(Body):
    port: int = Field(ge=1, le=65535)


class ConnectBody(Body):
    relay: str = Field(pattern=r"^\.port-[0-9]{1,5}-[0-9a-f]{8}$")


class ControlBody(Body):
    """Message of a client while a session lasts; one field at a time."""

    size: SizeBody | None = None
    signal: str | None = Field(None, max_length=20)
    eof: bool = False


@dataclass(slots=True)
class SessionRoutes:
    """The routes of sessions, and how many sessions each person has."""

    service: JobService
    executor: ExecPort
    admitted: AdmittedUids
    audit: AuditLog
    pace: Pace = field(default_factory=Pace)
    _open: Counter[int] = field(default_factory=Counter, init=False)  # by the uid of the person

    async def serve(
        self, handle: Callable[[WebSocket, Caller], Awaitable[None]], websocket: WebSocket
    ) -> None:
        """Answer one session: who may, how many at a time, and errors as the last message."""
        peer = peer_of(websocket.client)
        person = SUBORDINATE_IDS.person(peer.uid)
        await websocket.accept()
        with of_person(person):
            try:
                await self._admit(peer, person)
                self._open[person] += 1
                try:
                    await handle(websocket, Caller(peer.uid, peer.gid))
                finally:
                    self._open[person] -= 1
                self._audit(websocket, peer, None)
            except RunnerError as error:
                self._audit(websocket, peer, error)
                await _last(websocket, {"error": error_body(error)})
            except WebSocketDisconnect:
                self._audit(websocket, peer, None)

    async def _admit(self, peer: Peer, person: int) -> None:
        """Raise ``Refused`` if a caller has no account here, or too many sessions."""
        if not self.admitted.knows(peer.uid):
            await run_control(self.admitted.admit, peer.uid)
        most = self.service.settings.sessions_per_user
        if self._open[person] >= most:
            raise Refused(f"uid {person} has {most} sessions already (sessions_per_user); end some")

    def _audit(self, websocket: WebSocket, peer: Peer, error: RunnerError | None) -> None:
        self.audit.note(peer, "WEBSOCKET", websocket.url.path, 101 if error is None else 403)

    async def exec(self, websocket: WebSocket, caller: Caller) -> None:
        """Run a command inside of a job."""
        body = await _first(websocket, ExecBody)
        program = PurePosixPath(body.argv[0]).name
        if body.terminal is not None:
            await self._exec_on_terminal(websocket, caller, body, program, body.terminal.size())
            return
        async with self._session(websocket, caller, f"exec of {program}") as (session, outcome, recorded):
            request = ExecRequest(body.argv, session.row.owner, has_input=body.input)
            process = await self.executor.start(session.key, request, recorded)
            outcome.append(await self._through(websocket, process, session))

    async def _exec_on_terminal(
        self, websocket: WebSocket, caller: Caller, body: ExecBody, program: str, size: TerminalSize
    ) -> None:
        """Run a command on a terminal that outlives this session, and attach to it."""
        name = f"{_NOT_IN_NAMES.sub('', program)[:32] or 'command'}-{secrets.token_hex(2)}"
        environment = {"TERM": body.term or "xterm"}
        async with self._session(websocket, caller, f"terminal {name}") as (session, outcome, recorded):
            await recorded
            argv = await run_control(self._sessions.prepare_terminal, session, name, body.argv, size)
            request = ExecRequest(argv, session.row.owner, environment, outlives=True)
            if await self._start_holder(session, request):
                await websocket.send_text(json.dumps({"terminal": name}))
                outcome.append(
                    await self._attach_to(websocket, session, name, AttachBody(terminal=body.terminal))
                )
                return
            request = ExecRequest(body.argv, session.row.owner, environment, has_input=True, terminal=size)
            process = await self.executor.start(session.key, request)
            outcome.append(await self._through(websocket, process, session))

    async def _start_holder(self, session: Session, request: ExecRequest) -> bool:
        """Start what stays inside of a job; return False if there is no Python to run it.

        Raises:
            Unavailable: it did not start.
        """
        process = await self.executor.start(session.key, request)
        try:
            await _await_ready(process, session)
        except _NoPythonError:
            return False
        finally:
            await process.close()
        return True

    async def attach(self, websocket: WebSocket, caller: Caller) -> None:
        """Go back to a terminal that is held in a job."""
        body = await _first(websocket, AttachBody)
        reference = str(websocket.path_params["reference"])
        name = await self._await_terminal(caller, reference, body)
        async with self._session(websocket, caller, f"terminal {name}") as (session, outcome, recorded):
            await recorded
            await websocket.send_text(json.dumps({"terminal": name}))
            outcome.append(await self._attach_to(websocket, session, name, body))

    async def _await_terminal(self, caller: Caller, reference: str, body: AttachBody) -> str:
        """Return the name of the terminal that a client wants.

        Raises:
            Refused: there is none, also after the wait that the client asks for.
        """
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + body.wait_s, TERMINAL_POLL_S
        while True:
            found = await run_control(self._sessions.find, caller, reference, "")
            try:
                return await run_control(self._sessions.choose_terminal, found, body.session)
            except Refused:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_POLL_S)

    async def _attach_to(self, websocket: WebSocket, session: Session, name: str, body: AttachBody) -> str:
        connection = await run_control(self._sessions.connect, session, name)
        size = (body.terminal or SizeBody()).size()
        held = await HeldTerminal.open(connection, size, repeat=body.repeat)
        return await self._through(websocket, held, session, is_main=name == MAIN)

    async def forward(self, websocket: WebSocket, caller: Caller) -> None:
        """Keep a port inside of a job open for ``connect``, as long as the client stays."""
        body = await _first(websocket, ForwardBody)
        name = f".port-{body.port}-{secrets.token_hex(4)}"
        what = f"port {body.port} forwarded"
        async with self._session(websocket, caller, what) as (session, outcome, recorded):
            await recorded
            argv = await run_control(self._sessions.prepare_relay, session, name, body.port)
            process = await self.executor.start(
                session.key, ExecRequest(argv, session.row.owner, has_input=True, outlives=True)
            )
            async with AsyncExitStack() as unless_ready:
                unless_ready.push_async_callback(process.close)
                await _await_ready(process, session)
                await websocket.send_text(json.dumps({"relay": name}))
                unless_ready.pop_all()
            outcome.append(await self._through(websocket, process, session))

    async def connect(self, websocket: WebSocket, caller: Caller) -> None:
        """Carry one connection to a forwarded port."""
        body = await _first(websocket, ConnectBody)
        reference = str(websocket.path_params["reference"])
        session = await run_control(self._sessions.find, caller, reference, "")
        connection = await run_control(self._sessions.connect, session, body.relay)
        process = await RelayedConnection.open(connection)
        try:
            await _last(websocket, {"exit": await self._relay(websocket, process)})
        finally:
            await process.close()

    async def _through(
        self, websocket: WebSocket, process: ExecProcess, session: Session, *, is_main: bool = False
    ) -> str:
        """Let a client use a command until one of them ends; return how the command ended.

        ``is_main``: it is the program of the job, whose exit code says how both have ended.
        """
        ended = None
        try:
            code = await self._relay(websocket, process)
            if code > SIGNALLED and not is_main:
                ended = await self._ended_with_attempt(session)
        except Unavailable:
            ended = await self._ended_with_attempt(session)
            if ended is None:
                raise
            code = SIGNALLED + signals.SIGKILL
        finally:
            await process.close()
        said = {} if ended is None else {"ended": asdict(ended)}
        await _last(websocket, {"exit": code, **said})
        return f"exit code {code}" if ended is None else f"its attempt ended: {ended.cause}"

    async def _relay(self, websocket: WebSocket, process: ExecProcess) -> int:
        """Move bytes between a client and a command until the command ends; return its exit code.

        Raises:
            WebSocketDisconnect: the client has gone.
        """
        incoming = asyncio.create_task(self._incoming(websocket, process))
        outgoing = asyncio.create_task(self._outgoing(websocket, process))
        try:
            await asyncio.wait({incoming, outgoing}, return_when=asyncio.FIRST_COMPLETED)
            if not outgoing.done():
                incoming.result()  # raises: it ends only with the client
            outgoing.result()
            return await process.exit_code()
        finally:
            for task in (incoming, outgoing):
                task.cancel()
            await asyncio.gather(incoming, outgoing, return_exceptions=True)

    async def _incoming(self, websocket: WebSocket, process: ExecProcess) -> None:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code") or 1006)
            if message.get("bytes") is not None:
                await process.write(message["bytes"])
                await self._keep_pace(websocket, len(message["bytes"]))
            else:
                text = message.get("text") or ""
                await _control(process, parse_message(text, ControlBody))
                await self._keep_pace(websocket, max(len(text), CONTROL_BYTES))

    async def _outgoing(self, websocket: WebSocket, process: ExecProcess) -> None:
        async for number, chunk in process.outputs():
            await websocket.send_bytes(bytes((number,)) + chunk)
            await self._keep_pace(websocket, len(chunk))

    async def _keep_pace(self, websocket: WebSocket, size: int) -> None:
        """Count a message of a person, and wait if they are more than the settings allow."""
        uid, per_s = peer_of(websocket.client).uid, self.service.settings.session_bytes_per_s
        if per_s is not None and is_limited(uid):
            person = SUBORDINATE_IDS.person(uid)
            self.pace.take(person, max(size, MESSAGE_BYTES), per_s)
            await asyncio.sleep(self.pace.wait_s(person))

    async def _ended_with_attempt(self, session: Session) -> AttemptOutcome | None:
        """Return the end of the attempt of a command that was killed; None if the attempt goes on."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SEEN_ALIVE_S
        while await run_control(self._sessions.is_alive, session):
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(TERMINAL_POLL_S)
        deadline = loop.time() + OUTCOME_S
        while (found := await run_control(self._sessions.outcome, session)) is None:
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(TERMINAL_POLL_S)
        return found

    @asynccontextmanager
    async def _session(
        self, websocket: WebSocket, caller: Caller, what: str
    ) -> AsyncIterator[tuple[Session, list[str], asyncio.Future[None]]]:
        """Begin and end a session, with events; the last text of the list says how it ended.

        The future is done when the begin is recorded; nothing may be started inside before.
        """
        reference, outcome = str(websocket.path_params["reference"]), ["its client left"]
        session = await run_control(self._sessions.find, caller, reference, what)
        recorded = asyncio.ensure_future(run_control(self._sessions.record_begin, session))
        try:
            yield session, outcome, recorded
        except RunnerError as error:
            outcome.append(str(error).partition("\n")[0])
            raise
        finally:
            await asyncio.gather(recorded, return_exceptions=True)  # the end is recorded behind the begin
            await asyncio.shield(run_control(self._sessions.end, session, outcome[-1]))

    @property
    def _sessions(self) -> SessionService:
        return SessionService(self.service)


def attach(app: FastAPI, service: JobService, executor: ExecPort) -> None:
    """Add the routes of sessions to an application."""
    routes = SessionRoutes(service, executor, app.state.admitted, app.state.audit)
    for handle in (routes.exec, routes.attach, routes.forward, routes.connect):
        path = f"/v1/jobs/{{reference}}/{handle.__name__}"
        app.router.routes.append(WebSocketRoute(path, partial(routes.serve, handle)))


class _NoPythonError(Unavailable):
    """Inside of the job is no Python to run a program of the runner."""


async def _await_ready(process: ExecProcess, session: Session) -> None:
    """Wait until a program of the runner says that it is ready.

    Raises:
        Unavailable: it says something else, too much, or nothing for too long.
    """
    said, code = bytearray(), None
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLDER_S), aclosing(process.outputs()) as outputs:
            async for _, chunk in outputs:
                said += chunk[:MAX_SAID_BYTES]
                if said.startswith(READY):
                    return
                if len(said) >= MAX_SAID_BYTES:
                    break
            else:
                code = await process.exit_code()
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    error = _NoPythonError if code == NO_PYTHON else Unavailable
    raise error(f"job {session.row.job.id}: nothing was started: {last or 'no answer'}")


async def _control(process: ExecProcess, said: ControlBody) -> None:
    if said.size is not None:
        await process.resize(said.size.size())
    if said.signal is not None:
        with suppress(KeyError):
            await process.signal(signals.Signals[f"SIG{said.signal}"])
    if said.eof:
        await process.end_input()


async def _first(websocket: WebSocket, model: type[M]) -> M:
    """Return the first message of a client.

    Raises:
        UsageError: it is not what it must be, or does not come.
    """
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return parse_message(await websocket.receive_text(), model)
    except TimeoutError as error:
        raise UsageError(
            f"the client has not said within {readable_duration(FIRST_MESSAGE_S)} what it wants"
        ) from error
    except KeyError as error:
        raise UsageError("the first message of a session is text") from error


def parse_message(text: str, model: type[M]) -> M:
    """Return a message of a client; may raise UsageError."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        if error.error_count() > MOST_MISTAKES:  # to list all that a message holds takes seconds
            raise UsageError(f"message: has more than {MOST_MISTAKES} mistakes") from None
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where or 'message'}: {first['msg']}") from error


async def _last(websocket: WebSocket, message: dict[str, Any]) -> None:
    """Send the last message of a session and close it, unless the client has gone."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await websocket.send_text(json.dumps(message))
        await websocket.close()
