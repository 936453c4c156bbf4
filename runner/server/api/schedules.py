"""HTTP for schedules: list, show, pause, resume, remove, next.  They are made by ``POST /v1/jobs``."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from runner.core.ports.schedules import FiringRow, ScheduleRow
from runner.server.api.deps import C
from runner.server.api.views import Json, moment
from runner.services.schedules.service import MOST, ScheduleService
from runner.services.schedules.trigger import ScheduleTrigger

router: Final = APIRouter(prefix="/v1")


async def schedules_of(request: Request) -> ScheduleService:
    schedules: ScheduleService = request.app.state.schedules
    return schedules


D = Annotated[ScheduleService, Depends(schedules_of)]


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


def attach(app: FastAPI) -> ScheduleTrigger:
    """Let an application answer about its schedules, and return who submits their jobs."""
    app.include_router(router)
    schedules: ScheduleService = app.state.schedules
    return schedules.timetable


def summary(schedules: ScheduleService, row: ScheduleRow) -> Json:
    """Return what a list shows of one schedule; its next times are on its own clock."""
    return {
        "id": row.id or None,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "note": row.note,
        **row.terms,
        "made_at": moment(row.made_at),
        "next": [at.isoformat(timespec="minutes") for at in schedules.next_times(row)],
        "last": next(map(_occasion, schedules.occasions(row)), None),
    }


def detail(schedules: ScheduleService, row: ScheduleRow) -> Json:
    """Return everything about one schedule."""
    occasions = [_occasion(each) for each in schedules.occasions(row)]
    return {**summary(schedules, row), "path": row.path, "text": row.text, "occasions": occasions}


def _occasion(row: FiringRow) -> Json:
    return {
        "at": row.at.isoformat(timespec="minutes"),
        "state": row.state,
        "job": row.job_id,
        "text": row.text,
    }
