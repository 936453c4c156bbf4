"""HTTP for those who look: the machine in one answer, what was used, figures for a monitoring system."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from runner.core.accounting.usage import GroupBy, total_usage, usage_by
from runner.server.api.deps import LONGEST_WAIT_S, S
from runner.server.api.exposition import CONTENT_TYPE
from runner.server.api.metrics import MetricsPage
from runner.server.api.overview import DeviceRows, Overviews, Starts, no_extras, unknown_load
from runner.server.api.views import moment
from runner.services.jobs import JobService
from runner.services.monitor import UtilizationMonitor

if TYPE_CHECKING:
    from runner.server.api.figures_port import MetricsPort

router: Final = APIRouter()

LONGEST_SPAN_S: Final = 10 * 366 * 86400.0


@router.get("/v1/overview")
async def overview(request: Request, service: S, wait: float = 0) -> Any:  # noqa: ANN401
    """Answer with the whole machine, when something has changed or after ``wait`` seconds."""
    overviews: Overviews = request.app.state.overviews
    if wait > 0:
        await service.broadcast.wait(min(wait, LONGEST_WAIT_S))
    return JSONResponse(await run_in_threadpool(overviews.now))


@router.get("/v1/usage")
def used(
    service: S,
    by: GroupBy = GroupBy.USER,
    since_s: Annotated[float, Query(gt=0, le=LONGEST_SPAN_S)] = 7 * 86400.0,
) -> Any:  # noqa: ANN401
    """Answer with who has used what in the last so many seconds."""
    until = service.clock.now()
    since = until - timedelta(seconds=since_s)
    return JSONResponse(_used(service, since, until, by))


def _used(service: JobService, since: datetime, until: datetime, by: GroupBy) -> dict[str, Any]:
    usage_records = service.usage_report.between(since, until)
    span, capacity = (since.timestamp(), until.timestamp()), service.daemon.context.capacity
    return {
        "since": moment(since),
        "until": moment(until),
        "by": by.value,
        "uses": [asdict(each) for each in usage_by(usage_records, *span, by)],
        "total": asdict(total_usage(usage_records, *span)),
        "there": {
            "device_s": len(capacity.devices) * (until - since).total_seconds(),
            "cpu_s": capacity.cpus * (until - since).total_seconds(),
        },
    }


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Answer with all figures."""
    figures: MetricsPage = request.app.state.figures
    return Response(await run_in_threadpool(figures.text), media_type=CONTENT_TYPE)


@dataclass(frozen=True, slots=True)
class StatusQueries:
    """What looks at the jobs for those who ask."""

    monitor: UtilizationMonitor
    tcp: "MetricsPort | None" = None

    def start(self) -> None:
        self.monitor.start()
        if self.tcp is not None:
            self.tcp.start()

    def stop(self) -> None:
        """Look no more; while the loop still runs, for it writes what was seen last."""
        if self.tcp is not None:
            self.tcp.stop()
        self.monitor.stop()


def attach(
    app: FastAPI, service: JobService, more: DeviceRows = no_extras, starts: Starts = unknown_load
) -> StatusQueries:
    """Let an application answer those who look.

    ``more`` tells about devices what their vitals do not, ``starts`` when a waiting job will start.

    Raises:
        UsageError: nobody can ever listen where ``metrics.listen`` says.
    """
    monitor = UtilizationMonitor(service)
    app.state.overviews = overviews = Overviews(service, more, starts, monitor)
    app.state.figures = figures = MetricsPage(overviews, monitor)
    app.include_router(router)
    listen = service.settings.metrics.listen
    return StatusQueries(monitor, None if listen is None else _port(figures, listen))


def _port(figures: MetricsPage, listen: str) -> "MetricsPort":
    from runner.server.api.figures_port import over_tcp  # noqa: PLC0415  few sites have one, and it loads a web server

    return over_tcp(figures, listen)
