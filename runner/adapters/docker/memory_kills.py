"""The processes of each container that the kernel has killed for memory, as its own cgroup counts them.

A container's own words about that prove nothing, because a program has the uid of the shell that writes them,
and the host's count may be another container's.  The count of the cgroup is the kernel's own, and it is gone
with the container.  So each count is read again and again while its container runs, and a container in which
a process was killed stays for longer than a period (``runner.adapters.launch.SUPERVISED_ENTRY``).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from runner.base.threads import PeriodicThread

PERIOD_S: Final = 0.1
"""Between two looks at the counts of containers that run."""

IDLE_S: Final = 3600.0
"""The same while no container runs; the next one ends the wait."""

CGROUPS: Final = Path("/sys/fs/cgroup")
"""Mount of the cgroups: those of version 2, or a folder for each controller of version 1."""

COUNTERS: Final = ("memory.events", "memory.oom_control")
"""The files with the line ``oom_kill COUNT``: of cgroup version 2 and version 1."""


@dataclass(slots=True)
class _Counter:
    """The open file of one container, and what it said last."""

    descriptor: int
    kills: int


class MemoryKills:
    """Counts for the containers of one engine on this host."""

    def __init__(self, cgroups: Path = CGROUPS, processes: Path = Path("/proc")) -> None:
        self._cgroups, self._processes = cgroups, processes
        self._counters: dict[str, _Counter] = {}  # by container
        self._unseen: set[str] = set()  # containers whose cgroup was not found
        self._lock = Lock()
        self._thread = PeriodicThread("memory-kills", self._period_s, self.look)
        self._started = False

    def watch(self, container: str, pid: Callable[[], int] | None = None) -> None:
        """Count for a container from now on.

        If its cgroup is not where engines usually put it, ``pid`` is asked for the process id of its init,
        once.  Without ``pid``, a later call may find it.
        """
        with self._lock:
            if container in self._counters or container in self._unseen:
                return
            self._unseen.add(container)  # until it is found
            if not self._started:
                self._started = True
                self._thread.start()
        descriptor = self._open(container, pid)
        with self._lock:
            if descriptor is None:
                if pid is None:
                    self._unseen.discard(container)
                return
            self._unseen.discard(container)
            self._counters[container] = _Counter(descriptor, _read(descriptor) or 0)
        self._thread.wake()

    def kills(self, container: str) -> int | None:
        """Return the number of killed processes of a container; None if its cgroup was never seen."""
        self.look()
        with self._lock:
            counter = self._counters.get(container)
            return None if counter is None else counter.kills

    def forget(self, container: str) -> None:
        """Forget a container that is removed."""
        with self._lock:
            self._unseen.discard(container)
            counter = self._counters.pop(container, None)
            if counter is not None:
                os.close(counter.descriptor)

    def look(self) -> None:
        """Read all counts; that of a container that has ended stays what it was."""
        with self._lock:
            for counter in self._counters.values():
                counter.kills = max(counter.kills, _read(counter.descriptor) or 0)

    def _period_s(self) -> float:
        return PERIOD_S if self._counters else IDLE_S

    def _open(self, container: str, pid: Callable[[], int] | None) -> int | None:
        """Open the count of a container; None if its cgroup is not on this host."""
        for directory in self._directories(container, pid):
            for name in COUNTERS:
                try:
                    return os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                except OSError:
                    continue
        return None

    def _directories(self, container: str, pid: Callable[[], int] | None) -> Iterator[Path]:
        """Yield the places of the cgroup of a container: where engines put it, then where its init says."""
        for root in (self._cgroups, self._cgroups / "memory"):
            yield root / "docker" / container
            yield root / "system.slice" / f"docker-{container}.scope"
        if pid is None:
            return
        try:
            lines = (self._processes / str(pid()) / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            folder = {"": "", "memory": "memory"}.get(controllers)
            if folder is not None and container in path:  # else another process of that number
                yield self._cgroups / folder / path.lstrip("/")


def _read(descriptor: int) -> int | None:
    """Return the count in an open file; None once the cgroup is gone."""
    try:
        lines = os.pread(descriptor, 4096, 0).decode().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
