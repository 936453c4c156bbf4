"""All run directories of a daemon: listing, measuring and removing them.

A job may have made its directory as deep and as strange as it likes.  So ``rm`` removes it, which follows no
link, crosses into no other file system and does not recurse on a stack.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.base.errors import Unavailable

GONE: Final = ".removed-"
"""Begins the name of a directory that is being removed."""

BLOCK: Final = 512
"""Bytes of a block as ``stat`` counts them."""


@dataclass(frozen=True, slots=True)
class HostRunDirectories:
    """Satisfies ``runner.services.retention.RunDirectories``."""

    jobs: Path

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the jobs that have a directory, the oldest first."""
        try:
            names = [name for name in os.listdir(self.jobs) if name.isdecimal()]  # noqa: PTH208  names alone
        except FileNotFoundError:
            return ()
        return tuple(sorted(names, key=int))

    def size(self, job_id: str) -> int:
        """Return the bytes that a directory takes on the disk; a file with several names counts once."""
        seen: set[tuple[int, int]] = set()
        total, waiting = 0, [self.jobs / job_id]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        stat = entry.stat(follow_symlinks=False)
                        if (stat.st_dev, stat.st_ino) not in seen:
                            seen.add((stat.st_dev, stat.st_ino))
                            total += stat.st_blocks * BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(Path(entry.path))
            except OSError:  # it goes, or its owner has closed it to a daemon that is not root
                continue
        return total

    def remove(self, job_id: str) -> None:
        """Remove a directory: at once for those who look for it, and then from the disk."""
        gone = self.jobs / f"{GONE}{job_id}"
        try:
            (self.jobs / job_id).rename(gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"{self.jobs / job_id}: cannot be removed: {error.strerror}") from error
        _remove(gone)

    def sweep(self) -> None:
        """Remove the rest of directories whose removal was interrupted."""
        for path in self.jobs.glob(f"{GONE}*"):
            _remove(path)


def _remove(path: Path) -> None:
    command = ["rm", "--recursive", "--force", "--one-file-system", "--", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"{path}: {said[0]}")
