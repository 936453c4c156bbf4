"""HTTP for the state of the whole machine: its overview, usage, and metrics."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from runner.core.accounting.usage import GroupBy, begin_of_period, goodput, share_of, total_usage, usage_by
from runner.server.api.deps import LONGEST_WAIT_S, CallerDep, ServiceDep, json_answer, make_router
from runner.server.api.metrics import CONTENT_TYPE, MetricsCollector
from runner.server.api.overview import DeviceFields, OverviewCache, StartEstimate
from runner.server.api.privacy import hide_jobs, hide_overview
from runner.server.api.threads import run_in_share
from runner.server.api.views import moment
from runner.services.jobs import JobService
from runner.services.monitor.monitor import UtilizationMonitor
from runner.services.queries import JobQueries

if TYPE_CHECKING:
    from runner.server.api.metrics_port import MetricsPort

router: Final = make_router("")

LONGEST_SPAN_S: Final = 10 * 366 * 86400.0

MOST_JOBS: Final = 200
"""Jobs in one answer at most."""


@router.get("/v1/overview")
async def get_overview(request: Request, service: ServiceDep, caller: CallerDep, wait: float = 0) -> Any:
    """Answer with the whole machine, when something has changed or after ``wait`` seconds."""
    overviews: OverviewCache = request.app.state.overviews
    if wait > 0:
        await service.broadcast.wait(min(wait, LONGEST_WAIT_S))
    found = await run_in_share(overviews.now)
    return await run_in_share(json_answer, hide_overview, service, caller, found)


@router.get("/v1/usage")
def get_usage(
    service: ServiceDep,
    caller: CallerDep,
    by: GroupBy = GroupBy.USER,
    since_s: Annotated[float, Query(gt=0, le=LONGEST_SPAN_S)] = 7 * 86400.0,
) -> Any:
    """Answer with the usage of the last ``since_s`` seconds by user, team or job.

    A period of more than two hours begins at a full hour.  Of jobs there are those that used the most;
    ``more`` is the number of the others.
    """
    until = service.clock.now()
    asked_s = (until - timedelta(seconds=since_s)).timestamp()
    since = datetime.fromtimestamp(begin_of_period(asked_s, until.timestamp()), UTC)
    report = service.usage_report
    used = report.used(since, until)
    groups, jobs = (used, 0) if by is not GroupBy.JOB else report.used_by_job(since, until, MOST_JOBS)
    rows, total = usage_by(hide_jobs(service, caller, groups), by), total_usage(used)
    capacity, period_s = service.daemon.context.capacity, (until - since).total_seconds()
    there = {"device_s": len(capacity.devices) * period_s, "cpu_s": (capacity.known_cpus or 0.0) * period_s}
    return JSONResponse(
        {
            "since": moment(since),
            "until": moment(until),
            "by": by.value,
            "uses": [asdict(share_of(each, total)) for each in rows],
            "more": max(jobs - len(rows), 0),
            "total": asdict(total),
            "there": there,
            "goodput": goodput(total, there),
            "switching_budget": service.daemon.context.site.rules.switching.budget,
        }
    )


@router.get("/metrics")
async def get_metrics(request: Request, caller: CallerDep) -> Response:
    """Answer with the metrics in the text format of Prometheus."""
    metrics: MetricsCollector = request.app.state.metrics
    return Response(
        await run_in_share(partial(metrics.text, trusted=JobQueries.sees_all(caller))),
        media_type=CONTENT_TYPE,
    )


def attach(
    app: FastAPI, service: JobService, devices: DeviceFields, starts: StartEstimate
) -> tuple[UtilizationMonitor, "MetricsPort | None"]:
    """Add these routes to an application, and return what is to be started: a monitor, perhaps a port.

    Args:
        app: the application.
        service: the job service of the application.
        devices: returns the fields of each device, by UUID.
        starts: returns when a waiting job is expected to start.

    Raises:
        UsageError: the address ``metrics.listen`` can never be taken.
    """
    monitor = UtilizationMonitor(service)
    app.state.overviews = OverviewCache(service, devices, starts, monitor)
    app.state.metrics = MetricsCollector(app.state.overviews, monitor)
    app.router.routes.extend(router.routes)
    if (listen := service.settings.metrics.listen) is None:
        return monitor, None
    from runner.server.api.metrics_port import MetricsPort  # noqa: PLC0415  few sites have one

    return monitor, MetricsPort(app.state.metrics, listen)
