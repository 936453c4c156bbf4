"""HTTP for jobs: submit, list, cancel, signal, restart, hold, release, logs, events."""

import asyncio
import json
import os
import signal as signals
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from jobs.contract import CONTRACT_VERSION
from runner.agent.package_locks import PackagesPending
from runner.base.errors import Refused, UsageError
from runner.base.waiting import is_wanted
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.states import Allocated, Running, Stopping
from runner.core.policy.change_class import change_rows
from runner.core.ports.store import EventRow, JobRow
from runner.files.revision import parse_revision
from runner.files.submission import Submission
from runner.server.api import logs, views
from runner.server.api.deps import (
    LARGEST,
    LONGEST_WAIT_S,
    Body,
    CallerDep,
    FileBody,
    Number,
    SchedulesDep,
    ServiceDep,
    json_answer,
    make_router,
)
from runner.server.api.log_start import find_start
from runner.server.api.packages import pending_json, with_packages
from runner.server.api.privacy import hide_summary, shows_only_own
from runner.server.api.reported import reported
from runner.server.api.schedules import schedule_json
from runner.server.api.threads import run_check, run_control, run_in_share
from runner.server.api.why import begins, reason
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.diff import compare_revisions
from runner.services.rollout.limits import AT_ONCE
from runner.services.schedules.service import ScheduleService

T = TypeVar("T")

VERSION: Final = version("gpu-job-runner")
"""The version that runs, whatever has been installed since."""

PAGE: Final = 200
"""Jobs in one answer at most: nothing else is done while one is made.  The next page begins where it ends."""

RECHECK_S: Final = 10.0
"""Between two looks at a job that is waited for, if nothing is announced."""

MAX_CANCELLED: Final = 1000
"""As many jobs as a matrix may have."""


router = make_router()


class AfterBody(Body):
    job: str = Field(max_length=200)
    condition: str = Field("ok", max_length=20)


class InsteadBody(Body):
    priority_class: str | None = Field(None, max_length=200)
    after: list[AfterBody] | None = Field(None, max_length=64)
    not_before: str | None = Field(None, max_length=100)
    priority: int | None = None


class SubmitBody(FileBody):
    name: str | None = Field(None, max_length=200)
    token: str | None = Field(None, max_length=64, description="Names the submission: no second job.")
    dry_run: bool = False
    wait_s: float = Field(20.0, ge=0, le=30, description="How long to wait for packages to be resolved.")
    instead: InsteadBody = Field(InsteadBody(), description="In place of what the file says.")


class CancelBody(Body):
    jobs: tuple[Annotated[str, Field(max_length=200)], ...] = Field((), max_length=MAX_CANCELLED)
    sweep: str | None = Field(None, max_length=200, description="All jobs of a matrix, by any of them.")


class SignalBody(Body):
    signal: str = Field(max_length=20)


class RestartBody(Body):
    start: Literal["checkpoint", "scratch"] | Number = Field("checkpoint", alias="from")
    lineage: int | None = Field(None, ge=1, le=LARGEST, description="An earlier one, to go back to.")


def _remaining_s(deadline: float) -> float:
    """Return the seconds until a time of the event loop; 0 when nobody waits for the answer any more."""
    return deadline - asyncio.get_running_loop().time() if is_wanted.get()() else 0.0


def _summary(service: JobService, row: JobRow) -> views.Json:
    why, progress = service.daemon.why(row.job.id), service.queries.progress(row)
    return views.summary(row, why, progress)


def _with_last(service: JobService, row: JobRow) -> views.Json:
    """Return one job as a list shows it, also with what it has told last if it does not run."""
    shown, job, told = _summary(service, row), row.job, None
    if shown["progress"] is None and job.attempts:
        told = service.queries.last_progress(row, job.attempts, job.lineage)
    return {**shown, "last_progress": None if told is None else told.model_dump(mode="json")}


def _detail(service: JobService, caller: Caller, row: JobRow) -> views.Json:
    attempts = service.queries.attempts(row)
    newest, result, *_ = attempts[-1] if attempts else (None, None, None)
    return {
        **hide_summary(service, caller, row, _with_last(service, row)),
        "attempts": [
            {**views.attempt(*known), **({"checkpoint_step": None} if row.job.has_versions else {})}
            for known in attempts
        ],
        "lineage": row.job.lineage,
        "lineages": row.job.lineages,
        "run_dir": str(service.attempt_service.directory(row).root),
        "image": getattr(row.job.state, "image", None if newest is None else newest.image),
        "network": views.network(*service.attempt_service.network(row)),
        "settings": views.settings(row.job.turned),
        "advice": service.queries.advice(row),
        "revision": json.loads(row.revision) if service.queries.has_permission(caller, row) else None,
        "next_start": _next_start(service, row) if service.queries.has_permission(caller, row) else [],
        **reported(service, row, None if not attempts else attempts[-1][2]),
        "result": None if result is None else result.model_dump(mode="json"),
        "unreadable": service.store.unreadable(row.job.id),
    }


def _next_start(service: JobService, row: JobRow) -> list[str]:
    """Return the differences of a job's next attempt from the one that runs."""
    state = row.job.state
    if not isinstance(state, Allocated) or state.attempt.revision == row.job.revision:
        return []
    begun = service.store.revision(row.job.id, state.attempt.revision)
    if begun is None:
        return []
    found = compare_revisions(parse_revision(begun.whole), parse_revision(row.revision))
    rows = sorted(row for row in change_rows(found) if row[0] not in AT_ONCE)
    return [f"{name} {before} → {after}" for name, before, after, *_ in rows]


@router.get("/version")
async def get_version(service: ServiceDep) -> dict[str, Any]:
    """Answer with the version of the daemon, and where its state is."""
    return {
        "version": VERSION,
        "contract_version": CONTRACT_VERSION,
        "api": 1,
        "instance": service.store.instance,
        "state_dir": str(service.state_dir),
        "executor": service.daemon.context.executor.kind,
        "pid": os.getpid(),
        "started_at": service.started_at.isoformat(),
        "jobs": await run_control(service.store.count_states),
    }


@router.post("/jobs")
async def submit(
    request: Request, body: SubmitBody, service: ServiceDep, schedules: SchedulesDep, caller: CallerDep
) -> Response:
    """Submit the jobs of a job file, or make its schedule."""
    submission = body.submission(name=body.name, token=body.token, instead=body.instead.model_dump())
    # Most files have neither the word nor an escape that could be in it, and are not parsed twice.
    may_have = b"schedule" in submission.text or b"\\" in submission.text
    if may_have and await run_check(schedules.has_schedule, caller, submission):
        return await _make_schedule(schedules, caller, submission, dry_run=body.dry_run)
    try:
        if body.dry_run:
            plan = service.submission.dry_run
            return await with_packages(service, body.wait_s, json_answer, plan, caller, submission)
        rows = await with_packages(service, body.wait_s, service.submission.submit_all, caller, submission)
    except PackagesPending as error:
        return JSONResponse({"pending": await run_in_share(pending_json, error.pending)}, status_code=202)
    request.state.audited_jobs = [row.job.id for row in rows]
    answer = await run_in_share(json_answer, _submitted, service, rows)
    answer.status_code = 201
    return answer


def _submitted(service: JobService, rows: Sequence[JobRow]) -> views.Json:
    revision = parse_revision(rows[0].revision)
    warnings = [*service.submission.warnings(revision), *service.submission.shared_checkpoints(rows)]
    jobs = [_summary(service, row) for row in rows]
    return {"job": jobs[0], "jobs": jobs, "warnings": warnings}


@router.get("/submissions/{token}")
async def get_submission(token: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with the jobs that the caller's submission of this token has made; none is no error."""

    def submitted() -> views.Json:
        return {"jobs": [_summary(service, row) for row in service.submission.submitted(caller, token)]}

    return await run_control(json_answer, submitted)


async def _make_schedule(
    schedules: ScheduleService, caller: Caller, submission: Submission, *, dry_run: bool
) -> Response:
    """Make the schedule of a job file; with ``dry_run`` only show it."""
    if dry_run:
        draft = await run_check(schedules.draft, caller, submission)
        plan = await run_check(schedules.service.submission.dry_run, caller, submission)
        return await run_check(json_answer, lambda: {**plan, "schedule": schedule_json(schedules, draft)})
    row = await run_check(schedules.make, caller, submission)
    answer = await run_check(json_answer, lambda: {"schedule": schedule_json(schedules, row)})
    answer.status_code = 201
    return answer


class JobsQuery(BaseModel):
    """The jobs that are asked for."""

    all: bool = False
    mine: bool = False
    limit: int | None = None
    cursor: Number | None = None
    label: str | None = None
    ended: bool | None = None
    sweep: str | None = None
    last: bool = False


@router.get("/jobs")
async def list_jobs(service: ServiceDep, caller: CallerDep, query: Annotated[JobsQuery, Query()]) -> Any:
    """Answer with a page of jobs, the newest first; with ``sweep`` the jobs of one matrix.

    With ``ended`` there are only those that have ended, or only the others, unless a label is given.
    ``next`` is the ``cursor`` of the next page, null behind the last one.  With ``last`` each job has
    ``last_progress``: what it has told last, if it does not run any more.
    """
    return await run_control(json_answer, _page, service, caller, query)


def _page(service: JobService, caller: Caller, query: JobsQuery) -> views.Json:
    """Return a page of jobs."""
    describe = _with_last if query.last else _summary

    def show(row: JobRow) -> views.Json:
        return hide_summary(service, caller, row, describe(service, row))

    if query.sweep is not None:
        rows = service.queries.sweep(caller, query.sweep)
        return {"jobs": [show(row) for row in rows], "next": None}
    limit = PAGE if query.limit is None else min(max(query.limit, 1), PAGE)
    only_own = query.mine or shows_only_own(service, caller, query.label)
    uid = service.submission.owner(caller).uid if only_own else None
    rows = service.queries.recent(
        uid, limit, every=query.all, label=query.label, before=query.cursor, ended=query.ended
    )
    following = int(rows[-1].job.id) if len(rows) == limit else None
    if query.label is not None:  # it would tell who has it
        rows = tuple(row for row in rows if not service.queries.is_hidden(caller, row))
    jobs = [show(row) for row in rows]
    unrecorded = service.queries.unrecorded(caller) if query.cursor is None else ()
    return {"jobs": jobs, "next": following, "unrecorded": unrecorded}


@router.get("/jobs/{reference}")
async def get_job(reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with everything about one job."""

    def shown() -> views.Json:
        return _detail(service, caller, service.queries.find(reference, caller))

    return await run_control(json_answer, shown)


@router.get("/jobs/{reference}/why")
def get_reason(reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Answer with the pending reason of a job, or with what it does and its expected end."""
    row = service.queries.find(reference, caller)
    more = service.queries.missed_checkpoints(row) + service.queries.blocked(row)
    return JSONResponse(reason(service.daemon, row, more, begins(row)))


@router.get("/jobs/{reference}/wait")
async def wait(
    reference: str,
    service: ServiceDep,
    caller: CallerDep,
    timeout: float = 30,  # noqa: ASYNC109
    *,
    started: bool = False,
) -> Any:
    """Answer when the job has ended or is held, after ``timeout`` seconds, or when the daemon leaves.

    With ``started`` also when it runs.
    """

    def look(job_id: str) -> tuple[JobRow, bool]:
        row = service.queries.find(job_id)
        runs = started and isinstance(row.job.state, Running | Stopping)
        return row, runs or service.queries.is_settled(row)

    row = await run_in_share(service.queries.find, reference, caller)
    deadline = asyncio.get_running_loop().time() + min(max(timeout, 0), LONGEST_WAIT_S)
    with service.broadcast.listen(row.job.id) as listener:
        row, is_over = await run_in_share(look, row.job.id)  # it may have changed before we listened
        while not is_over and (remaining_s := _remaining_s(deadline)) > 0:
            await listener.wait(min(remaining_s, RECHECK_S))
            row, is_over = await run_in_share(look, row.job.id)

    def settled() -> views.Json:
        return {"done": is_over, "job": _detail(service, caller, row)}

    return await run_in_share(json_answer, settled)


@router.post("/jobs/{reference}/cancel")
async def cancel_job(reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Cancel one job; to cancel it twice is no error."""

    def cancel() -> views.Json:
        row, changed = service.job_control.cancel(caller, reference)
        return {"job": _summary(service, row), "changed": changed}

    return await run_control(json_answer, cancel)


@router.post("/cancel")
async def cancel_jobs(body: CancelBody, service: ServiceDep, caller: CallerDep) -> Any:
    """Cancel jobs together, in one transaction: all of them or none."""
    return await run_control(json_answer, _cancel_together, service, caller, body)


def _cancel_together(service: JobService, caller: Caller, body: CancelBody) -> views.Json:
    """Cancel jobs, and return them.

    Raises:
        UsageError: it is not said which ones.
    """
    if bool(body.jobs) == (body.sweep is not None):
        raise UsageError("cancel: give jobs or a sweep, one of them")
    if body.sweep is None:
        found = service.job_control.cancel_all(caller, body.jobs)
    else:
        found = service.job_control.cancel_sweep(caller, body.sweep)
    jobs = [{"job": _summary(service, row), "changed": changed} for row, changed in found]
    return {"jobs": jobs}


@router.post("/jobs/{reference}/signal")
async def send_signal(reference: str, body: SignalBody, service: ServiceDep, caller: CallerDep) -> Any:
    """Send a signal to the program of a running job."""
    name, number = _parse_signal(body.signal)
    signal = partial(service.job_control.signal, caller, reference, number, name)
    return await run_control(json_answer, _after, service, signal)


def _after(service: JobService, change: Callable[[], JobRow]) -> views.Json:
    """Return a job as it is after a change."""
    return {"job": _summary(service, change())}


def _parse_signal(text: str) -> tuple[str, int]:
    """Return the name and the number of a signal that is given by either."""
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and int(name) in set(signals.Signals):
        found = signals.Signals(int(name))
    elif f"SIG{name}" in signals.Signals.__members__:
        found = signals.Signals[f"SIG{name}"]
    else:
        raise UsageError(f"{text[:20]!r}: is not a signal; for example TERM, USR1 or KILL")
    return found.name, int(found)


@router.post("/jobs/{reference}/restart")
async def restart(reference: str, body: RestartBody, service: ServiceDep, caller: CallerDep) -> Any:
    """Start another attempt of a job, from a checkpoint or from scratch."""
    start = Start(StartFrom.STEP, body.start) if isinstance(body.start, int) else Start(StartFrom(body.start))
    where = "" if body.lineage is None else f" in lineage {body.lineage}"

    def restarted() -> views.Json:
        row = service.job_control.restart(caller, reference, start, body.lineage)
        return {"job": _summary(service, row), "begins": begins(row) + where}

    return await run_in_share(json_answer, restarted)


@router.post("/jobs/{reference}/hold")
async def hold(reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Hold a job: it gives its resources back and waits for ``release``."""
    return await run_control(
        json_answer, _after, service, partial(service.job_control.hold, caller, reference)
    )


@router.post("/jobs/{reference}/release")
async def release(reference: str, service: ServiceDep, caller: CallerDep) -> Any:
    """Release a held job into the queue."""

    def released() -> views.Json:
        row = service.job_control.release(caller, reference)
        return {"job": _summary(service, row), "begins": begins(row)}

    return await run_control(json_answer, released)


@router.get("/jobs/{reference}/decisions")
def list_decisions(
    reference: str, service: ServiceDep, caller: CallerDep, attempt: Number | None = None
) -> Any:
    """Answer with the decisions of the policy, the oldest first, and the rows that cannot be read."""
    row = service.queries.readable(caller, reference)
    found = [json.loads(each.body) for each in service.store.decisions(row.job.id, attempt)]
    return JSONResponse({"decisions": found, "unreadable": service.store.unreadable(row.job.id)})


@router.get("/jobs/{reference}/log")
async def get_log(
    request: Request,
    reference: str,
    service: ServiceDep,
    caller: CallerDep,
    query: Annotated[logs.LogQuery, Query()],
) -> Response:
    """Answer with the log from ``offset`` on, waiting up to ``wait`` seconds for something new.

    ``tail`` (lines) and ``since`` (Unix time, within some seconds) choose the offset in the log of a job, and
    ``rank`` one of the processes of its attempt.
    """
    polls: logs.LogPolls = request.app.state.log_polls
    row = await run_in_share(service.queries.readable, caller, reference)
    offset = query.offset
    if query.part == "job" and not (query.tail is None and query.since is None):
        offset = await run_in_share(find_start, service, row, query)
    read = partial(logs.read_chunk, service, row.job.id, query, offset)
    deadline = asyncio.get_running_loop().time() + min(max(query.wait, 0), LONGEST_WAIT_S)
    found = await run_in_share(read)
    while not found.has_news and _remaining_s(deadline) > 0:
        await polls.pause()
        found = await run_in_share(read)
    return Response(found.content, media_type="text/plain", headers=found.headers())


@router.get("/events")
async def list_events(  # noqa: PLR0913, PLR0917  (one per query parameter)
    service: ServiceDep,
    caller: CallerDep,
    job: str | None = None,
    after: Number = 0,
    wait: float = 0,
    limit: int = 1000,
) -> Any:
    """Answer with the events behind ``after``, waiting up to ``wait`` seconds for one."""
    row = None if job is None else await run_in_share(service.queries.find, job, caller)
    job_id = None if row is None else row.job.id
    deadline = asyncio.get_running_loop().time() + min(max(wait, 0), LONGEST_WAIT_S)
    look = partial(service.store.events, after, job_id, min(max(limit, 1), 10_000))
    with service.broadcast.listen(job_id) as listener:
        found = await run_in_share(look)
        while not found and (remaining_s := _remaining_s(deadline)) > 0:
            # A note about a job is no change of it, and is found at the next look.
            await listener.wait(min(remaining_s, 1.0))
            found = await run_in_share(look)

    def events() -> views.Json:
        newest = found[-1][0].seq if found else after
        is_private = service.settings.private_jobs and job_id is None
        seen = _own_events(service, caller, found) if is_private else found
        return {"events": [views.event(row, name) for row, name in seen], "next": newest}

    return await run_in_share(json_answer, events)


def _own_events(
    service: JobService, caller: Caller, found: Sequence[tuple[EventRow, str]]
) -> tuple[tuple[EventRow, str], ...]:
    """Return the events of the jobs that a caller may see."""
    rows = {job: service.store.get(job) for job in {event.job_id for event, _ in found}}
    seen = {
        job for job, row in rows.items() if row is not None and not service.queries.is_hidden(caller, row)
    }
    return tuple((event, name) for event, name in found if event.job_id in seen)


@router.post("/stop")
async def stop(request: Request, caller: CallerDep) -> Any:
    """Stop the daemon; jobs go on."""
    if caller.uid not in {0, os.geteuid()}:
        others = f" and uid {os.geteuid()}" if os.geteuid() else ""
        raise Refused(f"only root{others} may stop this daemon")
    request.app.state.leave()
    return JSONResponse({})
