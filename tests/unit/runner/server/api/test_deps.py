"""Every route admits its caller first, and runs within the caller's share."""

from fastapi.routing import APIRoute

from runner.server.api.deps import get_caller
from runner.server.api.threads import SharedThreadsRoute
from scripts.docs.api import ROUTES


def test_every_route_admits_its_caller_and_runs_within_the_share_of_that_person() -> None:
    routes = [route for module in ROUTES for route in module.router.routes]
    assert [route for route in routes if not isinstance(route, SharedThreadsRoute)] == []
    assert [
        route.path
        for route in routes
        if isinstance(route, APIRoute)
        and get_caller not in {each.call for each in route.dependant.dependencies}
    ] == []
