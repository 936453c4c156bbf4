"""HTTP for curves: what jobs reported and what their devices did, in a bounded number of points."""

from typing import Any, Final

from fastapi import FastAPI, Request

from runner.base.threads import PeriodicThread
from runner.core.accounting.curve import Row
from runner.core.accounting.curve_set import CurveSet
from runner.server.api.deps import CallerDep, ServiceDep, json_answer, make_router
from runner.server.api.threads import run_in_share
from runner.services.accounts import AccountService
from runner.services.context import Caller
from runner.services.curves import CurveService
from runner.services.jobs import JobService

router: Final = make_router()


def attach(app: FastAPI, curves: CurveService) -> PeriodicThread:
    """Add the routes to an application, and return the thread behind them."""
    app.state.curves = curves
    app.router.routes.extend(router.routes)
    return curves.thread()


@router.get("/jobs/{reference}/curves")
async def job_curves(request: Request, reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with the curves of a job: for each name its points: time, step, mean, least, largest, number."""
    return await run_in_share(json_answer, _of_job, request.app.state.curves, service, caller, reference)


@router.get("/jobs/{reference}/account")
async def job_account(request: Request, reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with the account of a job: its time in parts, and what it used of what it asked for."""
    account = AccountService(service, request.app.state.curves)
    return await run_in_share(json_answer, account.describe, caller, reference)


@router.get("/devices/history")
async def device_history(request: Request) -> Any:
    """Answer with the use of the devices in the last day."""
    return await run_in_share(json_answer, _of_devices, request.app.state.curves)


def _of_job(curves: CurveService, service: JobService, caller: Caller, reference: str) -> dict[str, Any]:
    row = service.queries.find(reference, caller)
    return {"job": row.job.id, "name": row.name, "curves": _json(curves.of_job(row))}


def _of_devices(curves: CurveService) -> dict[str, Any]:
    return {"curves": _json(curves.of_devices())}


def _json(found: CurveSet) -> dict[str, list[Row]]:
    return {name: curve.rows() for name, curve in found.curves.items()}
