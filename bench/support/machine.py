"""A description of the measuring machine without its host name."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine described by its hardware and software, without host name and paths."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    engine: str
    python: str
    load: float  # of the minute before the first measurement; results from a busy machine are unreliable

    @property
    def slug(self) -> str:
        """Return a file name for the results of this kind of machine."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.cores} cores".lower()).strip("-")

    def as_json(self) -> Mapping[str, object]:
        return asdict(self)

    def text(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB; Linux {self.kernel};"
            f" engine {self.engine}; Python {self.python}; load before: {self.load:.1f}"
        )


def this_machine() -> Machine:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=cpu_model(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(pages / GIB, 1),
        kernel=platform.release(),
        engine=engine_version(),
        python=platform.python_version(),
        load=round(os.getloadavg()[0], 1),
    )


def cpu_model(text: str) -> str:
    """Return the processor's name from ``/proc/cpuinfo``, or the architecture if the file has no name."""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found is None:
        return platform.machine()
    return " ".join(re.sub(r"\((R|TM)\)|\bCPU\b", " ", found[1]).split())


def engine_version() -> str:
    """Return the container engine's version, as the ``docker`` command reports it."""
    try:
        said = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "none"
    return said.stdout.strip()
