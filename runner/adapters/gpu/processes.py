"""Finds the job of each process on a device: process -> container or shim -> attempt -> job.

Drivers report host pids.  A process in a container has the container's id in its control group, which no
program can leave by itself.  A process of the process executor is recognised by its session and its
ancestors, which a program can leave.  A process is called foreign only if all of this could be read: one that
has ended, or that ``/proc`` hides, is unknown.
"""

import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from runner.base.errors import Unavailable
from runner.core.devices.reading import ProcessOnDevice
from runner.core.ports.executor import Alive, Created, Observation

_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
MAX_ANCESTORS: Final = 64

log = structlog.get_logger(__name__)

_Identity = tuple[int, int]  # pid and start time, which identify a process for ever


@dataclass(frozen=True, slots=True)
class _ProcStat:
    """Report of ``/proc`` about one process."""

    start: int
    session: int
    parent: int
    uid: int
    program: str
    containers: frozenset[str]


@dataclass(slots=True)
class DeviceProcesses:
    """Identifies processes, and remembers each for as long as a driver reports it."""

    observe: Callable[[], tuple[Observation, ...]]  # of the executor; may block, may raise Unavailable
    proc: Path = Path("/proc")
    _known: dict[_Identity, ProcessOnDevice] = field(default_factory=dict)

    def of(self, processes: Iterable[ProcessOnDevice]) -> Mapping[int, ProcessOnDevice]:
        """Return the identified processes by pid; the executor is called only if one of them is new."""
        stats = {each.pid: self._read(each.pid) for each in processes}
        identities = {(pid, each.start) for pid, each in stats.items() if each}
        fresh = {pid: each for pid, each in stats.items() if each and (pid, each.start) not in self._known}
        self._known = {
            identity: process for identity, process in self._known.items() if identity in identities
        }
        if fresh:
            self._known |= dict(self._identify(fresh))
        return {
            pid: self._known.get((pid, each.start), _describe(pid, each)) if each else ProcessOnDevice(pid)
            for pid, each in stats.items()
        }

    def _identify(self, fresh: Mapping[int, _ProcStat]) -> Iterator[tuple[_Identity, ProcessOnDevice]]:
        """Yield the identified processes; nothing if the executor does not answer.

        An engine reports a container as created for a moment after its program has started.  While there is
        such a container, no process in a container is called foreign.
        """
        try:
            observed = self.observe()
        except Unavailable as error:
            log.info("processes.unknown", problem=str(error))
            return
        alive = [each for each in observed if isinstance(each, Alive)]
        starting = any(isinstance(each, Created) for each in observed)
        containers = {each.container: each.key.job_id for each in alive if each.container}
        roots = {each.pid: each.key.job_id for each in alive if each.pid}
        for pid, each in fresh.items():
            job = next((containers[c] for c in sorted(each.containers) if c in containers), None)
            job = job or roots.get(each.session) or self._ancestor(pid, each, roots)
            if job is None and starting and each.containers:
                continue
            if job is None and self._read(pid) != each:
                continue  # it ended during the call of the executor, perhaps with its attempt
            yield (pid, each.start), replace(_describe(pid, each), job=job, foreign=job is None)

    def _ancestor(self, pid: int, stat: _ProcStat, roots: Mapping[int, str]) -> str | None:
        """Return the job whose first process is this process or one of its ancestors."""
        above: _ProcStat | None = stat
        for _ in range(MAX_ANCESTORS):
            if pid in roots or above is None or above.parent == 0:
                break
            pid, above = above.parent, self._read(above.parent)
        return roots.get(pid)

    def _read(self, pid: int) -> _ProcStat | None:
        """Return the record of ``/proc`` about a process; None if a part is unreadable, or it has ended."""
        directory = self.proc / str(pid)
        try:
            before, _, after = (directory / "stat").read_text(errors="replace").rpartition(")")
            fields = after.split()
            if fields[0] in "ZX":  # a zombie has ended
                return None
            groups = (directory / "cgroup").read_text(errors="replace")
            return _ProcStat(
                start=int(fields[19]),
                session=int(fields[3]),
                parent=int(fields[1]),
                uid=directory.stat().st_uid,
                program=before.partition("(")[2],
                containers=frozenset(_CONTAINER.findall(groups)),
            )
        except (OSError, ValueError, IndexError):
            return None


def _describe(pid: int, stat: _ProcStat) -> ProcessOnDevice:
    return ProcessOnDevice(pid, uid=stat.uid, user=_user(stat.uid), program=stat.program)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
