"""HTTP for what differs between jobs, revisions and files."""

from typing import Any, Final

from pydantic import Field

from runner.server.api.deps import Body, CallerDep, FileBody, ServiceDep, json_answer, make_router
from runner.server.api.threads import run_check
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.job_diff import JobDiff

router: Final = make_router()


class DiffBody(Body):
    job: str | None = Field(None, max_length=200, description="The other job, or JOB@N for a revision.")
    file: FileBody | None = Field(None, description="A job file; with neither, the job's own as it is now.")


@router.post("/jobs/{reference}/diff")
async def diff(reference: str, body: DiffBody, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with what differs between a job and another job, a file, or its own file as it is now."""
    return await run_check(json_answer, _compare, service, caller, reference, body)


def _compare(service: JobService, caller: Caller, reference: str, body: DiffBody) -> dict[str, Any]:
    differ = JobDiff(service)
    file = None if body.file is None else body.file.submission()
    return differ.json(*differ.sides(caller, reference, body.job, file))
