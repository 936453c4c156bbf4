"""Disk and network traffic, memory and processors of attempts, as the kernel counts them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runner.core.ports.executor import Alive, Key


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Bytes since an attempt began; what the page cache answers or has not written yet is not counted."""

    read_bytes: int
    written_bytes: int
    resident_bytes: int | None = None
    """Memory of its processes at present; what several share counts for each. None: unknown."""
    cpu_s: float | None = None
    """Time of processors that its processes have used."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    """Bytes of its own network interfaces. None: it has none of its own, or they cannot be read."""


@dataclass(frozen=True, slots=True)
class DiskRates:
    """The recent rates of an attempt in bytes per second, and its counters."""

    read_per_s: float
    written_per_s: float
    total: DiskCounters
    cpus: float | None = None
    """Processors that were busy for it."""
    received_per_s: float | None = None
    sent_per_s: float | None = None


class DiskActivity(Protocol):
    """The kernel's counters of attempts on this host."""

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:
        """Return the counters of each attempt that can be read; the others are left out."""


class NoDiskUse:
    """For an executor whose attempts run elsewhere."""

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:  # noqa: ARG002
        """Return nothing: nothing is known."""
        return {}
