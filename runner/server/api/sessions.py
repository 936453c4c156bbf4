"""Sessions inside of jobs over WebSockets: the bytes of a command, of a terminal, of a forwarded port.

A session begins with one JSON message of the client.  Then binary messages carry bytes: to the job as they
are, from the job behind one byte that names the output.  Text messages carry JSON: from the client the size
of its terminal, a signal or the end of its input, from the daemon at last its exit code or an error.

Users never reach the socket of the container engine.
"""

import asyncio
import json
import signal as signals
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, Field, ValidationError
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from runner.adapters.host.users import SUBORDINATE_IDS
from runner.base.errors import Refused, RunnerError, UsageError
from runner.core.ports.exec import ExecPort, ExecProcess, ExecRequest, TerminalSize
from runner.server.api.application import error_body
from runner.server.api.audit import AuditLog
from runner.server.api.deps import AdmittedUids, Body
from runner.server.api.peer import Peer, peer_of
from runner.server.api.threads import of_person, run_control
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.sessions.service import Session, SessionService

M = TypeVar("M", bound=BaseModel)

MAX_MESSAGE_BYTES: Final = 1024**2
"""Of one message of a client; the largest holds the arguments of a command."""

FIRST_MESSAGE_S: Final = 30.0
"""How long a client may take to say what it wants."""

MAX_ARGUMENTS: Final = 4096


class SizeBody(Body):
    rows: int = Field(24, ge=1, le=10_000)
    columns: int = Field(80, ge=1, le=10_000)

    def size(self) -> TerminalSize:
        """Return the size as the executor knows it."""
        return TerminalSize(self.rows, self.columns)


class ExecBody(Body):
    argv: tuple[str, ...] = Field(min_length=1, max_length=MAX_ARGUMENTS)
    input: bool = False
    terminal: SizeBody | None = None
    term: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9_.+-]*$", description="The variable TERM.")


class ControlBody(Body):
    """What a client says while a session lasts; one field at a time."""

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
    _open: Counter[int] = field(default_factory=Counter, init=False)  # by the uid of the person

    async def exec(self, websocket: WebSocket) -> None:
        """Run a command inside of a job."""
        await self._serve(websocket, self._exec)

    async def _serve(
        self, websocket: WebSocket, handle: Callable[[WebSocket, Caller], Awaitable[None]]
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

    async def _exec(self, websocket: WebSocket, caller: Caller) -> None:
        body = await _first(websocket, ExecBody)
        terminal = None if body.terminal is None else body.terminal.size()
        program = PurePosixPath(body.argv[0]).name
        session = await self._begin(websocket, caller, f"exec of {program}")
        request = ExecRequest(
            body.argv,
            session.row.owner,
            {"TERM": body.term or "xterm"} if terminal else {},
            body.input,
            terminal,
        )
        outcome = "it did not begin"
        try:
            process = await self.executor.start(session.key, request)
            try:
                outcome = "its client went away"
                code = await _relay(websocket, process)
                outcome = f"exit code {code}"
            finally:
                await process.close()
        finally:
            await self._end(session, outcome)

    async def _begin(self, websocket: WebSocket, caller: Caller, what: str) -> Session:
        reference = str(websocket.path_params["reference"])
        return await run_control(SessionService(self.service).begin, caller, reference, what)

    async def _end(self, session: Session, outcome: str) -> None:
        await asyncio.shield(run_control(SessionService(self.service).end, session, outcome))


def attach(app: FastAPI, service: JobService, executor: ExecPort) -> None:
    """Add the routes of sessions to an application."""
    routes = SessionRoutes(service, executor, app.state.admitted, app.state.audit)
    app.router.routes.append(WebSocketRoute("/v1/jobs/{reference}/exec", routes.exec))


async def _relay(websocket: WebSocket, process: ExecProcess) -> int:
    """Move bytes between a client and a command until the command ends; return its exit code.

    Raises:
        WebSocketDisconnect: the client has gone.
    """
    incoming = asyncio.create_task(_incoming(websocket, process))
    outgoing = asyncio.create_task(_outgoing(websocket, process))
    try:
        await asyncio.wait({incoming, outgoing}, return_when=asyncio.FIRST_COMPLETED)
        if not outgoing.done():
            incoming.result()  # raises: it ends only with the client
        outgoing.result()
        code = await process.exit_code()
        await _last(websocket, {"exit": code})
        return code
    finally:
        for task in (incoming, outgoing):
            task.cancel()
        await asyncio.gather(incoming, outgoing, return_exceptions=True)


async def _incoming(websocket: WebSocket, process: ExecProcess) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1006)
        if message.get("bytes") is not None:
            await process.write(message["bytes"])
        else:
            await _control(process, _parse(message.get("text") or "", ControlBody))


async def _control(process: ExecProcess, said: ControlBody) -> None:
    if said.size is not None:
        await process.resize(said.size.size())
    if said.signal is not None:
        with suppress(KeyError):
            await process.signal(signals.Signals[f"SIG{said.signal}"])
    if said.eof:
        await process.end_input()


async def _outgoing(websocket: WebSocket, process: ExecProcess) -> None:
    async for number, chunk in process.outputs():
        await websocket.send_bytes(bytes((number,)) + chunk)


async def _first(websocket: WebSocket, model: type[M]) -> M:
    """Return the first message of a client.

    Raises:
        UsageError: it is not what it must be, or does not come.
    """
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return _parse(await websocket.receive_text(), model)
    except TimeoutError as error:
        raise UsageError(f"the client has not said within {FIRST_MESSAGE_S:.0f} s what it wants") from error
    except KeyError as error:
        raise UsageError("the first message of a session is text") from error


def _parse(text: str, model: type[M]) -> M:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where or 'message'}: {first['msg']}") from error


async def _last(websocket: WebSocket, message: dict[str, Any]) -> None:
    """Send the last message of a session and close it, unless the client has gone."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await websocket.send_text(json.dumps(message))
        await websocket.close()
