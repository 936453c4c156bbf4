"""What the routes share: their FastAPI dependencies, and the base and limits of request bodies."""

import base64
from typing import Annotated, Final

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from runner.base.errors import UsageError
from runner.server.api.peer import peer_of
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.service import RolloutService
from runner.services.schedules.service import ScheduleService

LONGEST_WAIT_S: Final = 60.0
"""How long a request may wait for something to change."""

LARGEST: Final = 2**63 - 1
"""The largest whole number that the store takes."""

Number = Annotated[int, Field(ge=0, le=LARGEST)]


class Body(BaseModel):
    """Base of every request body: no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Coroutines, though they wait for nothing: FastAPI would run functions on another thread.


async def get_service(request: Request) -> JobService:
    """Return the job service of the application."""
    service: JobService = request.app.state.service
    return service


async def get_caller(request: Request) -> Caller:
    """Return the user who is connected."""
    peer = peer_of(request.client)
    return Caller(peer.uid, peer.gid)


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


def decode_base64(text: str) -> bytes:
    """Return the bytes of the field ``text_b64``.

    Raises:
        UsageError: it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError("text_b64: is not base64") from error
