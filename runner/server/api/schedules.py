"""HTTP for schedules: list, show, pause, resume, remove, next.  They are made by ``POST /v1/jobs``."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from runner.server.api.jobs import C
from runner.server.api.schedule_views import detail, summary
from runner.services.schedules.service import MOST, Schedules
from runner.services.schedules.trigger import Timetable

router: Final = APIRouter(prefix="/v1")


async def schedules_of(request: Request) -> Schedules:
    schedules: Schedules = request.app.state.schedules
    return schedules


D = Annotated[Schedules, Depends(schedules_of)]


@router.get("/schedules")
def list_schedules(schedules: D, caller: C, *, all: bool = False) -> Any:  # noqa: A002, ANN401
    rows = schedules.listed(caller, every=all)
    return JSONResponse({"schedules": [summary(schedules, row) for row in rows]})


@router.get("/schedules/{reference}")
def show(reference: str, schedules: D, caller: C) -> Any:  # noqa: ANN401
    return JSONResponse(detail(schedules, schedules.find(caller, reference)))


@router.get("/schedules/{reference}/next")
def coming(reference: str, schedules: D, caller: C, n: Annotated[int, Field(ge=1, le=MOST)] = 5) -> Any:  # noqa: ANN401
    row = schedules.find(caller, reference)
    times = [at.isoformat(timespec="minutes") for at in schedules.next_times(row, n)]
    return JSONResponse({"id": row.id, "name": row.name, "state": row.state, "next": times})


@router.post("/schedules/{reference}/{verb}")
async def steer(reference: str, verb: Literal["pause", "resume", "remove"], schedules: D, caller: C) -> Any:  # noqa: ANN401
    row = await run_in_threadpool(getattr(schedules, verb), caller, reference)
    return JSONResponse({"schedule": summary(schedules, row)})


def attach(app: FastAPI) -> Timetable:
    """Let an application answer about its schedules, and return who submits their jobs."""
    app.include_router(router)
    schedules: Schedules = app.state.schedules
    return schedules.timetable
