"""HTTP for schedules: list, show, pause, resume, remove, next.  ``POST /v1/jobs`` makes them."""

from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import Field

from runner.core.ports.schedules import FiringRow, ScheduleRow
from runner.server.api.deps import CallerDep, SchedulesDep, json_answer, make_router
from runner.server.api.threads import run_in_share
from runner.server.api.views import Json, moment
from runner.services.schedules.service import MAX_NEXT_TIMES, ScheduleService
from runner.services.schedules.trigger import ScheduleTrigger

router: Final = make_router()


@router.get("/schedules")
def list_schedules(schedules: SchedulesDep, caller: CallerDep, *, all: bool = False) -> Any:  # noqa: A002
    """Answer with the schedules of the caller."""
    rows = schedules.listed(caller, every=all)
    return JSONResponse({"schedules": [schedule_json(schedules, row) for row in rows]})


@router.get("/schedules/{reference}")
def get_schedule(reference: str, schedules: SchedulesDep, caller: CallerDep) -> Any:
    """Answer with everything about one schedule."""
    return JSONResponse(detail(schedules, schedules.find(caller, reference)))


@router.get("/schedules/{reference}/next")
def list_next_times(
    reference: str,
    schedules: SchedulesDep,
    caller: CallerDep,
    n: Annotated[int, Field(ge=1, le=MAX_NEXT_TIMES)] = 5,
) -> Any:
    """Answer with the next times of a schedule."""
    row = schedules.find(caller, reference)
    times = [at.isoformat(timespec="minutes") for at in schedules.next_times(row, n)]
    return JSONResponse({"id": row.id, "name": row.name, "state": row.state, "next": times})


@router.post("/schedules/{reference}/{verb}")
async def change_state(
    reference: str, verb: Literal["pause", "resume", "remove"], schedules: SchedulesDep, caller: CallerDep
) -> Any:
    """Pause, resume or remove a schedule."""
    change = partial(getattr(schedules, verb), caller, reference)
    return await run_in_share(json_answer, lambda: {"schedule": schedule_json(schedules, change())})


def attach(app: FastAPI) -> ScheduleTrigger:
    """Add these routes to an application, and return the trigger of its schedules."""
    app.router.routes.extend(router.routes)
    schedules: ScheduleService = app.state.schedules
    return schedules.trigger


def schedule_json(schedules: ScheduleService, row: ScheduleRow) -> Json:
    """Return one schedule as JSON; its next times are in its own time zone."""
    return {
        "id": row.id or None,
        "name": row.name,
        "owner": row.owner,
        "state": row.state,
        "note": row.note,
        **row.terms,
        "made_at": moment(row.made_at),
        "next": [at.isoformat(timespec="minutes") for at in schedules.next_times(row)],
        "last": next(map(_firing_json, schedules.firings(row)), None),
    }


def detail(schedules: ScheduleService, row: ScheduleRow) -> Json:
    """Return one schedule as JSON, with its job file and its last firings."""
    firings = [_firing_json(each) for each in schedules.firings(row)]
    return {**schedule_json(schedules, row), "path": row.path, "text": row.text, "occasions": firings}


def _firing_json(row: FiringRow) -> Json:
    return {
        "at": row.at.isoformat(timespec="minutes"),
        "state": row.state,
        "job": row.job_id,
        "text": row.text,
    }
