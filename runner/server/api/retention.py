"""HTTP for the retention of run directories."""

from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from runner.base.threads import PeriodicThread
from runner.server.api.deps import CallerDep, make_router
from runner.server.api.views import moment
from runner.services.context import check_operator
from runner.services.retention import Removal, RetentionService

router: Final = make_router("")


class PruneBody(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False
    mine: bool = False
    jobs: tuple[Annotated[str, Field(max_length=200)], ...] = Field((), max_length=1000)
    older_s: float = Field(0.0, ge=0, le=36_500 * 86_400)


def attach(app: FastAPI, retention: RetentionService) -> PeriodicThread:
    """Add the route to an application, and return the thread behind it."""
    app.state.retention = retention
    app.router.routes.extend(router.routes)
    return retention.thread()


@router.post("/v1/prune")
def prune(request: Request, body: PruneBody, caller: CallerDep) -> Any:
    """Remove the run directories that the limits in the settings do not allow to stay, or a user's own."""
    retention: RetentionService = request.app.state.retention
    if body.mine or body.jobs:
        own = retention.own(caller, body.jobs, timedelta(seconds=body.older_s))
        if not body.dry_run:
            own = retention.remove(own)
        return JSONResponse({"removed": [_removal(each) for each in own], "unlimited": False})
    check_operator(caller, "remove the run directories of all users; --mine removes your own")
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
