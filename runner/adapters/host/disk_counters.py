"""The bytes that attempts have read from disks and written, from control groups and from ``/proc``.

A container has a control group: ``io.stat`` of version 2, or the files of ``blkio`` of version 1.  Version 1
does not count what the kernel writes later for a process, and some block devices are not counted at all.  So
the processes themselves (``/proc/PID/io``) are read as well, where the daemon may read them, and the larger
count of the two holds.  A process that has ended counts for its parent, up to the first of the attempt.
The counters of another user's plain process can only be read by root.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from runner.core.ports.disk import DiskCounters
from runner.core.ports.executor import Alive, Key

CGROUPS: Final = Path("/sys/fs/cgroup")
V1_FILES: Final = ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes")
MAX_PROCESSES: Final = 4096
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class HostDiskCounters:
    """Satisfies ``runner.core.ports.disk.DiskUse`` for containers and processes of this host."""

    def __init__(self, cgroups: Path = CGROUPS, processes: Path = Path("/proc")) -> None:
        self._cgroups, self._processes = cgroups, processes

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:
        """Return the counters of each attempt that can be read."""
        each = list(attempts)
        plain = {alive.pid for alive in each if alive.container is None and alive.pid is not None}
        sessions = self._sessions(plain) if plain else {}
        found = ((alive.key, self._of(alive, sessions)) for alive in each)
        return {key: counters for key, counters in found if counters is not None}

    def _of(self, alive: Alive, sessions: Mapping[int, list[int]]) -> DiskCounters | None:
        if alive.container is None:
            return self._of_processes(sessions.get(alive.pid or 0, []))
        groups = list(self._groups(alive.container))
        counted = [_v2(group) or _v1(group) for group in groups]
        members = next((pids for group in groups if (pids := _members(group))), [])
        known = [counters for counters in (*counted, self._of_processes(members)) if counters is not None]
        found, pid = _larger(known), alive.pid or next(iter(members), None)
        if found is None or pid is None or (traffic := self._traffic(pid)) is None:
            return found
        return replace(found, received_bytes=traffic[0], sent_bytes=traffic[1])

    def _traffic(self, pid: int) -> tuple[int, int] | None:
        """Return the bytes that the network interfaces of a process have received and sent.

        None: it has those of the host, or they cannot be read.
        """
        try:
            own, host = (os.readlink(self._processes / each / "ns/net") for each in (str(pid), "self"))
        except OSError:
            return None
        if own == host:
            return None
        fields = [
            line.partition(":")[2].split()
            for line in _lines(self._processes / str(pid) / "net/dev")
            if ":" in line and line.split(":")[0].strip() != "lo"
        ]
        return sum(int(each[0]) for each in fields), sum(int(each[8]) for each in fields)

    def _groups(self, container: str) -> Iterator[Path]:
        """Yield the places in which engines put the control group of a container."""
        for root in (self._cgroups, self._cgroups / "blkio"):
            for place in (
                root / "docker" / container,
                root / "system.slice" / f"docker-{container}.scope",
                root / "machine.slice" / f"libpod-{container}.scope",
            ):
                if place.is_dir():
                    yield place

    def _of_processes(self, pids: Sequence[int]) -> DiskCounters | None:
        """Return the sum over processes; None if none of them can be read."""
        known = [counters for pid in pids if (counters := self._of_process(pid)) is not None]
        if not known:
            return None
        used = [use for pid in pids if (use := self._use_of_process(pid)) is not None]
        return DiskCounters(
            sum(each.read_bytes for each in known),
            sum(each.written_bytes for each in known),
            sum(resident for resident, _ in used) if used else None,
            sum(cpu_s for _, cpu_s in used) if used else None,
        )

    def _use_of_process(self, pid: int) -> tuple[int, float] | None:
        """Return the resident bytes and the processor time of a process and the children that it outlived."""
        fields = "".join(_lines(self._processes / str(pid) / "stat")).rpartition(")")[2].split()
        if len(fields) < 22:
            return None
        return int(fields[21]) * PAGE_BYTES, sum(map(int, fields[11:15])) / TICKS_PER_S

    def _of_process(self, pid: int) -> DiskCounters | None:
        lines = _lines(self._processes / str(pid) / "io")
        values = dict(line.split(": ", 1) for line in lines if ": " in line)
        try:
            written = int(values["write_bytes"]) - int(values.get("cancelled_write_bytes", 0))
            return DiskCounters(int(values["read_bytes"]), max(written, 0))
        except (LookupError, ValueError):
            return None

    def _sessions(self, leaders: set[int]) -> Mapping[int, list[int]]:
        """Return the processes of each session that one of the processes leads."""
        found: dict[int, list[int]] = defaultdict(list)
        for directory in self._processes.iterdir():
            if not directory.name.isdecimal():
                continue
            _, _, after = "".join(_lines(directory / "stat")).rpartition(")")
            fields = after.split()
            if len(fields) > 3 and (session := int(fields[3])) in leaders:
                found[session].append(int(directory.name))
        return found


def _v2(group: Path) -> DiskCounters | None:
    """Return the sum over devices of ``io.stat``: lines such as ``8:0 rbytes=90 wbytes=20 rios=3 ...``."""
    if not (lines := _lines(group / "io.stat")):
        return None
    read = written = 0
    for line in lines:
        for word in line.split()[1:]:
            name, _, value = word.partition("=")
            read += int(value) if name == "rbytes" and value.isdecimal() else 0
            written += int(value) if name == "wbytes" and value.isdecimal() else 0
    return DiskCounters(read, written)


def _v1(group: Path) -> DiskCounters | None:
    """Return the sum over devices of ``blkio``: lines such as ``8:0 Read 90``."""
    for name in V1_FILES:
        if not (lines := _lines(group / name)):
            continue
        sums: dict[str, int] = defaultdict(int)
        for line in lines:
            words = line.split()
            if len(words) == 3 and words[2].isdecimal():
                sums[words[1]] += int(words[2])
        return DiskCounters(sums["Read"], sums["Write"])
    return None


def _members(group: Path) -> list[int]:
    return [int(line) for line in _lines(group / "cgroup.procs")[:MAX_PROCESSES] if line.isdecimal()]


def _larger(known: list[DiskCounters]) -> DiskCounters | None:
    """Return the larger bytes, and the memory and processors, which only the processes tell."""
    if not known:
        return None
    return replace(
        known[-1],
        read_bytes=max(each.read_bytes for each in known),
        written_bytes=max(each.written_bytes for each in known),
    )


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
