"""Disk space of run directories: the port to the part that measures it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk space of a run directory."""

    size: int = 0
    """Bytes of the blocks on the disk."""
    files: int = 0
    """Files and directories, each of which takes an inode."""

    def __add__(self, other: "DiskUse") -> "DiskUse":
        return DiskUse(self.size + other.size, self.files + other.files)


class MeasuredDirectories(Protocol):
    """The run directories of a daemon, as far as they are measured."""

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the jobs that have a directory."""

    def use(self, job_id: str, most: DiskUse) -> DiskUse:
        """Return the disk use of a directory; counting stops as soon as it is more than ``most``."""
