"""Listens to the events of the Docker engine, so that the daemon need not wait for its next look.

Events are hints: after each one, and after each reconnection, the executor observes all containers.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from docker import APIClient
from docker.errors import APIError

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.adapters.docker.hardening import LABEL_INSTANCE
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread

FIRST_RECONNECT_S: Final = 0.1
"""The pause after the first lost connection; each further failure doubles it."""

JOIN_S: Final = 10.0
"""Longest wait of ``stop`` for the thread."""

log = structlog.get_logger(__name__)


class EventsWatcher:
    """Listens to the events of one instance's containers on a thread, and reconnects until it is stopped."""

    def __init__(
        self,
        connection: EngineConnection,
        instance: str,
        wake: Callable[[], None],
        reconnect_max_s: float,
    ) -> None:
        self._connection = connection
        self._filters = {"type": ["container"], "label": [f"{LABEL_INSTANCE}={instance}"]}
        self._wake = wake
        self._reconnect_max_s = reconnect_max_s
        self._lock = threading.Lock()
        self._stream: Any = None
        self._pause_s = FIRST_RECONNECT_S
        self._thread = PeriodicThread(
            "engine-events", lambda: self._pause_s, self._listen_once, begin_at_once=True
        )

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Close the stream and wait for the end of the thread."""
        self._thread.stop()
        with self._lock, suppress(AttributeError, OSError):  # the SDK's, for a stream that ends just now
            if self._stream is not None:
                self._stream.close()
        self._thread.join(JOIN_S)

    def _listen_once(self) -> None:
        """Listen until the stream ends; the next connection waits longer after each failure."""
        try:
            with engine_errors("listen to events"):
                self._listen()
            self._pause_s = FIRST_RECONNECT_S
        except Unavailable as error:
            log.debug("engine.events_lost", why=str(error))
            self._pause_s = min(self._pause_s * 2, self._reconnect_max_s)

    def _listen(self) -> None:
        client = self._connection.connect()
        try:
            stream = client.events(filters=self._filters, decode=True)
            with self._lock:
                if self._thread.stopped:
                    stream.close()
                    return
                self._stream = stream
            self._wake()  # for everything that happened while nobody listened
            for event in stream:
                if event.get("Action") == "die":
                    _await_state(client, event["Actor"]["ID"])
                self._wake()
        finally:
            with self._lock:
                self._stream = None
            client.close()


def _await_state(client: APIClient, container: str) -> None:
    """Wait until the engine's list of containers shows the end of one.

    The engine sends the event before it has cleaned up, while it holds the lock of the container.  A list
    does not take the lock and would still say "running"; an inspect takes it.
    """
    with suppress(APIError):  # it is gone, or its observation will tell
        client.inspect_container(container)
