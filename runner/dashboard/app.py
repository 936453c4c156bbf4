"""The application: its routes, and what is checked before each of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route

from runner.base.errors import RunnerError
from runner.client.http import ErrorResponse
from runner.dashboard import text
from runner.dashboard.access import COOKIE, HEADERS, SESSION_S, Access, Denied
from runner.dashboard.daemon import Daemon
from runner.dashboard.pages import PAGES, Page, job_curves, log_piece
from runner.dashboard.watch import MOST_STREAMS, Watch

STATIC: Final = Path(__file__).parent / "static"

FILES: Final = {
    "dash.css": "text/css",
    "dash.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "vendor/uPlot.min.css": "text/css",
    "vendor/uPlot.iife.min.js": "text/javascript",
}
"""The files that are served; no path of a request is looked up on the disk."""

VERBS: Final = {
    "cancel": {},
    "hold": {},
    "release": {},
    "restart": {"from": "checkpoint"},
    "restart-scratch": {"from": "scratch"},
}
"""The changes that a page offers, with what is sent along."""

MOST_FORM_BYTES: Final = 4096

STATUS: Final = {2: 404, 3: 403, 4: 503}
"""Of an answer, by the exit code that the daemon gives to a refusal."""

Handler = Callable[[Request], Awaitable[Response]]


def application(daemon: Daemon, access: Access) -> Starlette:
    """Return the application."""
    ask = partial(daemon.get, "/v1/overview")
    watch = Watch(lambda wait_s: ask({"wait": wait_s}, wait_s))
    dashboard = _Dashboard(daemon, access, _templates(access), watch)
    routes: list[BaseRoute] = [
        Route("/login", dashboard.open(dashboard.log_in)),
        Route("/static/{name:path}", dashboard.open(_static)),
        Route("/live", dashboard.closed(dashboard.live)),
        Route("/jobs/{ref}/curves.json", dashboard.closed(dashboard.curves)),
        Route("/jobs/{ref}/log", dashboard.closed(dashboard.log)),
        Route("/jobs/{ref}/{verb}", dashboard.closed(dashboard.change), methods=["POST"]),
        *(Route(page.path, dashboard.closed(partial(dashboard.page, page))) for page in PAGES),
    ]
    routes = [Mount(access.place, routes=routes)] if access.place else routes
    return Starlette(routes=routes, exception_handlers={404: dashboard.not_found, 405: dashboard.not_found})


def _templates(access: Access) -> Environment:
    templates = Environment(
        loader=PackageLoader("runner.dashboard"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else text.clean(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["log_text"] = text.log_text
    for name in ("ago", "clock", "duration", "size", "share", "number"):
        templates.filters[name] = getattr(text, name)
    templates.globals["pages"] = [page for page in PAGES if page.title]
    templates.globals["has_uplot"] = (STATIC / "vendor" / "uPlot.iife.min.js").exists()
    templates.globals["read_only"] = access.read_only
    templates.globals["root"] = access.place
    return templates


@dataclass(frozen=True, slots=True)
class _Dashboard:
    """The handlers of the routes."""

    daemon: Daemon
    access: Access
    templates: Environment
    watch: Watch

    def open(self, handler: Handler) -> Handler:
        """Return a handler that answers whoever knows our name."""

        async def answer(request: Request) -> Response:
            try:
                self.access.check_host(request.headers.get("host"))
                found = await handler(request)
            except Denied as denied:
                found = self._failed(denied.status, denied.reason)
            except RunnerError as error:
                found = self._failed(_status(error), str(error))
            found.headers.update(HEADERS)
            return found

        return answer

    def closed(self, handler: Handler) -> Handler:
        """Return a handler that answers those who have logged in."""

        async def answer(request: Request) -> Response:
            request.state.session = self.access.check_session(request.cookies.get(COOKIE))
            return await handler(request)

        return self.open(answer)

    async def log_in(self, request: Request) -> Response:
        """Take a ticket and give a cookie; a look at the link alone does not use it up."""
        if request.method != "GET":
            raise Denied(405, "open the link in a browser")
        session = self.access.log_in(request.query_params.get("ticket", ""))
        # A page and no redirect: a link in a file is from another site, to which a strict cookie is not sent.
        answer = self._html("entered.html", 200)
        answer.set_cookie(
            COOKIE, session, SESSION_S, path=f"{self.access.place}/", httponly=True, samesite="strict"
        )
        return answer

    async def page(self, page: Page, request: Request) -> Response:
        """Show a page."""
        query, params = dict(request.query_params.multi_items()), request.path_params
        several = request.query_params.getlist("job")
        now = datetime.now(UTC)  # noqa: TID251  the pages tell how long ago something was
        values = await run_in_threadpool(page.load, self.daemon, {**query, **params}, several, now)
        return self._html(page.template, 200, page=page, now=now, request=request, **values)

    async def change(self, request: Request) -> Response:
        """Change a job, and show it."""
        ref, verb = request.path_params["ref"], request.path_params["verb"]
        form = parse_qs((await _body(request)).decode("latin-1"))
        self.access.check_change(
            request.state.session,
            request.headers.get("host"),
            request.headers.get("origin"),
            form.get("token", [""])[0],
        )
        if verb not in VERBS:
            raise Denied(404, "there is no such change")
        await run_in_threadpool(self.daemon.change, ref, verb.partition("-")[0], VERBS[verb])
        return RedirectResponse(f"{self.access.place}/jobs/{ref}", 303)

    async def live(self, _request: Request) -> Response:
        """Tell a page when to load itself again."""
        if self.watch.streams >= MOST_STREAMS:
            raise Denied(503, "too many pages are open")
        return StreamingResponse(self.watch.stream(), media_type="text/event-stream")

    async def curves(self, request: Request) -> Response:
        """Answer with the curves of a job as JSON, in columns."""
        ref = request.path_params["ref"]
        return Response(await run_in_threadpool(job_curves, self.daemon, ref), media_type="application/json")

    async def log(self, request: Request) -> Response:
        """Answer with a piece of a log as plain text; the headers tell where the next one begins."""
        ref, query = request.path_params["ref"], dict(request.query_params)
        if "download" in query:
            first, others = await run_in_threadpool(self.daemon.whole_log, ref)
            named = {
                "Content-Disposition": f'attachment; filename="job-{ref}-attempt-{first.attempt or 0}.log"'
            }
            whole = (piece.body for piece in chain((first,), others))
            return StreamingResponse(whole, media_type="text/plain", headers=named)
        body, headers = await run_in_threadpool(log_piece, self.daemon, ref, query)
        return PlainTextResponse(body, headers=headers)

    async def not_found(self, request: Request, _error: Exception) -> Response:
        """Answer a request for a page that is not there; outside of our place nothing tells where that is."""
        answer: Response
        if request.url.path.startswith(f"{self.access.place}/"):
            answer = self._failed(404, "there is no such page")
        else:
            answer = PlainTextResponse("open the link that runner dash has printed\n", 404)
        answer.headers.update(HEADERS)
        return answer

    def _failed(self, status: int, reason: str) -> Response:
        return self._html("failed.html", status, reason=reason, code=status)

    def _html(self, template: str, status: int, **values: Any) -> Response:  # noqa: ANN401  what a page shows
        request = values.get("request")
        token = "" if request is None else self.access.form_token(request.state.session)
        shown = self.templates.get_template(template).render(**{"token": token, "page": None, **values})
        return HTMLResponse(shown, status)


async def _body(request: Request) -> bytes:
    """Return the body of a form.

    Raises:
        Denied: it is longer than any of ours.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM_BYTES:
            raise Denied(413, "the form is too long")
    return body


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in FILES or not (STATIC / name).exists():
        raise Denied(404, "there is no such file")
    return FileResponse(STATIC / name, media_type=FILES[name])


def _status(error: RunnerError) -> int:
    code = error.code if isinstance(error, ErrorResponse) else error.exit_code
    return STATUS.get(code, 502)
