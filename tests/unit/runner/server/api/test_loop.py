"""The event loop answers everybody: no request makes it describe jobs or write long texts."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi.responses import JSONResponse

from runner.adapters.host.curve_files import CurveFiles
from runner.server.api import curves, schedules, views
from runner.server.api import jobs as module
from runner.services.curves import CurveService
from runner.services.submission.service import SubmissionService
from tests.unit.runner.server.api.test_jobs import JOB, Site

SHORT: Final = 1000
"""Characters of an answer that the loop may write itself."""


def is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    curves.attach(site.app, CurveService(site.service, CurveFiles(tmp_path / "curves")))
    yield site
    site.service.daemon.stop()


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what was done on the loop, as a list that grows."""
    found: list[str] = []

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any, **named: Any) -> Any:
            if is_on_loop():
                found.append(name)
            return work(*args, **named)

        return do

    monkeypatch.setattr(module, "_summary", watched("a summary", module._summary))
    monkeypatch.setattr(module, "_detail", watched("a detail", module._detail))
    monkeypatch.setattr(module, "schedule_json", watched("a schedule", schedules.schedule_json))
    checks = watched("a user's files", SubmissionService.warnings)
    monkeypatch.setattr(SubmissionService, "warnings", checks)
    monkeypatch.setattr(views, "event", watched("an event", views.event))
    render = JSONResponse.render

    def rendered(answer: JSONResponse, content: Any) -> bytes:
        text = render(answer, content)
        if is_on_loop() and len(text) > SHORT:
            found.append(f"{len(text)} bytes of JSON")
        return text

    monkeypatch.setattr(JSONResponse, "render", rendered)
    return found


def test_nothing_long_is_made_on_the_loop(site: Site, on_loop: list[str]) -> None:
    answers = [site.submit(JOB, token="t")]  # noqa: S106  no password
    site.until("running")
    nightly = JOB + "name: nightly\nschedule: {cron: 30 2 * * *, timezone: Europe/Berlin}\n"
    answers += [site.submit(nightly, dry_run=True), site.submit(nightly)]
    paths = ["jobs", "jobs/1", "jobs/1/wait?timeout=0", "jobs/1/curves", "jobs/1/account"]
    paths += ["devices/history", "events", "submissions/t"]
    answers += [site.submit(JOB, dry_run=True), *(site.ask("GET", f"/{path}") for path in paths)]
    answers += [
        site.ask("POST", "/jobs/1/signal", {"signal": "USR1"}),
        site.ask("POST", "/jobs/1/hold", {}),
    ]
    site.until("held")
    answers += [site.ask("POST", f"/jobs/1/{verb}", {}) for verb in ("release", "cancel")]
    assert [answer.status_code for answer in answers if answer.status_code >= 300] == []
    assert on_loop == []
