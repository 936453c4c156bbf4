"""Find the daemon, and start the user's own daemon if none answers.

The first ``runner submit`` starts a daemon, so users need not install one. A daemon for all users, and a
daemon at a socket that the user named, are never started by this module.
"""

# pathlib takes 5 ms to import, a tenth of a whole submission:

import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from runner.base.errors import Unavailable, UsageError
from runner.base.file_systems import remote_type
from runner.base.readable import readable_duration

if TYPE_CHECKING:
    from subprocess import Popen

SYSTEM_SOCKET: Final = "/run/runner/runner.sock"
ROOT_STATE_DIR: Final = "/var/lib/runner"
LOCAL_PLACES: Final = "/var/tmp"  # noqa: S108  its directories are made private, and looked at
MAX_SOCKET_PATH: Final = 107  # bytes in sockaddr_un without the final NUL
CONNECT_LIMIT_S: Final = 10
START_LIMIT_S: Final = 30.0  # for one start; a client that waits for others grants each start this time
SLOW_START_S: Final = 1.5  # after this time the user is told the reason
START_POLL_S: Final = 0.02
LOCK_POLL_S: Final = 0.05
LOCKED: Final = 3  # exit code of a daemon whose state another daemon has locked
LOCKED_TRIES: Final = 4  # the other daemon may be exiting
LOCKED_PAUSE_S: Final = 0.5
LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
EXIT_LIMIT_S: Final = 20.0  # for a daemon to exit after a stop request
NEEDED_BYTES: Final = 256 * 1024  # approximate size of a new store and its log
MAX_ERROR_BYTES: Final = 8192  # bytes read from the log of a failed start

Tell = Callable[[str], None]

_started: "list[Popen[bytes]]" = []  # kept so that a dead daemon can be reaped


class NoDaemon(Unavailable):
    """No daemon accepted the connection; no request was sent."""


class Endpoint(NamedTuple):
    """The socket of a daemon."""

    socket: str
    state_dir: str | None  # of a daemon that the user may start; None: it is not the user's


def state_dir(environ: Mapping[str, str], uid: int) -> str:
    """Return the state directory of the user's own daemon: in the home directory if that is on a local disk.

    Raises:
        UsageError: the variable for it is empty, there is no home directory, or no place on a local disk.
    """
    if environ.get("RUNNER_STATE_DIR") == "":
        raise UsageError("RUNNER_STATE_DIR is empty; unset it for the usual directory, or name one")
    if chosen := environ.get("RUNNER_STATE_DIR"):
        return os.path.abspath(chosen)
    if uid == 0:
        return ROOT_STATE_DIR
    usual = _usual_state_dir(environ)
    return usual if remote_type(usual) is None else _make_local_place(uid)


def _usual_state_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification ignores relative paths
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(base):
        raise UsageError("no home directory: set RUNNER_STATE_DIR to a directory of yours")
    return os.path.join(base, "runner")


def local_place(uid: int) -> str:
    """Return the state directory of a user whose home directory is on a remote file system."""
    return f"{LOCAL_PLACES}/runner-{uid}"


def _make_local_place(uid: int) -> str:
    """Return that directory, made if need be; another user could have made it first, to be asked as a daemon.

    Raises:
        UsageError: it cannot be made, is not this user's alone, or is on a remote file system as well.
    """
    path = local_place(uid)
    problem = "this is on a remote file system, too"
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if not (stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o077):
            problem = "this is not a directory of yours alone"
        elif remote_type(path) is None:
            return path
    except OSError as error:
        problem = error.strerror or str(error)
    raise UsageError(
        f"{path}: {problem}, and the home directory is on a remote file system;"
        " set RUNNER_STATE_DIR to a directory of yours on a local disk"
    )


def _tell_of_local_place(directory: str, tell: Tell) -> None:
    """Say that a home directory is on a remote file system, before the first daemon of this place starts."""
    if directory == local_place(os.geteuid()) and not os.path.exists(os.path.join(directory, "store.db")):
        tell(
            f"the home directory is on a remote file system, so the state of jobs is kept in {directory},"
            " on this host alone (RUNNER_STATE_DIR chooses another directory)"
        )


def endpoints(environ: Mapping[str, str], uid: int, *, starts: bool = True) -> tuple[Endpoint, ...]:
    """Return the endpoints to try, in order; only the user's own daemon may be started.

    On another machine it is started there, unless ``starts`` is false.

    A daemon of all users keeps its socket file while it is down.  Users then start no daemon of their
    own, whose jobs other users would not see, and root starts none that takes over its state.
    """
    if (host := remote_host(environ)) is not None:
        from runner.client.remote import remote_socket

        return (Endpoint(remote_socket(host, environ, starts=starts), None),)
    directory = state_dir(environ, uid)
    own = Endpoint(os.path.join(directory, "runner.sock"), directory)
    if chosen := environ.get("RUNNER_SOCKET"):
        chosen = os.path.abspath(chosen)
        return (own if chosen == own.socket else Endpoint(chosen, None),)
    if environ.get("RUNNER_STATE_DIR"):
        return (own,)
    of_all = Endpoint(SYSTEM_SOCKET, None)
    return (of_all,) if os.path.lexists(SYSTEM_SOCKET) else (of_all, own)


def remote_host(environ: Mapping[str, str]) -> str | None:
    """Return the host that commands are for; the file of named hosts is looked at if there is one."""
    if "RUNNER_HOST" in environ:
        return environ["RUNNER_HOST"] or None
    base = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    if not os.path.exists(f"{base}/runner/hosts.json"):
        return None
    from runner.client.remote import chosen_host

    return chosen_host(environ)


def connect(path: str) -> socket.socket:
    """Return a connection to the socket at ``path``, which may be longer than ``sockaddr_un`` allows.

    Raises:
        NoDaemon: no process listens there.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With a full backlog, the kernel blocks a socket that has no timeout in Python.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", CONNECT_LIMIT_S, 0))
    try:
        use_socket_path(connection.connect, path)
    except OSError as error:
        connection.close()
        raise NoDaemon(f"{path}: no daemon answers ({error.strerror or error})") from error
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
    connection.settimeout(CONNECT_LIMIT_S)
    return connection


def use_socket_path(use: Callable[[str], object], path: str) -> None:
    """Bind or connect a socket at a path of any length."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        use(path)
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        use(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def start(endpoint: Endpoint, tell: Tell) -> None:
    """Start the daemon of an endpoint, and return when it or one started meanwhile by another client answers.

    One of several clients starts the daemon; the others wait for the result.

    Raises:
        NoDaemon: the daemon is not the user's own.
        Unavailable: the daemon did not start; the message has the last line of its log.
    """
    if endpoint.state_dir is None:
        raise NoDaemon(f"{endpoint.socket}: no daemon answers; its operator must start it")
    _tell_of_local_place(endpoint.state_dir, tell)
    with _open_log(endpoint.state_dir) as log, _start_lock(endpoint, tell) as start_lock:
        if start_lock is None:
            return
        try:
            _start(endpoint, endpoint.state_dir, log, tell)
        except Unavailable as error:
            _write(start_lock, f"{os.getpid()}\n{error}")
            raise


def _start(endpoint: Endpoint, directory: str, log: IO[bytes], tell: Tell) -> None:
    before = log.seek(0, os.SEEK_END)
    deadline, code = time.monotonic() + START_LIMIT_S, None
    for _ in range(LOCKED_TRIES):
        was_locked = is_locked(directory)  # the lock may have been released since
        child = _spawn(directory, log)
        if _await_answer(endpoint, child, deadline, tell):
            return
        code = child.returncode
        if code is None:
            log_path = os.path.join(directory, "daemon.log")
            fact = f"does not answer after {readable_duration(START_LIMIT_S)}, and still starts"
            raise Unavailable(f"the daemon (pid {child.pid}) {fact}; try again in a while (log: {log_path})")
        killed = code is not None and code < 0  # by a signal, before it could log an error
        if not killed and (code != LOCKED or not (was_locked or is_locked(directory))):
            break
    words = _describe_full_disk(directory) or _read_last_error(directory, before, code)
    raise Unavailable(f"the daemon did not start: {words}")


@contextmanager
def _start_lock(endpoint: Endpoint, tell: Tell) -> Iterator[int | None]:
    """Yield the locked file that permits this process to start a daemon, or None if a daemon answers.

    The lock ends with its process.  The file contains the process id, followed by the error of the start.

    Raises:
        Unavailable: the process that held the lock before failed, or does not end.
    """
    descriptor = _open(os.path.join(endpoint.state_dir or "", "starting"), LOCK_FLAGS)
    try:
        if not _await_start_lock(endpoint, descriptor, tell):
            yield None
            return
        _write(descriptor, str(os.getpid()))
        yield None if answers(endpoint.socket) else descriptor
    finally:
        os.close(descriptor)


def _await_start_lock(endpoint: Endpoint, descriptor: int, tell: Tell) -> bool:
    """Return True when the lock is taken, False when a daemon answers; each new holder has the full time."""
    from pathlib import Path
    from threading import Event

    from runner.base.locks import try_lock

    path = Path(endpoint.state_dir or "", "starting")
    if try_lock(descriptor, path):
        return True
    never, slow_at = Event(), time.monotonic() + SLOW_START_S
    starter, deadline = b"", 0.0
    while not try_lock(descriptor, path):
        now, holder = time.monotonic(), _read(descriptor)
        if holder != starter or not deadline:
            starter, deadline = holder, now + START_LIMIT_S + LOCKED_PAUSE_S
        if answers(endpoint.socket):
            return False
        if now >= deadline:
            pid = starter.partition(b"\n")[0].decode(errors="replace")
            raise Unavailable(
                f"{endpoint.state_dir}: process {pid} is starting the daemon, and does not end; stop it"
            )
        if now > slow_at:
            tell(f"waiting for the daemon of {endpoint.state_dir}, which another command starts ...")
            slow_at = float("inf")
        never.wait(LOCK_POLL_S)
    if failure := _read(descriptor).decode(errors="replace").partition("\n")[2]:
        raise Unavailable(failure)
    return True


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, MAX_ERROR_BYTES, 0)


def _write(descriptor: int, text: str) -> None:
    with suppress(OSError):  # a full disk: waiting processes detect it themselves
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(errors="replace")[:MAX_ERROR_BYTES], 0)


def is_locked(directory: str) -> bool:
    """Return True if a daemon holds the state directory; a refused connection can have other causes."""
    from pathlib import Path

    from runner.base import locks

    return locks.is_locked(Path(directory, "lock"))


def wait_for_exit(directory: str, pid: int, pause: Callable[[float], object] | None = None) -> None:
    """Wait until a stopping daemon has released its state directory, as far as this user can see.

    Raises:
        Unavailable: the daemon did not release it in time.
    """
    from threading import Event

    pause = pause or Event().wait
    for _ in range(round(EXIT_LIMIT_S / LOCK_POLL_S)):
        if _daemon_pid(directory) != str(pid) or not is_locked(directory):
            return
        pause(LOCK_POLL_S)
    raise Unavailable(f"{directory}: the daemon (pid {pid}) is still stopping; see its log, or kill it")


def was_stopped(directory: str) -> bool:
    """Return True if the last daemon of a state directory was asked to stop, and did not just die."""
    return _last_holder(directory)[1:] == ["leaving"]


def _daemon_pid(directory: str) -> str:
    """Return the process id of the last daemon of the state directory; empty if it cannot be read."""
    return "".join(_last_holder(directory)[:1])


def _last_holder(directory: str) -> list[str]:
    """Return the words of the last holder of a state directory: its process id, and perhaps ``leaving``."""
    try:
        with open(os.path.join(directory, "lock"), encoding="utf-8", errors="replace") as lock:
            return lock.read(MAX_ERROR_BYTES).split()
    except OSError:
        return []


def reap_children() -> None:
    """Reap the ended daemons that this process started."""
    _started[:] = [child for child in _started if child.poll() is None]


def _await_answer(endpoint: Endpoint, child: "Popen[bytes]", deadline: float, tell: Tell) -> bool:
    """Return True as soon as a daemon answers, False if the child has exited or at the deadline."""
    from threading import Event

    never, slow_at = Event(), time.monotonic() + SLOW_START_S
    while time.monotonic() < deadline:
        never.wait(START_POLL_S)
        if answers(endpoint.socket):
            return True
        if child.poll() is not None:  # the lock's holder may be starting or exiting
            patience = LOCKED_PAUSE_S if child.returncode == LOCKED else 0.0
            deadline = min(deadline, time.monotonic() + patience)
        if time.monotonic() > slow_at:
            tell(f"starting the daemon of {endpoint.state_dir} ...")
            slow_at = float("inf")
    return False


def answers(path: str) -> bool:
    """Return True if a process accepts connections at ``path``."""
    try:
        connect(path).close()
    except NoDaemon:
        return False
    return True


def _open_log(directory: str) -> IO[bytes]:
    """Return the log of the user's own daemon, open for appending and readable only by the user."""
    return os.fdopen(_open(os.path.join(directory, "daemon.log"), LOG_FLAGS), "ab")


def _open(path: str, flags: int) -> int:
    """Return the descriptor of a state file, created if missing and readable only by the user."""
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, mode=0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise Unavailable(f"{directory}: cannot keep the daemon's state here ({error.strerror})") from error


def _spawn(directory: str, log: IO[bytes]) -> "Popen[bytes]":
    """Start a daemon that outlives this process and its terminal; ``-P`` bars imports from the cwd."""
    import subprocess

    argv = [sys.executable, "-P", "-m", "runner.cli.main", "serve", "--state-dir", directory]
    child = subprocess.Popen(
        argv, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    _started.append(child)
    return child


def _describe_full_disk(directory: str) -> str:
    """Return a message if the disk is full, which the daemon cannot log; else an empty string."""
    from errno import EDQUOT, ENOSPC
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=directory) as probe:
            os.posix_fallocate(probe.fileno(), 0, NEEDED_BYTES)
    except OSError as error:
        return f"{directory}: {str(error.strerror).lower()}" if error.errno in {ENOSPC, EDQUOT} else ""
    return ""


def _read_last_error(directory: str, before: int, code: int | None) -> str:
    """Return the last line that a daemon logged since ``before``, and the path of the log.

    For a file with several errors, one line for each error is returned.
    """
    path = os.path.join(directory, "daemon.log")
    with open(path, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        begin = before if before <= size else 0  # the daemon has rotated it meanwhile
        log.seek(max(begin, size - MAX_ERROR_BYTES))
        lines = log.read().decode(errors="replace").split("\n")
    spoken = [line.strip() for line in lines if line.strip()]
    silent = f"it was killed by signal {-code}" if code is not None and code < 0 else "it said nothing"
    return f"{_last_message(spoken) if spoken else silent} (log: {path})"


def _last_message(spoken: Sequence[str]) -> str:
    """Return the last line, together with the preceding lines about the same file."""
    file = spoken[-1].partition(":")[0] + ":"
    first = len(spoken) - 1
    while os.path.isabs(file) and first > 0 and spoken[first - 1].startswith(file):
        first -= 1
    return "\n".join(spoken[first:])
