"""HTTP for the operator's settings."""

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from runner.files.settings.model import settings_path
from runner.server.api.deps import CallerDep, ServiceDep, make_router
from runner.server.reload import SettingsReload
from runner.services.context import check_operator

router: Final = make_router("")


def attach(app: FastAPI, reload: SettingsReload) -> None:
    """Add the route to an application."""
    app.state.settings_reload = reload
    app.router.routes.extend(router.routes)


@router.post("/v1/settings/reload")
def reload_settings(request: Request, service: ServiceDep, caller: CallerDep) -> Any:
    """Read the settings file again, for an operator, and answer with what has changed."""
    del service
    check_operator(caller, "reload the settings")
    reload: SettingsReload = request.app.state.settings_reload
    change = reload.reload()
    shown = str(reload.path or settings_path())
    return JSONResponse({"changed": change.changed, "needs_restart": change.needs_restart, "file": shown})
