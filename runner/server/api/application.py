"""The HTTP application: its routes, its limits, and errors as ``{"error": {...}}`` with an exit code."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig

from runner.base.errors import Refused, RunnerError, Unavailable, UsageError
from runner.files.submission import MAX_JOB_FILE_BYTES
from runner.server.api import devices, files, jobs, logs
from runner.server.api.audit import AuditLog, AuditMiddleware
from runner.server.api.deps import AdmittedUids
from runner.server.api.limits import RequestLimit
from runner.services.context import NotFound
from runner.services.jobs import JobService
from runner.services.schedules.service import ScheduleService

MAX_BODY_BYTES: Final = 2 * MAX_JOB_FILE_BYTES
"""Limit of a request; the largest holds a job file as base64."""

NO_TELEMETRY: Final[TelemetryConfig] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "auto_configure": False,
}
"""Requests hold names and paths of users, so no telemetry, whatever the daemon's environment says."""

STATUS: Final[dict[type[RunnerError], tuple[int, str]]] = {
    NotFound: (404, "not_found"),
    UsageError: (422, "usage"),
    Refused: (403, "refused"),
    Unavailable: (503, "unavailable"),
}


def _error(status: int, kind: str, message: str, exit_code: int, details: str = "") -> JSONResponse:
    return JSONResponse({"error": _body(kind, message, exit_code, details)}, status_code=status)


def _body(kind: str, message: str, exit_code: int, details: str = "") -> dict[str, Any]:
    return {
        "kind": kind,
        "message": message.partition("\n")[0],
        "lines": message.splitlines(),
        "exit_code": exit_code,
        **({"details": details.splitlines()} if details else {}),
    }


def error_body(error: RunnerError) -> dict[str, Any]:
    """Return an error as clients get it, for answers that are no HTTP response."""
    return _body(_status(error)[1], str(error), error.exit_code, error.details)


def _status(error: RunnerError) -> tuple[int, str]:
    """Return the HTTP status of an error, and the name of its kind."""
    return next((found for kind, found in STATUS.items() if isinstance(error, kind)), (500, "internal"))


async def _runner_error(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RunnerError)  # noqa: S101  (registered for it)
    return _error(*_status(error), str(error), error.exit_code, error.details)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for it)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    fact = first["ctx"]["error"] if first["type"] == "json_invalid" else first["msg"]
    return _error(422, "usage", f"{where}: {fact}", UsageError.exit_code)


class Application(FastAPI):
    """The routes with a description that has the types of their answers."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            from runner.server.api.answers import described  # noqa: PLC0415  few ask for it

            self.openapi_schema = described(super().openapi())
        return self.openapi_schema


def application(service: JobService, leave: Callable[[], None]) -> FastAPI:
    """Return the HTTP application of a service; ``leave`` ends the process.

    Routes that need threads of their own (rollouts, schedules, status) are attached by the composition root.
    """
    app = Application(
        title="runner", version="1", docs_url=None, redoc_url=None,
        max_body_size=MAX_BODY_BYTES, telemetry=NO_TELEMETRY,
    )  # fmt: skip
    app.state.service, app.state.leave = service, leave
    app.state.log_polls = logs.LogPolls()
    app.state.admitted = AdmittedUids(service.users)
    app.state.schedules = ScheduleService.of(service)
    app.router.routes.extend(jobs.router.routes)
    app.router.routes.extend(devices.router.routes)
    app.router.routes.extend(files.router.routes)
    app.state.audit = AuditLog(service.state_dir / "audit.log", service.clock)
    app.state.audit.describe()
    app.add_middleware(AuditMiddleware, audit=app.state.audit)
    app.add_middleware(
        RequestLimit, settings=lambda: service.settings
    )  # before the audit, which it would fill
    app.add_exception_handler(RunnerError, _runner_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    return app
