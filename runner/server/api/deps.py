"""Parts shared by the routes: FastAPI dependencies, and the base and limits of request bodies."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import to_json

from runner.base.errors import Refused, UsageError
from runner.core.ports.users import Users
from runner.files.submission import MAX_JOB_FILE_BYTES, Submission
from runner.server.api.peer import peer_of
from runner.server.api.threads import SharedThreadsRoute, run_control
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.service import RolloutService
from runner.services.schedules.service import ScheduleService

LONGEST_WAIT_S: Final = 60.0
"""Longest wait of a request for something to change."""

LARGEST: Final = 2**63 - 1
"""The largest whole number that the store takes."""

Number = Annotated[int, Field(ge=0, le=LARGEST)]


ADMITTED_S: Final = 60.0
"""For so long an account is not looked up again."""

MOST_ADMITTED: Final = 65536


class Body(BaseModel):
    """Base of every request body: no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileBody(Body):
    """Base of request bodies that have a job file."""

    path: str = Field(max_length=4096)
    shown: str | None = Field(None, max_length=4096, description="The path as it was typed, for messages.")
    text_b64: str = Field(max_length=MAX_JOB_FILE_BYTES * 4 // 3 + 4096)

    def submission(self, **options: Any) -> Submission:
        """Return the file as a submission."""
        return Submission(self.path, decode_base64(self.text_b64), shown=self.shown, **options)


# Coroutines, though they wait for nothing: FastAPI would run functions on another thread.


async def get_service(request: Request) -> JobService:
    """Return the job service of the application."""
    service: JobService = request.app.state.service
    return service


async def get_caller(request: Request) -> Caller:
    """Return the user who is connected.

    Raises:
        Refused: the daemon serves accounts of this host only, and the uid has none.
    """
    peer = peer_of(request.client)
    admitted: AdmittedUids = request.app.state.admitted
    if not admitted.knows(peer.uid):
        await run_control(admitted.admit, peer.uid)
    return Caller(peer.uid, peer.gid)


def make_router(prefix: str = "/v1") -> APIRouter:
    """Return an empty router, whose handlers run within the share of a caller that is admitted.

    Its routes are added to those of the application: ``include_router`` would make each of them once more
    at the first request, and look for the route of each request twice.
    """
    return APIRouter(prefix=prefix, route_class=SharedThreadsRoute, dependencies=[Depends(get_caller)])


class AdmittedUids:
    """The uids that have been found to have an account, for a minute each."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._until: dict[int, float] = {}

    def knows(self, uid: int) -> bool:
        """Return True if a uid was found to have an account less than a minute ago."""
        return self._until.get(uid, 0.0) > time.monotonic()

    def admit(self, uid: int) -> None:
        """Look a uid up in the user database, which may take its time.

        Raises:
            Refused: it has no account.
        """
        if (problem := self._users.account_problem(uid)) is not None:
            self._until.pop(uid, None)
            raise Refused(problem)
        if len(self._until) >= MOST_ADMITTED:
            self._until.clear()
        self._until[uid] = time.monotonic() + ADMITTED_S


async def get_schedules(request: Request) -> ScheduleService:
    """Return the schedule service of the application."""
    schedules: ScheduleService = request.app.state.schedules
    return schedules


async def get_rollouts(request: Request) -> RolloutService:
    """Return the rollout service of the application."""
    rollouts: RolloutService = request.app.state.rollouts
    return rollouts


ServiceDep = Annotated[JobService, Depends(get_service)]
CallerDep = Annotated[Caller, Depends(get_caller)]
SchedulesDep = Annotated[ScheduleService, Depends(get_schedules)]
RolloutsDep = Annotated[RolloutService, Depends(get_rollouts)]


def json_answer(work: Callable[..., object], *args: object, **named: object) -> Response:
    """Return the result of work as an answer in JSON.

    It belongs on a thread: the event loop, which answers everybody, makes no long text.
    """
    return Response(to_json(work(*args, **named)), media_type="application/json")


_BASE64: Final = TypeAdapter(bytes, config=ConfigDict(val_json_bytes="base64"))
"""A fifth of the time that ``base64`` takes: a file of a megabyte is decoded on the event loop."""


def decode_base64(text: str) -> bytes:
    """Return the bytes of the field ``text_b64``.

    Raises:
        UsageError: it is not base64.
    """
    try:
        return _BASE64.validate_strings(text)
    except ValueError as error:
        raise UsageError("text_b64: is not base64") from error
