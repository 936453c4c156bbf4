"""Figures of the kernel about a process: used processor time and held memory."""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS: Final = slice(11, 13)  # utime and stime, counted after the name


def cpu_seconds(stat: str) -> float:
    """Return user and system time of all threads from ``/proc/PID/stat``; names are arbitrary."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(field) for field in fields[_CPU_FIELDS]) / TICKS_PER_S


def resident_mib(status: str) -> float:
    """Return the resident memory from ``/proc/PID/status``."""
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def resident_memory(pid: int) -> float:
    return resident_mib(Path(f"/proc/{pid}/status").read_text())


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory of processes in MiB without file mappings: libraries do not leak and are shared."""

    resident: float  # counted in every process that maps it
    distinct: float  # counted once


def parse_held(rollup: str, status: str) -> HeldMemory:
    """Return the memory in ``/proc/PID/smaps_rollup`` and ``status``; a shared page is distinct in part."""
    distinct = re.findall(r"^Pss_(?:Anon|Shmem):\s*(\d+) kB$", rollup, re.MULTILINE)
    resident = re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+) kB$", status, re.MULTILINE)
    return HeldMemory(sum(map(int, resident)) / 1024, sum(map(int, distinct)) / 1024)


def held_by_tree(pid: int) -> HeldMemory:
    """Return the memory of a process and all its descendants."""
    each = [
        parse_held(_text(Path(f"/proc/{one}/smaps_rollup")), _text(Path(f"/proc/{one}/status")))
        for one in tree(pid)
    ]
    return HeldMemory(sum(one.resident for one in each), sum(one.distinct for one in each))


def tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of all its living descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(children).split():
            yield from tree(int(child))


def _text(path: Path) -> str:
    """Return the text of a file below ``/proc``; empty if the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def busy_percent(pid: int, over_s: float) -> float:
    """Return the share of one core that a process uses during ``over_s``, in percent."""
    stat = Path(f"/proc/{pid}/stat")
    before, began = cpu_seconds(stat.read_text()), time.monotonic()
    time.sleep(over_s)
    return (cpu_seconds(stat.read_text()) - before) / (time.monotonic() - began) * 100
