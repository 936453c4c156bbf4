"""HTTP for what differs between jobs, revisions and files."""

from typing import Any, Final

from fastapi import APIRouter
from pydantic import Field

from runner.files.submission import MAX_JOB_FILE_BYTES, Submission
from runner.server.api.deps import Body, CallerDep, ServiceDep, decode_base64, json_answer
from runner.server.api.threads import SharedThreadsRoute, run_check
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.job_diff import JobDiff

router: Final = APIRouter(prefix="/v1", route_class=SharedThreadsRoute)


class FileBody(Body):
    path: str = Field(max_length=4096)
    shown: str | None = Field(None, max_length=4096, description="The path as it was typed, for messages.")
    text_b64: str = Field(max_length=MAX_JOB_FILE_BYTES * 4 // 3 + 4096)

    def submission(self) -> Submission:
        """Return the file as a submission."""
        return Submission(self.path, decode_base64(self.text_b64), shown=self.shown)


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
