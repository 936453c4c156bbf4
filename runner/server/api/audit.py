"""The audit log: who changed what, when, and from which process; and what was refused.

One JSON object per line, in ``audit.log`` of the state directory, which only the daemon's user can read.
Lines are only ever appended.  A file that has become large is renamed, and a limited number of files is kept.
"""

import fcntl
import json
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

import structlog
from starlette.requests import Request

from runner.core.ports.clock import Clock
from runner.server.api.peer import Peer, peer_of

log = structlog.get_logger()

MAX_BYTES: Final = 16 * 1024**2
"""A larger file is renamed."""

KEPT_FILES: Final = 8
"""``audit.log.1`` is the newest of the renamed ones."""

MAX_PATH: Final = 256
"""Letters of a request's path that are kept; the caller chose them."""

REFUSED: Final = 403

_GET_FLAGS: Final = 0x80086601
"""``FS_IOC_GETFLAGS``: the attributes that ``lsattr`` shows."""

_APPEND_ONLY: Final = 0x20
"""``FS_APPEND_FL``: the file can only grow (``chattr +a``)."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class AuditLog:
    """Appends lines to a file that only this user can read."""

    def __init__(
        self, path: Path, clock: Clock, max_bytes: int = MAX_BYTES, kept_files: int = KEPT_FILES
    ) -> None:
        self._clock = clock
        self._path, self._max_bytes, self._kept_files = path, max_bytes, kept_files
        self._lock = Lock()
        self._complained = False
        self._unmovable = False  # it cannot be renamed, and grows

    def write(self, entry: dict[str, object]) -> None:
        """Append an entry.  A file that cannot be written is reported in the log, and stops nobody."""
        line = json.dumps({"at": self._clock.now().isoformat(), **entry}).encode() + b"\n"
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                if not self._complained:
                    log.warning("audit.cannot_write", path=str(self._path), problem=error.strerror)
                self._complained = True
            else:
                self._complained = False

    def note(
        self, peer: Peer, method: str, path: str, status: int, jobs: Sequence[str] | None = None
    ) -> None:
        """Append an entry about a request; ``jobs`` are the ids of the jobs that it has made."""
        entry = {
            "uid": peer.uid,
            "gid": peer.gid,
            "pid": peer.pid,
            "method": method,
            "path": path[:MAX_PATH],
            "status": status,
        }
        self.write(entry if jobs is None else {**entry, "jobs": list(jobs)})

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.write(descriptor, line)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > self._max_bytes and not self._unmovable:
            self._try_to_rotate()

    def _try_to_rotate(self) -> None:
        """Rename a large file; one that only grows, as after ``chattr +a``, keeps growing."""
        try:
            self._rotate()
        except PermissionError as error:
            self._unmovable = True
            log.warning("audit.not_rotated", path=str(self._path), problem=error.strerror)

    def describe(self) -> None:
        """Log whether the file system lets the file only grow, if the file is there."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return
        try:
            flags = bytearray(8)
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        except OSError:  # a file system without such attributes
            only_grows = False
        else:
            only_grows = bool(int.from_bytes(flags[:4], sys.byteorder) & _APPEND_ONLY)
        finally:
            os.close(descriptor)
        log.info("audit.opened", path=str(self._path), only_grows=only_grows)

    def _rotate(self) -> None:
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._kept_files))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with suppress(FileNotFoundError):
                newer.replace(older)


class AuditMiddleware:
    """Writes an entry for each request that may change something, and for each that is refused."""

    def __init__(self, app: Application, audit: AuditLog) -> None:
        self._app, self._audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note how it was answered."""

        async def note(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message["status"])
            await send(message)

        await self._app(scope, receive, note if scope["type"] == "http" else send)

    def _note(self, scope: Scope, status: int) -> None:
        if scope["method"] in {"GET", "HEAD"} and status != REFUSED:
            return
        peer = peer_of(Request(scope).client)
        jobs = scope.get("state", {}).get("audited_jobs")
        self._audit.note(peer, scope["method"], scope["path"], status, jobs)
