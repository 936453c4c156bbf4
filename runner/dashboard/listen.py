"""Address of the dashboard: this machine's loopback, or a socket that the user alone may open."""

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.base.errors import Unavailable, UsageError

BACKLOG: Final = 128

USUAL_NAME: Final = "runner-dash.sock"

FORWARDED_PORT: Final = 8433
"""The port on the user's own computer in the line that is printed for ``ssh -L``."""


@dataclass(frozen=True, slots=True)
class Address:
    """A path of a Unix socket, or a host with a port; port 0 is any that is free."""

    path: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0


def parse_address(text: str) -> Address:
    """Return the address that ``--listen`` names: a path, ``HOST:PORT`` or ``PORT``.

    Raises:
        UsageError: it is neither.
    """
    if "/" in text:
        return Address(Path(text).absolute())
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise UsageError(f"--listen {text}: give a port, HOST:PORT, or the path of a socket with a /")
    return Address(None, host.strip("[]") or "127.0.0.1", int(port))


def usual_address(environ: Mapping[str, str], *, shared: bool) -> Address:
    """Return the address to listen at by default.

    The loopback of a server belongs to all its users.  So on a shared server, and for whoever came by ssh,
    it is a socket of mode 0600, which ``ssh -L`` carries to the user's own computer.
    """
    if not shared and "SSH_CONNECTION" not in environ:
        return Address()
    base = environ.get("XDG_RUNTIME_DIR") or f"/tmp/runner-{os.geteuid()}"  # noqa: S108  made with mode 0700 below
    return Address(Path(base) / USUAL_NAME)


@contextmanager
def listening(address: Address) -> Iterator[socket.socket]:
    """Listen at an address; a socket file that nobody listens at is replaced, and removed at the end.

    Raises:
        Unavailable: the address cannot be taken.
    """
    made = _unix(address.path) if address.path else _tcp(address)
    try:
        yield made
    finally:
        made.close()
        if address.path:
            with suppress(OSError):
                address.path.unlink()


def _tcp(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Unavailable(
            f"{address.host}:{address.port}: {error.strerror}; choose another --listen"
        ) from error
    return made


def _unix(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)
    try:
        if path.name == USUAL_NAME:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        _check_directory(path.parent)
        _remove_left(path)
        os.umask(0o177)
        made.bind(str(path))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Unavailable(f"{path}: {error.strerror or error}; choose another --listen") from error
    except Unavailable:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which somebody else could replace the socket.

    Raises:
        Unavailable: it or a link to it belongs to another user, or others may write to it.
    """
    found = directory.stat()
    shared = stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX
    if not {found.st_uid, directory.lstat().st_uid} <= {os.geteuid(), 0} or shared:
        raise Unavailable(f"{directory}: others may write to it; choose another --listen")


def _remove_left(path: Path) -> None:
    """Remove a socket that a killed dashboard has left.

    Raises:
        Unavailable: a dashboard listens there, or it is no socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Unavailable(f"{path}: is no socket; choose another --listen")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise Unavailable(f"{path}: a dashboard listens there already; stop it, or choose another --listen")
