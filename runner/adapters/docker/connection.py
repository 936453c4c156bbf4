"""Connections to the Docker engine, and the translation of what its SDK raises.

An engine that does not answer, or answers that it is broken, is ``Unavailable`` and never evidence about a
container.  What is asked of the engine is left to the executor and to the events watcher.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_UNIX, socket
from typing import Final

from docker import APIClient
from docker.errors import APIError, DockerException, InvalidConfigFile, StreamParseError
from docker.utils.config import find_config_file
from urllib3.exceptions import HTTPError

from runner.base.errors import Unavailable

DEFAULT_URL: Final = "unix:///var/run/docker.sock"

LONGEST_MESSAGE: Final = 500
"""Characters of an engine's message that are kept."""

LOGIN_ERRORS: Final = (AttributeError, TypeError, ValueError, RecursionError, InvalidConfigFile)
"""Errors of a client that reads a file of logins, as each does."""

CLOSED: Final = re.compile(r'mount config for type "bind": stat .*: permission denied')

CLOSED_TO_ROOT: Final = (
    "; it lies on a file system whose server gives root no rights (NFS): "
    "let others pass its directories and read it, or copy it to a disk of this host"
)


class EngineConnection:
    """The address of an engine, with one client per thread: the SDK's client is not safe to share."""

    def __init__(self, url: str | None, timeout_s: int) -> None:
        """Connect to nothing yet.

        Args:
            url: None means ``DOCKER_HOST``, else the default socket.
            timeout_s: of each call.
        """
        self._url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._timeout_s = timeout_s
        self._local = threading.local()

    def client(self) -> APIClient:
        """Return the client of this thread."""
        self._check_socket()
        client: APIClient | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self.connect()
        return client

    def connect(self) -> APIClient:
        """Return a new client, which the caller closes."""
        self._check_socket()
        try:
            return APIClient(base_url=self._url, version="auto", timeout=self._timeout_s)
        except LOGIN_ERRORS as error:
            path: object = find_config_file()
            raise Unavailable(f"{path}: is not a file of docker login: {error}; log in again") from error

    def _check_socket(self) -> None:
        """Raise within microseconds if nobody listens; the SDK would leave a socket open."""
        if self._url.startswith("unix://"):
            with socket(AF_UNIX) as probe:
                probe.settimeout(self._timeout_s)
                probe.connect(self._url.removeprefix("unix://"))


@contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """Translate what the SDK raises to ``Unavailable``; ``action`` says what was tried."""
    try:
        yield
    except APIError as error:
        raise Unavailable(f"{action}: the container engine says: {explanation(error)}") from error
    except (OSError, DockerException, HTTPError, StreamParseError) as error:  # those of requests are OSErrors
        fact = f"the container engine does not answer ({action}: {shortened(str(error))})"
        raise Unavailable(f"{fact}; it is tried again") from error


def explanation(error: APIError) -> str:
    """Return the engine's message on one line, and the next step where its root may not look at a mount."""
    said = shortened(str(error.explanation or error))
    return said + CLOSED_TO_ROOT if CLOSED.search(said) else said


def shortened(text: str) -> str:
    """Return the beginning of a text on one line."""
    return " ".join(text.split())[:LONGEST_MESSAGE]
