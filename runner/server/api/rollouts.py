"""HTTP for changes to a job: apply, canary, rollback, revisions."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from runner.server.api.deps import LARGEST, Body, C, decoded
from runner.server.api.views import moment
from runner.services.jobs import MAX_JOB_FILE_BYTES, JobService, Submission
from runner.services.rollout.canary import CanaryService
from runner.services.rollout.service import RolloutRequest as Change
from runner.services.rollout.service import RolloutService
from runner.services.rollout.verify import RolloutVerifier

router: Final = APIRouter(prefix="/v1")


class ChangeBody(Body):
    path: str = Field(max_length=4096)
    shown: str | None = Field(None, max_length=4096)
    text_b64: str = Field(max_length=MAX_JOB_FILE_BYTES * 4 // 3 + 4096)
    job: str | None = Field(None, max_length=200, description="null: the job of the file's name.")
    dry_run: bool = False
    approve: bool = False
    canary: str | None = Field(None, max_length=20, description="Id of a canary that has been measured.")
    steps: int = Field(0, ge=0, le=1_000_000, description="Steps of a canary that is to begin.")

    def change(self) -> Change:
        """Return what is asked for."""
        submission = Submission(self.path, decoded(self.text_b64), shown=self.shown)
        return Change(self.job, submission, self.approve, self.canary, self.steps)


class RollbackBody(Body):
    revision: int | None = Field(None, ge=1, le=LARGEST)


async def applying_of(request: Request) -> RolloutService:
    applying: RolloutService = request.app.state.applying
    return applying


A = Annotated[RolloutService, Depends(applying_of)]


@router.post("/apply")
async def apply(body: ChangeBody, applying: A, caller: C) -> Any:  # noqa: ANN401
    if body.dry_run:
        offer, number = await run_in_threadpool(applying.weigh, caller, body.change()), None
    else:
        offer, number = await run_in_threadpool(applying.apply, caller, body.change())
    return JSONResponse(offer.json(number, approved=body.approve))


@router.post("/canaries")
async def canary(body: ChangeBody, applying: A, caller: C) -> Any:  # noqa: ANN401
    trial = await run_in_threadpool(applying.canary, caller, body.change())
    return JSONResponse({"job": trial.parent, **trial.json()}, status_code=201)


@router.get("/jobs/{reference}/canaries/{canary_id}")
async def look(reference: str, canary_id: str, applying: A, caller: C) -> Any:  # noqa: ANN401
    row = await run_in_threadpool(applying.service.readable, caller, reference)
    return JSONResponse({"job": row.job.id, **applying.canaries.get(canary_id, row.job.id).json()})


@router.post("/jobs/{reference}/rollback")
async def rollback(reference: str, body: RollbackBody, applying: A, caller: C) -> Any:  # noqa: ANN401
    to, number, follows = await run_in_threadpool(applying.rollback, caller, reference, body.revision)
    return JSONResponse({"to": to, "revision": number, "follows": follows})


@router.get("/jobs/{reference}/revisions")
async def revisions(reference: str, applying: A, caller: C) -> Any:  # noqa: ANN401
    known = await run_in_threadpool(applying.revisions, caller, reference)
    return JSONResponse({"revisions": [{**each, "at": moment(each["at"])} for each in known]})


def attach(app: FastAPI, service: JobService) -> RolloutVerifier:
    """Let an application answer about changes, and return who looks after them."""
    applying = RolloutService(service, CanaryService(service))
    app.state.applying = applying
    app.include_router(router)
    return RolloutVerifier(applying)
