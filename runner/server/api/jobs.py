"""HTTP in, the service's answers out.  Every error leaves as ``{"error": {...}}`` with its exit code."""

import asyncio
import json
import os
import signal as signals
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from jobs.contract import CONTRACT_VERSION
from runner.base.errors import Refused, UsageError
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.describe import describe_start
from runner.core.ports.store import JobRow
from runner.server.api import logs as log_pieces
from runner.server.api import schedules as schedule_views
from runner.server.api import views
from runner.server.api.deps import LONGEST_WAIT_S, Body, C, Number, S, decoded
from runner.server.api.why import reason
from runner.services.jobs import MAX_JOB_FILE_BYTES, Caller, JobService, Submission
from runner.services.schedules.service import ScheduleService
from runner.services.submission.revision import parse_revision

T = TypeVar("T")

VERSION: Final = version("gpu-job-runner")
"""Of what runs here, whatever has been installed over it since."""

MOST_LISTED: Final = 100_000


router = APIRouter(prefix="/v1")


class AfterBody(Body):
    job: str = Field(max_length=200)
    condition: str = Field("ok", max_length=20)


class InsteadBody(Body):
    priority_class: str | None = Field(None, max_length=200)
    after: list[AfterBody] | None = Field(None, max_length=64)
    not_before: str | None = Field(None, max_length=100)
    priority: int | None = None


class SubmitBody(Body):
    path: str = Field(max_length=4096)
    shown: str | None = Field(None, max_length=4096, description="The path as it was typed, for messages.")
    text_b64: str = Field(max_length=MAX_JOB_FILE_BYTES * 4 // 3 + 4096)
    name: str | None = Field(None, max_length=200)
    token: str | None = Field(None, max_length=64, description="Names the submission: no second job.")
    dry_run: bool = False
    instead: InsteadBody = Field(InsteadBody(), description="In place of what the file says.")


class SignalBody(Body):
    signal: str = Field(max_length=20)


class RestartBody(Body):
    start: Literal["checkpoint", "scratch"] | Number = Field("checkpoint", alias="from")


async def _apart(work: Callable[..., T], *args: object, **named: object) -> T:
    """Do blocking work on another thread."""
    return await run_in_threadpool(partial(work, *args, **named))


def _left(service: JobService, deadline: float) -> float:
    """Return the seconds until a time of the event loop; none when the daemon leaves."""
    return 0.0 if service.broadcast.leaving else deadline - asyncio.get_running_loop().time()


def _summary(service: JobService, row: JobRow) -> views.Json:
    return views.summary(row, service.daemon.why(row.job.id), service.progress(row))


def _detail(service: JobService, caller: Caller, row: JobRow) -> views.Json:
    attempts = service.attempts(row)
    newest, result, _ = attempts[-1] if attempts else (None, None, None)
    return {
        **_summary(service, row),
        "attempts": [views.attempt(*known) for known in attempts],
        "run_dir": str(service.attempt_service.directory(row).root),
        "image": getattr(row.job.state, "image", None if newest is None else newest.image),
        "settings": views.settings(row.job.turned),
        "advice": service.advice(row),
        "revision": json.loads(row.revision) if service.may_command(caller, row) else None,
        "result": None if result is None else result.model_dump(mode="json"),
    }


@router.get("/version")
async def get_version(service: S) -> dict[str, Any]:
    return {
        "version": VERSION,
        "contract_version": CONTRACT_VERSION,
        "api": 1,
        "instance": service.store.instance,
        "state_dir": str(service.state_dir),
        "executor": service.daemon.context.executor.kind,
        "pid": os.getpid(),
        "started_at": service.started_at.isoformat(),
        "jobs": await _apart(service.store.count_states),
    }


@router.post("/jobs")
async def submit(body: SubmitBody, service: S, caller: C, request: Request) -> Response:
    instead = body.instead.model_dump()
    submission = Submission(body.path, decoded(body.text_b64), body.name, body.shown, body.token, instead)
    schedules: ScheduleService = request.app.state.schedules
    # Most files do not have the word, and need not be read twice.
    if b"schedule" in submission.text and await _apart(schedules.asks_for_one, submission):
        return await _schedule(schedules, caller, submission, dry_run=body.dry_run)
    if body.dry_run:
        return JSONResponse(await _apart(service.dry_run, caller, submission))
    rows = await _apart(service.submit_all, caller, submission)
    warnings = list(parse_revision(rows[0].revision).warnings)
    jobs = [_summary(service, row) for row in rows]
    return JSONResponse({"job": jobs[0], "jobs": jobs, "warnings": warnings}, status_code=201)


async def _schedule(
    schedules: ScheduleService, caller: Caller, submission: Submission, *, dry_run: bool
) -> Response:
    """Make a schedule of a job file that has one: its jobs come at their times."""
    if dry_run:
        draft = await _apart(schedules.draft, caller, submission)
        plan = await _apart(schedules.service.dry_run, caller, submission)
        return JSONResponse({**plan, "schedule": schedule_views.summary(schedules, draft)})
    row = await _apart(schedules.make, caller, submission)
    return JSONResponse({"schedule": schedule_views.summary(schedules, row)}, status_code=201)


@router.get("/jobs")
def list_jobs(  # noqa: PLR0913  (one per query parameter)
    service: S,
    caller: C,
    *,
    all: bool = False,  # noqa: A002
    mine: bool = False,
    limit: int = MOST_LISTED,
    label: str | None = None,
    sweep: str | None = None,
) -> Any:  # noqa: ANN401
    if sweep is not None:
        return JSONResponse({"jobs": [_summary(service, row) for row in service.sweep(caller, sweep)]})
    known = min(max(limit, 1), MOST_LISTED)
    rows = service.recent(caller, every=all, mine=mine, limit=known, label=label)
    return JSONResponse({"jobs": [_summary(service, row) for row in rows]})


@router.get("/jobs/{reference}")
def get_job(reference: str, service: S, caller: C) -> Any:  # noqa: ANN401
    return JSONResponse(_detail(service, caller, service.find(reference, caller)))


@router.get("/jobs/{reference}/why")
def why(reference: str, service: S, caller: C) -> Any:  # noqa: ANN401
    """Answer with what a job waits for, or what it does, and until when about."""
    return JSONResponse(reason(service.daemon, service.find(reference, caller)))


@router.get("/jobs/{reference}/wait")
async def wait(reference: str, service: S, caller: C, timeout: float = 30) -> Any:  # noqa: ANN401, ASYNC109
    """Answer when the job has settled, after ``timeout`` seconds, or when the daemon leaves."""
    row = await _apart(service.find, reference, caller)
    deadline = asyncio.get_running_loop().time() + min(max(timeout, 0), LONGEST_WAIT_S)
    while not service.settled(row) and (left := _left(service, deadline)) > 0:
        await service.broadcast.wait(min(left, 1.0))
        row = await _apart(service.find, row.job.id)
    return JSONResponse({"done": service.settled(row), "job": await _apart(_detail, service, caller, row)})


@router.post("/jobs/{reference}/cancel")
async def cancel(reference: str, service: S, caller: C) -> Any:  # noqa: ANN401
    row, changed = await _apart(service.cancel, caller, reference)
    return JSONResponse({"job": _summary(service, row), "changed": changed})


@router.post("/jobs/{reference}/signal")
async def signal(reference: str, body: SignalBody, service: S, caller: C) -> Any:  # noqa: ANN401
    name, number = _signal(body.signal)
    row = await _apart(service.signal, caller, reference, number, name)
    return JSONResponse({"job": _summary(service, row)})


def _signal(text: str) -> tuple[str, int]:
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and int(name) in set(signals.Signals):
        found = signals.Signals(int(name))
    elif f"SIG{name}" in signals.Signals.__members__:
        found = signals.Signals[f"SIG{name}"]
    else:
        raise UsageError(f"{text[:20]!r}: is no signal; for example TERM, USR1 or KILL")
    return found.name, int(found)


@router.post("/jobs/{reference}/restart")
async def restart(reference: str, body: RestartBody, service: S, caller: C) -> Any:  # noqa: ANN401
    start = Start(StartFrom.STEP, body.start) if isinstance(body.start, int) else Start(StartFrom(body.start))
    row = await _apart(service.restart, caller, reference, start)
    return JSONResponse({"job": _summary(service, row), "begins": describe_start(row.job)})


@router.post("/jobs/{reference}/hold")
async def hold(reference: str, service: S, caller: C) -> Any:  # noqa: ANN401
    row = await _apart(service.hold, caller, reference)
    return JSONResponse({"job": _summary(service, row)})


@router.post("/jobs/{reference}/release")
async def release(reference: str, service: S, caller: C) -> Any:  # noqa: ANN401
    row = await _apart(service.release, caller, reference)
    return JSONResponse({"job": _summary(service, row)})


@router.get("/jobs/{reference}/decisions")
def decisions(reference: str, service: S, caller: C, attempt: Number | None = None) -> Any:  # noqa: ANN401
    """Answer with what the policy has decided, and why, the oldest first."""
    found = service.decisions(caller, reference, attempt)
    return JSONResponse({"decisions": [json.loads(row.body) for row in found]})


@router.get("/jobs/{reference}/log")
async def log(  # noqa: PLR0913, PLR0917  (one per query parameter)
    reference: str,
    service: S,
    caller: C,
    attempt: Number | None = None,
    offset: Number = 0,
    wait: float = 0,
    part: Literal["job", "build"] = "job",
) -> Response:
    """Answer with the log from ``offset`` on, waiting up to ``wait`` seconds for something new."""
    row = await _apart(service.readable, caller, reference)
    look = partial(log_pieces.read_chunk, service, row.job.id, part, attempt, offset)
    deadline = asyncio.get_running_loop().time() + min(max(wait, 0), LONGEST_WAIT_S)
    found = await _apart(look)
    while not found.worth_telling and _left(service, deadline) > 0:
        await asyncio.sleep(log_pieces.POLL_S)
        found = await _apart(look)
    return Response(found.content, media_type="text/plain", headers=found.headers())


@router.get("/events")
async def events(  # noqa: PLR0913, PLR0917  (one per query parameter)
    service: S, caller: C, job: str | None = None, after: Number = 0, wait: float = 0, limit: int = 1000
) -> Any:  # noqa: ANN401
    row = None if job is None else await _apart(service.find, job, caller)
    job_id = None if row is None else row.job.id
    deadline = asyncio.get_running_loop().time() + min(max(wait, 0), LONGEST_WAIT_S)
    found = await _apart(service.store.events, after, job_id, min(max(limit, 1), 10_000))
    while not found and (left := _left(service, deadline)) > 0:
        await service.broadcast.wait(min(left, 1.0))
        found = await _apart(service.store.events, after, job_id, min(max(limit, 1), 10_000))
    newest = found[-1][0].seq if found else after
    return JSONResponse({"events": [views.event(row, name) for row, name in found], "next": newest})


@router.post("/stop")
async def stop(request: Request, service: S, caller: C) -> Any:  # noqa: ANN401
    if caller.uid not in {0, os.geteuid()}:
        others = f" and uid {os.geteuid()}" if os.geteuid() else ""
        raise Refused(f"only root{others} may stop this daemon")
    del service
    request.app.state.leave()
    return JSONResponse({})
