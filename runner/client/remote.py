"""A daemon on another machine, reached by the user's own ssh.

One connection of ssh is kept for ten minutes and carries the daemon's socket, so that the next command needs
no new login.  Nothing listens on the network, and there is no token: sshd says who somebody is, and the
kernel of the server tells the daemon.  Where a server refuses to forward sockets, a small process of ours
runs ``runner dial`` there for each connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from runner.base.errors import Unavailable, UsageError
from runner.base.locks import lock, open_lock
from runner.client.autostart import NoDaemon, answers, connect
from runner.client.http import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE: Final = "RUNNER_HOST"

PERSIST_S: Final = 600
"""Time for which a connection is kept after its last use."""

ASK_S: Final = 20.0
"""Longest wait for the first answer through a new connection."""

API: Final = 1
"""The version of the daemon's HTTP API that this client speaks."""

SSH_FAILED: Final = 255
NOT_FOUND: Final = 127
UNAVAILABLE: Final = 4

NO_START: Final = "RUNNER_DIAL_NO_START"
"""With 1, ``runner dial`` starts no daemon; a variable, because an older runner there ignores it."""

RELAY_S: Final = 5.0
RELAY_POLL_S: Final = 0.02


class RemoteHost(NamedTuple):
    """A server, as ``ssh://user@server:port?command=/opt/runner/bin/runner`` names it."""

    name: str
    """As the user typed it, for messages."""
    destination: str
    port: int | None
    command: str
    """The program ``runner`` there, with words before it if need be."""

    @property
    def typed(self) -> str:
        """Return the command line of ssh as a user would type it."""
        return f"ssh{'' if self.port is None else f' -p {self.port}'} {self.destination}"

    def ssh(self, control: str, *options: str) -> list[str]:
        """Return the command line of ssh up to the destination."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return ["ssh", "-S", control, *port, *options, self.destination]


def hosts_file(environ: Mapping[str, str]) -> str:
    """Return the path of the file of named hosts."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "runner", "hosts.json")


def read_hosts(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the named hosts and which is used: ``{"hosts": {NAME: URL}, "use": NAME}``.

    Raises:
        UsageError: the file is not what ``runner host`` writes.
    """
    path = hosts_file(environ)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return {"hosts": dict(found["hosts"]), "use": found.get("use")}
    except FileNotFoundError:
        return {"hosts": {}, "use": None}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); remove it, and add the hosts again") from error


def chosen_host(environ: Mapping[str, str]) -> str | None:
    """Return the host that commands are for: of ``--host``, ``RUNNER_HOST`` or ``runner host use``."""
    if VARIABLE in environ:
        return environ[VARIABLE] or None  # empty: this machine, whatever is used otherwise
    if environ.get("RUNNER_SOCKET") or environ.get("RUNNER_STATE_DIR"):
        return None
    used = read_hosts(environ)["use"] if os.path.exists(hosts_file(environ)) else None
    return None if used is None else str(used)


def parse_host(text: str, environ: Mapping[str, str]) -> RemoteHost:
    """Return a host by its URL or its name.

    Raises:
        UsageError: it is neither, or could be taken for an option of ssh.
    """
    known = text if "://" in text else read_hosts(environ)["hosts"].get(text)
    if known is None:
        raise UsageError(
            f"{text}: is not a known host; give ssh://USER@SERVER, or runner host add {text} URL"
        )
    try:
        url = urlsplit(known)
        port = url.port
    except ValueError as error:
        raise UsageError(f"{known}: {error}; give ssh://USER@SERVER[:PORT]") from error
    if url.scheme != "ssh" or not url.hostname or url.path not in {"", "/"}:
        raise UsageError(f"{known}: give ssh://USER@SERVER[:PORT]")
    user = "" if url.username is None else f"{unquote(url.username)}@"
    destination = f"{user}{unquote(url.hostname)}"
    if destination.startswith("-") or not destination.isprintable() or " " in destination:
        raise UsageError(f"{known}: is not a name of a server")
    if unknown := parse_qs(url.query).keys() - {"command"}:
        raise UsageError(f"{known}: {min(unknown)} is nothing that can be said; command=/path/to/runner can")
    command = parse_qs(url.query).get("command", [environ.get("RUNNER_REMOTE_COMMAND", "runner")])[0]
    return RemoteHost(text, destination, port, command)


def remote_socket(text: str, environ: Mapping[str, str], *, starts: bool = True) -> str:
    """Return the path of a local socket behind which the daemon of a host answers.

    Raises:
        UsageError: there is no such host.
        NoDaemon: none runs there, and ``starts`` is false.
        Unavailable: ssh fails, or no daemon answers there.
    """
    host = parse_host(text, environ)
    base = _base(host, environ)
    control, path = f"{base}.ctl", f"{base}.sock"
    if _answers(host, path) and answers(control):
        return path
    with _locked(f"{base}.lock"):
        if not _answers(host, path):
            _connect(host, control, path, starts=starts)
        elif not answers(control):  # a relay outlives the connection that it dials through
            _ask_where(host, control)
    return path


def run_there(text: str, environ: Mapping[str, str], *words: str, **options: Any) -> Any:  # noqa: ANN401  as Popen
    """Start a command of the runner on a host, over the connection that is kept."""
    host = parse_host(text, environ)
    remote_socket(text, environ)
    control = f"{_base(host, environ)}.ctl"
    return subprocess.Popen([*host.ssh(control, "-T"), "--", f"{host.command} {' '.join(words)}"], **options)


def _base(host: RemoteHost, environ: Mapping[str, str]) -> str:
    """Return the beginning of the paths of a host's connection: its control, its socket and its lock."""
    name = hashlib.sha256(f"{host.destination}:{host.port}:{host.command}".encode()).hexdigest()[:16]
    return f"{_place(environ)}/{name}"


def _place(environ: Mapping[str, str]) -> str:
    """Return the directory of the connections, which only the user may enter."""
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("XDG_CACHE_HOME")
    base = base or os.path.join(os.path.expanduser("~"), ".cache")
    place = os.path.join(base, "runner-ssh")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        if os.stat(place).st_mode & 0o077:
            raise Unavailable(f"{place}: others may enter it; chmod 700 {place}")
    except OSError as error:
        raise Unavailable(
            f"{place}: {error.strerror}; set XDG_RUNTIME_DIR to a directory of yours"
        ) from error
    return place


@contextmanager
def _locked(path: str) -> Iterator[None]:
    from pathlib import Path

    descriptor = open_lock(Path(path))
    try:
        lock(descriptor, Path(path))
        yield
    finally:
        os.close(descriptor)


def _answers(host: RemoteHost, path: str) -> bool:
    """Return True if a daemon answers behind a socket.

    Raises:
        Unavailable: it does, and speaks another version.
    """
    try:
        with connect(path) as connection:
            connection.settimeout(ASK_S)
            answer = exchange(connection, "GET", "/v1/version", None)
            said = json.loads(answer.body)
    except (NoDaemon, OSError, ValueError):
        return False
    if answer.status != 200:
        return True  # it says why, to the command itself
    check_version(host.name, said)
    return True


def check_version(name: str, said: Mapping[str, Any]) -> None:
    """Refuse a daemon that speaks another version of the API.

    Raises:
        Unavailable: it does.
    """
    theirs = said.get("api", 0)
    if theirs != API:
        older = f"the runner of {name}" if theirs < API else "the runner of this machine"
        version = said.get("version", "?")
        raise Unavailable(
            f"{name}: its daemon ({version}) has API {theirs}, this command {API}; upgrade {older}"
        )


def _connect(host: RemoteHost, control: str, path: str, *, starts: bool = True) -> None:
    """Make the connection of ssh, and a socket on this side that leads to the daemon.

    The socket takes the place of the one before at once: another command may be about to connect.
    """
    there = _ask_where(host, control, starts=starts)
    draft = path.removesuffix(".sock") + ".new"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    forwards = subprocess.run(
        host.ssh(control, "-O", "forward", "-L", f"{draft}:{there}"), capture_output=True, check=False
    )
    if forwards.returncode == 0 and _answers(host, draft):
        os.replace(draft, path)
        return
    with suppress(FileNotFoundError):
        os.unlink(path)
    _start_relay(host, control, path)
    if not _answers(host, path):
        raise Unavailable(
            f"{host.name}: the daemon does not answer there; try: {host.typed} {host.command} list"
        )


def _ask_where(host: RemoteHost, control: str, *, starts: bool = True) -> str:
    """Return the path of the daemon's socket on a host; the connection is made, or used if it is there."""
    look = f"{'' if starts else f'env {NO_START}=1 '}{host.command} dial --where"
    keep = ("-o", "ControlMaster=auto", "-o", f"ControlPersist={PERSIST_S}", "-o", "ServerAliveInterval=15")
    try:
        asked = subprocess.run(
            [*host.ssh(control, "-T", *keep), "--", look],
            stdout=subprocess.PIPE,
            check=False,
        )
    except FileNotFoundError:
        raise Unavailable("ssh: is not installed; install the OpenSSH client") from None
    there = asked.stdout.decode(errors="replace").strip()
    if asked.returncode == SSH_FAILED:
        raise Unavailable(f"{host.name}: ssh cannot connect; try: {host.typed} true")
    if asked.returncode == NOT_FOUND:
        port = "" if host.port is None else f":{host.port}"
        raise Unavailable(
            f"{host.name}: has no program {host.command}; install the runner there, or name it:"
            f" ssh://{host.destination}{port}?command=/path/to/runner"
        )
    if not starts and asked.returncode == UNAVAILABLE:
        raise NoDaemon(f"{host.name}: no daemon runs there")
    if asked.returncode or not there.startswith("/"):
        raise Unavailable(f"{host.name}: {host.command} dial --where ended with exit code {asked.returncode}")
    return there


def _start_relay(host: RemoteHost, control: str, path: str) -> None:
    """Start a process that gives each connection of a socket an ``ssh ... runner dial`` of its own."""
    # Who follows a job starts no daemon that was stopped: the next command does, when it looks for one.
    dial = [*host.ssh(control, "-T"), "--", f"env {NO_START}=1 {host.command} dial"]
    subprocess.Popen(
        [sys.executable, "-P", "-m", "runner.client.relay", path, *dial],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + RELAY_S
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(RELAY_POLL_S)  # noqa: TID251  a command waits for a process that it has started
