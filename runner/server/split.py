"""A daemon in two parts: one parses, stores, answers and plans, and has no rights; its helper stays root.

The helper is the process that was started, which systemd watches.  It forks the other part before either has
a thread, passes on the signals to stop, and ends with it.  If the helper ends first, the kernel ends the
other part.  What the helper does for the other part is in ``runner.adapters.privileged``.
"""

import codecs
import os
import pwd
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Final

import structlog

from runner.adapters.host.opening import is_openat2_there
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.service import make_server
from runner.adapters.privileged.site import PrivilegedSite
from runner.adapters.privileged.state_files import share_state
from runner.adapters.privileged.unprivileged import give_up_root
from runner.base import privileges
from runner.base.errors import Unavailable, UsageError
from runner.files.settings.model import OWN_EXECUTORS, Settings
from runner.server.leaving import KILL_AFTER_S, StopDeadline

log = structlog.get_logger()

USUAL_USER: Final = "runner"
FIRST_PERSON: Final = 1000
"""Users with a smaller uid are no people."""


def daemon_user(settings: Settings) -> pwd.struct_passwd | None:
    """Return the user of the part without rights, None for a daemon in one process.

    Raises:
        UsageError: the settings name a user that cannot be it.
    """
    if os.geteuid() != 0 or not settings.serves_all_users or settings.daemon_user == "root":
        return None
    user = _usual_user() if settings.daemon_user is None else _named_user(settings.daemon_user)
    if user is None:
        log.info("daemon.whole", why=f"there is no system user {USUAL_USER}; all of the daemon is root's")
        return None
    problem = _problem(settings)
    if problem is None:
        return user
    if settings.daemon_user is not None:
        raise UsageError(f"daemon_user: {problem}")
    log.info("daemon.whole", why=f"{problem}; all of the daemon is root's")
    return None


def _usual_user() -> pwd.struct_passwd | None:
    try:
        user = pwd.getpwnam(USUAL_USER)
    except KeyError:
        return None
    return user if 0 < user.pw_uid < FIRST_PERSON else None


def _named_user(name: str) -> pwd.struct_passwd:
    try:
        user = pwd.getpwnam(name)
    except KeyError as error:
        raise UsageError(f"daemon_user: there is no user {name!r}; useradd --system {name}") from error
    if user.pw_uid == 0 or user.pw_gid == 0:
        raise UsageError(f"daemon_user: {name} is root, or in root's group; name a user without rights")
    return user


def _problem(settings: Settings) -> str | None:
    """Return the reason why a daemon with these settings cannot be in two parts."""
    if settings.executor == "slurm":
        return "with executor: slurm, jobs are submitted as their users by the daemon itself"
    if settings.executor not in {"auto", *OWN_EXECUTORS}:
        return f"executor: {settings.executor} is a plug-in, which acts in the daemon itself"
    if not settings.pin_mounts and settings.executor != "process":
        return "with pin_mounts: false, a helper could not tell what is mounted"
    if not is_openat2_there():
        return "the kernel has no openat2 (Linux 5.6)"
    return None


def split(
    directory: Path,
    user: pwd.struct_passwd,
    make_site: Callable[[], PrivilegedSite],
    listener: socket.socket,
    stop_within_s: float,
) -> "PrivilegedClient | int":
    """Return the connection to the helper in the part without rights, and the exit code in the helper.

    ``listener`` is the part's alone: nobody is answered once it has ended.  A part that is told to stop and
    does not end by itself, although it should within ``stop_within_s``, is killed a little later.

    Raises:
        Unavailable: the state directory cannot be given to the user.
    """
    share_state(directory, user)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, child = os.getpid(), os.fork()
    if child:
        mine.close()
        listener.close()
        return _help(child, make_site, theirs, stop_within_s + KILL_AFTER_S)
    theirs.close()
    for name in ("unicode_escape", "idna"):
        codecs.lookup(name)  # while this Python can be read in any case
    try:
        give_up_root(user, parent)
    except OSError as error:
        raise Unavailable(f"cannot give up root's rights: {error.strerror}; daemon_user: root") from error
    privileges.note_given_up()
    if not os.access(os.__file__, os.R_OK):
        log.warning("daemon.python_unreadable", user=user.pw_name, python=os.__file__)
    if not os.access(Path(__file__), os.R_OK):
        fact = f"user {user.pw_name} cannot read {Path(__file__).parent}"
        raise Unavailable(f"{fact}; install the runner where all users can read it, or daemon_user: root")
    return PrivilegedClient(mine)


def _help(
    child: int, make_site: Callable[[], PrivilegedSite], control: socket.socket, kill_after_s: float
) -> int:
    """Act for the other part until it has ended; return its exit code."""
    part = _OtherPart(child, kill_after_s)
    part.pass_on_signals()
    server = make_server(make_site())
    Thread(target=server.accept, args=(control,), name="helper-accept", daemon=True).start()
    code = part.await_end()
    StopDeadline(KILL_AFTER_S).set()  # nothing is left to do
    if code < 0:
        log.error("daemon.killed", signal=-code)
    return code if code >= 0 else 128 - code


@dataclass(slots=True)
class _OtherPart:
    """The part that answers, as its helper sees it."""

    pid: int
    kill_after_s: float
    """From the first signal to stop on."""
    _killed_at_s: float | None = None

    def pass_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if callable(signal.getsignal(signal.SIGHUP)):  # not at a terminal: it reloads the settings
            signal.signal(signal.SIGHUP, lambda _number, _frame: os.kill(self.pid, signal.SIGHUP))

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._killed_at_s is None:
            self._killed_at_s = time.monotonic() + self.kill_after_s
        os.kill(self.pid, signal.SIGTERM)

    def await_end(self) -> int:
        """Return the exit code of the part; it is killed if it has not stopped in time.

        A signal may come to any thread.  It ends the wait all the same, so that its handler runs.
        """
        ended, (woken, wake) = os.pidfd_open(self.pid), os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(wake)
        try:
            ready = select.poll()
            ready.register(ended, select.POLLIN)
            ready.register(woken, select.POLLIN)
            while not any(descriptor == ended for descriptor, _ in ready.poll(self._wait_ms())):
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._kill_if_due()
        finally:
            signal.set_wakeup_fd(before)
            for descriptor in (ended, woken, wake):
                os.close(descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _wait_ms(self) -> float | None:
        due = self._killed_at_s
        return None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1

    def _kill_if_due(self) -> None:
        if self._killed_at_s is not None and time.monotonic() >= self._killed_at_s:
            log.error("daemon.stop_overdue", part=self.pid, waited_s=self.kill_after_s)
            os.kill(self.pid, signal.SIGKILL)
