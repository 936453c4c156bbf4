"""All run directories of a daemon: listing, measuring and removing them.

A job may have made its directory as deep and as strange as it likes.  So ``rm`` removes it, which follows no
link, crosses into no other file system and does not recurse on a stack.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import shuffle
from stat import S_ISDIR
from typing import IO, Final, cast

import structlog

from runner.adapters.host.paths import PathRefusedError, open_beneath
from runner.adapters.host.run_directory import numbered
from runner.base.errors import Unavailable
from runner.core.ports.disk_use import DiskUse

log = structlog.get_logger()

GONE: Final = ".removed-"
"""Begins the name of a directory that is being removed."""

LONGEST_S: Final = 20.0
"""Longest time to measure one directory; what is found by then counts."""

LONGEST_REMOVAL_S: Final = 300.0
"""Longest time to remove one directory, and to begin with the next rest of others; a later sweep goes on."""

MOST_SAID: Final = 4096
"""Bytes of what ``rm`` says that are kept: it has a line for each file that it cannot remove."""

BLOCK: Final = 512
"""Bytes of a block as ``stat`` counts them."""


@dataclass(frozen=True, slots=True)
class HostRunDirectories:
    """Satisfies ``runner.services.retention.RunDirectories``."""

    jobs: Path

    def ids(self) -> tuple[str, ...]:
        return tuple(numbered(self.jobs))

    def size(self, job_id: str) -> int:
        """Return the bytes that a directory takes on the disk; a file with several names counts once."""
        return self.use(job_id, DiskUse(sys.maxsize, sys.maxsize)).size

    def use(self, job_id: str, most: DiskUse) -> DiskUse:
        """Return the disk use; the job may change the directory meanwhile, so no link is followed."""
        try:
            root = os.open(self.jobs / job_id, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return DiskUse()
        count = _Count(os.fstat(root).st_dev)
        deadline, waiting = time.monotonic() + LONGEST_S, [""]
        try:
            while waiting and time.monotonic() < deadline and not count.exceeds(most):
                below = waiting.pop()
                for name, stat in _entries(root, below):
                    if count.add(stat):
                        waiting.append(f"{below}/{name}" if below else name)
                    if count.exceeds(most):
                        break
        finally:
            os.close(root)
        return DiskUse(count.size, count.files)

    def set_aside(self, job_id: str) -> None:
        try:
            (self.jobs / job_id).rename(self.jobs / f"{GONE}{job_id}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"{self.jobs / job_id}: cannot be removed: {error.strerror}") from error

    def remove(self, job_id: str) -> None:
        _remove(self.jobs / f"{GONE}{job_id}")

    def sweep(self) -> None:
        rest, began_s = list(self.jobs.glob(f"{GONE}*")), time.monotonic()
        shuffle(rest)  # no user's can keep those of others waiting for ever
        for path in rest:
            if time.monotonic() - began_s > LONGEST_REMOVAL_S:
                break
            try:
                _remove(path)
            except Unavailable as error:
                log.warning("run_directory.not_removed", error=str(error))


@dataclass(slots=True)
class _Count:
    """The files of a directory that have been seen so far."""

    device: int
    size: int = 0
    files: int = 1
    _several: set[int] = field(default_factory=set)  # inodes of files that have several names

    def exceeds(self, most: DiskUse) -> bool:
        return self.size > most.size or self.files > most.files

    def add(self, stat: os.stat_result) -> bool:
        """Count an entry; return whether it is a directory of the same file system."""
        self.files += 1
        if S_ISDIR(stat.st_mode):
            self.size += stat.st_blocks * BLOCK
            return stat.st_dev == self.device
        if stat.st_nlink == 1 or stat.st_ino not in self._several:
            self.size += stat.st_blocks * BLOCK
        if stat.st_nlink > 1:
            self._several.add(stat.st_ino)
        return False


def _entries(root: int, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in a directory below an opened one; nothing if it is gone, closed or a link by now."""
    try:
        directory = open_beneath(root, below) if below else os.dup(root)
    except (OSError, PathRefusedError):
        return
    try:
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(directory)


def _remove(path: Path) -> None:
    """Remove a directory that a process of its user may be changing."""
    command = ["timeout", "-s", "KILL", str(LONGEST_REMOVAL_S)]
    command += ["rm", "--recursive", "--force", "--one-file-system", "--", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as rm:
        errors = cast("IO[bytes]", rm.stderr)
        said = errors.read(MOST_SAID)
        while errors.read(MOST_SAID):  # else it would wait
            pass
    if rm.returncode:
        lines = said.decode(errors="replace").splitlines()
        why = lines[0] if lines else f"not removed within {LONGEST_REMOVAL_S:.0f} s"
        raise Unavailable(f"{path}: {why}; this is tried again")
