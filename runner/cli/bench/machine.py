"""A description of the measuring machine without its host name."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

GIB = 1024**3


def describe_machine() -> Mapping[str, object]:
    """Return the hardware and software of this machine, without its host name and without paths.

    ``load`` is the load average of the last minute; results from a busy machine are unreliable.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / GIB, 1),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
    }


def one_line(machine: Mapping[str, object]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB;"
        f" Linux {machine['kernel']}; load before: {machine['load']}"
    )


def cpu_model(text: str) -> str:
    """Return the processor's name from ``/proc/cpuinfo``, or the architecture if the file has no name."""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None:
        return platform.machine()
    return " ".join(re.sub(r"\((R|TM)\)|\bCPU\b", " ", found[1]).split())
