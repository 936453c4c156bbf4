"""HTTP for changes to a job: apply, canary, rollback, revisions."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import Field

from runner.core.policy.change_class import change_rows
from runner.server.api import diff
from runner.server.api.deps import LARGEST, Body, CallerDep, FileBody, RolloutsDep, json_answer, make_router
from runner.server.api.threads import run_in_share, run_rollout
from runner.server.api.views import moment
from runner.services.jobs import JobService
from runner.services.rollout.canary import CanaryService
from runner.services.rollout.limits import NewLimits, SetLimits
from runner.services.rollout.service import RolloutRequest, RolloutService
from runner.services.rollout.verify import RolloutVerifier

router: Final = make_router()


class ApplyBody(FileBody):
    job: str | None = Field(None, max_length=200, description="null: the job of the file's name.")
    dry_run: bool = False
    approve: bool = False
    canary: str | None = Field(None, max_length=20, description="Id of a canary that has been measured.")
    steps: int = Field(0, ge=0, le=1_000_000, description="Steps of a canary that is to begin.")
    at_next_start: bool = Field(default=False, description="Stop nothing: the next start uses the change.")
    file_only: bool = Field(default=False, description="Keep the code that the job has.")
    expect: float | None = Field(None, gt=1, le=1000, description="Take it back if it is not so much faster.")

    def request(self) -> RolloutRequest:
        """Return the change that is requested."""
        submission = self.submission(file_only=self.file_only)
        return RolloutRequest(
            self.job,
            submission,
            self.approve,
            self.canary,
            self.steps,
            self.at_next_start,
            self.expect,
            self.dry_run,
        )


class LimitsBody(Body):
    priority: int | None = Field(None, ge=0, le=100)
    cpus: float | None = Field(None, ge=0.1, le=1024)
    memory: int | None = Field(None, ge=1, le=LARGEST)
    time_limit_s: float | None = Field(None, ge=0, le=366 * 86400, description="0: none.")
    priority_class: str | None = Field(None, max_length=200)
    not_before: str | None = Field(None, max_length=100)


class RollbackBody(Body):
    revision: int | None = Field(None, ge=1, le=LARGEST)


@router.post("/apply")
async def apply(body: ApplyBody, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Apply a change as the policy of the job decides; with ``dry_run`` only evaluate it."""
    if body.dry_run:
        evaluation, number = await run_rollout(rollouts.evaluate, caller, body.request()), None
    else:
        evaluation, number = await run_rollout(rollouts.apply, caller, body.request())
    return await run_rollout(json_answer, evaluation.json, number, approved=body.approve)


@router.post("/canaries")
async def start_canary(body: ApplyBody, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Start a canary that measures a change."""
    trial = await run_rollout(rollouts.start_canary, caller, body.request())
    return JSONResponse({"job": trial.parent, **trial.json()}, status_code=201)


@router.get("/jobs/{reference}/canaries/{canary_id}")
async def get_canary(reference: str, canary_id: str, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Answer with the progress and the result of a canary."""
    row = await run_in_share(rollouts.service.queries.readable, caller, reference)
    trial = await run_in_share(rollouts.canaries.get, canary_id, row.job.id)
    return JSONResponse({"job": row.job.id, **trial.json()})


@router.post("/jobs/{reference}/rollback")
async def rollback(reference: str, body: RollbackBody, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Roll a job back to an earlier revision."""
    to, number, follows = await run_rollout(rollouts.rollback, caller, reference, body.revision)
    return JSONResponse({"to": to, "revision": number, "follows": follows})


@router.post("/jobs/{reference}/limits")
async def set_limits(reference: str, body: LimitsBody, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Set other limits of a job; the running attempt goes on."""
    limits = SetLimits(rollouts.service)
    row, found, later = await run_rollout(limits.set, caller, reference, NewLimits(**body.model_dump()))
    told = [
        {"field": name, "before": before, "after": after, "at_next_start": name in later}
        for name, before, after, *_ in change_rows(found)
    ]
    job = {"id": row.job.id, "name": row.name, "state": row.job.state.kind}
    return JSONResponse({"job": job, "changes": told, "revision": row.job.revision})


@router.get("/jobs/{reference}/revisions")
async def list_revisions(reference: str, rollouts: RolloutsDep, caller: CallerDep) -> Any:
    """Answer with the revisions of a job, the first one first."""

    def revisions() -> dict[str, Any]:
        known = rollouts.revisions(caller, reference)
        return {"revisions": [{**each, "at": moment(each["at"])} for each in known]}

    return await run_in_share(json_answer, revisions)


def attach(app: FastAPI, service: JobService) -> RolloutVerifier:
    """Add these routes to an application, and return the verifier of its rollouts."""
    app.state.rollouts = RolloutService(service, CanaryService(service))
    app.router.routes.extend(router.routes)
    app.router.routes.extend(diff.router.routes)
    return RolloutVerifier(app.state.rollouts)
