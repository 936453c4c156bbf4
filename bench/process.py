"""What the kernel says about a process: the processor time it used, the memory it holds."""

import os
import re
import time
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS: Final = slice(11, 13)  # utime and stime, counted behind the name


def cpu_seconds(stat: str) -> float:
    """Return user and system time of all threads, from ``/proc/PID/stat``; a name may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(field) for field in fields[_CPU_FIELDS]) / TICKS_PER_S


def resident_mib(status: str) -> float:
    """Return the resident memory from ``/proc/PID/status``."""
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def memory_of(pid: int) -> float:
    return resident_mib(Path(f"/proc/{pid}/status").read_text())


def busy_percent(pid: int, over_s: float) -> float:
    """Return the share of one core that a process uses while we wait, in percent."""
    stat = Path(f"/proc/{pid}/stat")
    before, began = cpu_seconds(stat.read_text()), time.monotonic()
    time.sleep(over_s)
    return (cpu_seconds(stat.read_text()) - before) / (time.monotonic() - began) * 100
