"""What the routes share: who calls, the services, request bodies and their limits."""

import base64
from typing import Annotated, Final

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from runner.base.errors import UsageError
from runner.server.api.peer import peer_of
from runner.services.jobs import Caller, JobService

LONGEST_WAIT_S: Final = 60.0


LARGEST: Final = 2**63 - 1
"""The largest whole number that the store takes."""


Number = Annotated[int, Field(ge=0, le=LARGEST)]


class Body(BaseModel):
    """Base of every request body: closed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


async def service_of(request: Request) -> JobService:
    service: JobService = request.app.state.service
    return service


async def caller_of(request: Request) -> Caller:
    peer = peer_of(request.client)
    return Caller(peer.uid, peer.gid)


S = Annotated[JobService, Depends(service_of)]


C = Annotated[Caller, Depends(caller_of)]


def decoded(text: str) -> bytes:
    """Return what was sent as base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise UsageError("text_b64: is not base64") from error
