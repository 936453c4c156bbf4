"""HTTP for those who look: the machine in one answer, what was used, figures for a monitoring system."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from runner.adapters.sqlite.used import Used
from runner.core.accounting.usage import By, total, usage
from runner.server.api.exposition import CONTENT_TYPE
from runner.server.api.jobs import LONGEST_WAIT_S, S
from runner.server.api.metrics import Figures
from runner.server.api.overview import DeviceRows, Overviews, Starts, nobody_knows, nothing_more
from runner.server.api.views import moment
from runner.services.jobs import Service
from runner.services.monitor import Meter

if TYPE_CHECKING:
    from runner.server.api.figures_port import TcpFigures

router: Final = APIRouter()

LONGEST_SPAN_S: Final = 10 * 366 * 86400.0


@router.get("/v1/overview")
async def overview(request: Request, service: S, wait: float = 0) -> Any:  # noqa: ANN401
    """Answer with the whole machine, when something has changed or after ``wait`` seconds."""
    overviews: Overviews = request.app.state.overviews
    if wait > 0:
        await service.pulse.wait(min(wait, LONGEST_WAIT_S))
    return JSONResponse(await run_in_threadpool(overviews.now))


@router.get("/v1/usage")
def used(
    service: S,
    by: By = By.USER,
    since_s: Annotated[float, Query(gt=0, le=LONGEST_SPAN_S)] = 7 * 86400.0,
) -> Any:  # noqa: ANN401
    """Answer with who has used what in the last so many seconds."""
    until = service.clock.now()
    since = until - timedelta(seconds=since_s)
    return JSONResponse(_used(service, since, until, by))


def _used(service: Service, since: datetime, until: datetime, by: By) -> dict[str, Any]:
    lendings = Used(service.store).between(since, until)
    span, capacity = (since.timestamp(), until.timestamp()), service.daemon.world.capacity
    return {
        "since": moment(since),
        "until": moment(until),
        "by": by.value,
        "uses": [asdict(each) for each in usage(lendings, *span, by)],
        "total": asdict(total(lendings, *span)),
        "there": {
            "device_s": len(capacity.devices) * (until - since).total_seconds(),
            "cpu_s": capacity.cpus * (until - since).total_seconds(),
        },
    }


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Answer with all figures."""
    figures: Figures = request.app.state.figures
    return Response(await run_in_threadpool(figures.text), media_type=CONTENT_TYPE)


@dataclass(frozen=True, slots=True)
class Seeing:
    """What looks at the jobs for those who ask."""

    meter: Meter
    tcp: "TcpFigures | None" = None

    def start(self) -> None:
        self.meter.start()
        if self.tcp is not None:
            self.tcp.start()

    def stop(self) -> None:
        """Look no more; while the loop still runs, for it writes what was seen last."""
        if self.tcp is not None:
            self.tcp.stop()
        self.meter.stop()


def attach(
    app: FastAPI, service: Service, more: DeviceRows = nothing_more, starts: Starts = nobody_knows
) -> Seeing:
    """Let an application answer those who look.

    ``more`` tells about devices what their vitals do not, ``starts`` when a waiting job will start.

    Raises:
        UsageError: nobody can ever listen where ``metrics.listen`` says.
    """
    meter = Meter(service)
    app.state.overviews = overviews = Overviews(service, more, starts, meter)
    app.state.figures = figures = Figures(overviews, meter)
    app.include_router(router)
    listen = service.settings.metrics.listen
    return Seeing(meter, None if listen is None else _port(figures, listen))


def _port(figures: Figures, listen: str) -> "TcpFigures":
    from runner.server.api.figures_port import over_tcp  # noqa: PLC0415  few sites have one, and it loads a web server

    return over_tcp(figures, listen)
