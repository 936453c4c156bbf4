"""HTTP for ending many jobs at a time: one question to the loop and one transaction, however many."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from runner.base.errors import UsageError
from runner.server.api import views
from runner.server.api.deps import Body, C, S
from runner.services.jobs import Caller, JobService

router: Final = APIRouter(prefix="/v1")

MOST: Final = 1000
"""As many as a matrix may have."""


class CancelBody(Body):
    jobs: tuple[Annotated[str, Field(max_length=200)], ...] = Field((), max_length=MOST)
    sweep: str | None = Field(None, max_length=200, description="All jobs of a matrix, by any of them.")


@router.post("/cancel")
async def cancel(body: CancelBody, service: S, caller: C) -> Any:  # noqa: ANN401
    if bool(body.jobs) == (body.sweep is not None):
        raise UsageError("cancel: give jobs or a sweep, one of them")
    return JSONResponse(await run_in_threadpool(_cancelled, service, caller, body))


def _cancelled(service: JobService, caller: Caller, body: CancelBody) -> views.Json:
    if body.sweep is None:
        found = service.cancel_all(caller, body.jobs)
    else:
        found = service.cancel_sweep(caller, body.sweep)
    return {
        "jobs": [
            {
                "job": views.summary(row, service.daemon.why(row.job.id), service.progress(row)),
                "changed": changed,
            }
            for row, changed in found
        ]
    }


def attach(app: FastAPI) -> None:
    """Let an application end many jobs at a time."""
    app.include_router(router)
