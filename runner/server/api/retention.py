"""HTTP for the retention of run directories."""

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from runner.base.threads import PeriodicThread
from runner.server.api.deps import CallerDep
from runner.server.api.threads import SharedThreadsRoute
from runner.server.api.views import moment
from runner.services.context import check_operator
from runner.services.retention import Removal, RetentionService

router: Final = APIRouter(route_class=SharedThreadsRoute)


class PruneBody(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False


def attach(app: FastAPI, retention: RetentionService) -> PeriodicThread:
    """Add the route to an application, and return the thread behind it."""
    app.state.retention = retention
    app.include_router(router)
    return retention.thread()


@router.post("/v1/prune")
def prune(request: Request, body: PruneBody, caller: CallerDep) -> Any:  # noqa: ANN401
    """Remove the run directories that the limits in the settings do not allow to stay."""
    check_operator(caller, "remove run directories")
    retention: RetentionService = request.app.state.retention
    removals = retention.pending() if body.dry_run else retention.apply()
    limits = retention.service.settings.retention
    return JSONResponse({"removed": [_removal(each) for each in removals], "unlimited": limits.is_unlimited})


def _removal(removal: Removal) -> dict[str, Any]:
    run = removal.run
    return {
        "job": run.job_id,
        "name": run.name,
        "owner": run.owner,
        "ended": moment(run.ended),
        "bytes": run.size,
        "why": removal.why,
    }
