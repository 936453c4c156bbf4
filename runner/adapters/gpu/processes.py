"""Whose the processes on devices are: process -> container or shim -> attempt -> job, or nobody's here.

Drivers name processes by the host's numbers.  A container's process carries the container's id in
its control groups, which no program can leave by itself; a process of the process executor is known
by its session and its ancestors, which a program can leave.  Only what could be read is called
foreign: a process that has gone, or that ``/proc`` hides, is unknown.
"""

import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from runner.base.errors import Unavailable
from runner.core.devices.state import ProcessOnDevice
from runner.core.ports.devices import DeviceProcess
from runner.core.ports.executor import Alive, Created, Observation

_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
MOST_ANCESTORS: Final = 64

log = structlog.get_logger(__name__)

_Name = tuple[int, int]  # pid and start time: what names a process for ever


@dataclass(frozen=True, slots=True)
class _Seen:
    """What ``/proc`` says about one process."""

    start: int
    session: int
    parent: int
    uid: int
    program: str
    containers: frozenset[str]


@dataclass(slots=True)
class DeviceProcesses:
    """Finds out whose processes are, and remembers it for as long as they are asked about."""

    observe: Callable[[], tuple[Observation, ...]]  # of the executor; may block, may raise Unavailable
    proc: Path = Path("/proc")
    _known: dict[_Name, ProcessOnDevice] = field(default_factory=dict)

    def of(self, processes: Iterable[DeviceProcess]) -> Mapping[int, ProcessOnDevice]:
        """Return whose each process is; the executor is asked only when one was not seen before."""
        asked = {each.pid for each in processes}
        seen = {pid: self._seen(pid) for pid in asked}
        names = {(pid, each.start) for pid, each in seen.items() if each}
        fresh = {pid: each for pid, each in seen.items() if each and (pid, each.start) not in self._known}
        self._known = {name: occupant for name, occupant in self._known.items() if name in names}
        if fresh:
            self._known |= dict(self._identified(fresh))
        return {
            pid: self._known.get((pid, each.start), _described(pid, each)) if each else ProcessOnDevice(pid)
            for pid, each in seen.items()
        }

    def _identified(self, fresh: Mapping[int, _Seen]) -> Iterator[tuple[_Name, ProcessOnDevice]]:
        """Yield whose processes are; nothing where the executor does not answer, or not yet.

        An engine calls a container created for a moment after its program has begun, so as long as
        one is only created, nobody in a container is accused.
        """
        try:
            observed = self.observe()
        except Unavailable as error:
            log.info("occupants.unknown", problem=str(error))
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
            if job is None and self._seen(pid) != each:
                continue  # it ended while the executor was asked, and its attempt perhaps with it
            yield (pid, each.start), replace(_described(pid, each), job=job, foreign=job is None)

    def _ancestor(self, pid: int, seen: _Seen, roots: Mapping[int, str]) -> str | None:
        """Return the job whose first process is this one or one that it descends from."""
        above: _Seen | None = seen
        for _ in range(MOST_ANCESTORS):
            if pid in roots or above is None or above.parent == 0:
                break
            pid, above = above.parent, self._seen(above.parent)
        return roots.get(pid)

    def _seen(self, pid: int) -> _Seen | None:
        """Return what can be read about a process; None if not all of it can, or it has ended."""
        about = self.proc / str(pid)
        try:
            before, _, after = (about / "stat").read_text(errors="replace").rpartition(")")
            fields = after.split()
            if fields[0] in "ZX":  # it has ended, and only its parent has not heard of it
                return None
            groups = (about / "cgroup").read_text(errors="replace")
            return _Seen(
                start=int(fields[19]),
                session=int(fields[3]),
                parent=int(fields[1]),
                uid=about.stat().st_uid,
                program=before.partition("(")[2],
                containers=frozenset(_CONTAINER.findall(groups)),
            )
        except (OSError, ValueError, IndexError):
            return None


def _described(pid: int, seen: _Seen) -> ProcessOnDevice:
    return ProcessOnDevice(pid, uid=seen.uid, user=_user(seen.uid), program=seen.program)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
