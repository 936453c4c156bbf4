"""The lock of a state directory: two daemons on one state would allocate the same devices twice.

The file says who holds the lock: a process id, and ``leaving`` once that daemon stops.  Clients read it, too.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path
from threading import Event
from typing import Final

from runner.base.errors import Refused, Unavailable
from runner.base.locks import open_lock, try_lock
from runner.client.autostart import EXIT_LIMIT_S

PROBE_S: Final = 0.2
"""Clients take the lock for a moment to see whether it is free."""

POLL_S: Final = 0.05

Pause = Callable[[float], object]

_NEVER: Final = Event()


class StateLock:
    """The lock of a state directory, held by this process."""

    def __init__(self, descriptor: int, directory: int) -> None:
        self._descriptor = descriptor
        self._directory: int | None = directory

    def leave_directory(self) -> None:
        """Close the directory, which another process that shares the lock keeps open."""
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    def close(self) -> None:
        self.leave_directory()
        os.close(self._descriptor)

    def mark_leaving(self) -> None:
        """Let daemons that start wait for this one."""
        self.write("leaving")

    def write(self, word: str = "") -> None:
        """Write who holds the lock, and a word about it."""
        with suppress(OSError):  # on a full disk others must do without; over an old id there is room
            os.pwrite(self._descriptor, f"{f'{os.getpid()} {word}':<20}".encode(), 0)


@contextmanager
def hold_state(directory: Path, pause: Pause = _NEVER.wait) -> Iterator[StateLock]:
    """Hold the lock of a state directory, which is made if need be; it ends with the process at the latest.

    Raises:
        Refused: another daemon holds it.
        Unavailable: the directory cannot be made.
    """
    path = directory / "lock"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = open_lock(path)
    except OSError as error:
        raise Unavailable(f"{directory}: {error.strerror}; choose another with RUNNER_STATE_DIR") from error
    kept = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    lock = StateLock(descriptor, kept)
    try:
        flock(kept, LOCK_SH | LOCK_NB)  # systemd-tmpfiles leaves out a locked directory, also below /var/tmp
        _take(descriptor, path, pause)
        lock.write()
        yield lock
    finally:
        lock.close()


def _take(descriptor: int, path: Path, pause: Pause) -> None:
    """Take the lock; a daemon that is leaving is waited for."""
    waited_s = 0.0
    while not try_lock(descriptor, path):
        pid, *leaves = os.pread(descriptor, 64, 0).decode(errors="replace").split() or ["unknown"]
        if waited_s >= (EXIT_LIMIT_S if leaves else PROBE_S):
            facts = f"the daemon that is stopping (pid {pid}) still uses this state; see its log, or kill it"
            stays = f"another daemon (pid {pid}) has this state; runner stop ends it"
            raise Refused(f"{path.parent}: {facts if leaves else stays}")
        pause(POLL_S)
        waited_s += POLL_S
