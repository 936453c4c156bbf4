"""HTTP for sweeps: their candidates with what they have reached, stopping and resuming all of them."""

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from runner.base.threads import PeriodicThread
from runner.server.api.deps import CallerDep, json_answer, make_router
from runner.server.api.threads import run_control, run_in_share
from runner.services.sweeps import SweepService

router: Final = make_router()


def attach(app: FastAPI, sweeps: SweepService) -> PeriodicThread:
    """Add the routes to an application, and return the thread behind them."""
    app.state.sweeps = sweeps
    app.router.routes.extend(router.routes)
    return sweeps.thread()


@router.get("/sweeps/{reference}")
async def get_sweep(request: Request, reference: str, caller: CallerDep) -> Any:
    """Answer with a sweep: its candidates, their values at each rung, and the best of them."""
    sweeps: SweepService = request.app.state.sweeps
    return await run_in_share(json_answer, sweeps.describe, caller, reference)


@router.post("/sweeps/{reference}/stop")
async def stop_sweep(request: Request, reference: str, caller: CallerDep) -> Any:
    """Hold the candidates of a sweep that run or wait."""
    sweeps: SweepService = request.app.state.sweeps
    return JSONResponse(
        {"jobs": await run_control(lambda: [row.job.id for row in sweeps.hold(caller, reference)])}
    )


@router.post("/sweeps/{reference}/resume")
async def resume_sweep(request: Request, reference: str, caller: CallerDep) -> Any:
    """Release the candidates of a sweep that were held by hand."""
    sweeps: SweepService = request.app.state.sweeps
    return JSONResponse(
        {"jobs": await run_control(lambda: [row.job.id for row in sweeps.release(caller, reference)])}
    )
