"""Runs the dashboard until it is interrupted."""

import signal
import socket
import sys
from collections.abc import Callable
from time import monotonic
from typing import Final

import uvicorn

from runner.client.client import Client
from runner.dashboard.access import Access
from runner.dashboard.app import application
from runner.dashboard.daemon import Daemon

GRACE_S: Final = 2
"""Longest time for which open streams hold up the end."""


def serve(client: Client, access: Access, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Answer browsers at a socket; ``ready`` is called when it does."""
    app = application(Daemon(client, monotonic), access)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="off",
    )
    signal.signal(signal.SIGTERM, _leave)  # so that the socket is removed, whoever ends this process
    ready()
    uvicorn.Server(config).run(sockets=[listener])


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)
