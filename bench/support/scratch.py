"""The setting of a measurement: its effort, its directory, and data shared by all cases."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.support import history

MEMORY_DISK: Final = Path("/dev/shm")  # noqa: S108 - what is made there moves on at once
MEMORY_NEEDED: Final = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of work: rounds, jobs and steps of each measurement."""

    submits: int = 40
    posts: int = 100
    waiting: int = 300
    queued: int = 5_000
    hostile_waiting: int = 4_000
    settled_s: float = 15.0  # of hostile loads
    listed: int = 10_000
    followers: int = 200
    first_lines: int = 12
    resumes: int = 8
    backoffs_s: tuple[int, ...] = (0, 1)
    starts: int = 7
    candidates: int = 27
    lists: int = 15
    finished_jobs: int = 10_000
    grown_jobs: int = 100_000
    asked: int = 15
    idle_s: float = 12.0
    soak_s: float = 7200.0
    cases: int = 2
    repeats: int = 5
    turns: int = 16
    stalls: int = 12
    turn_share: float = 1.0  # share of a turn's full number of steps
    dispatched: int = 400
    dispatches: int = 5
    burst: int = 300
    bursts: int = 2
    whole: bool = False  # slow queues get the same number of jobs, too
    latencies: int = 10
    snapshots: int = 20
    code_files: int = 5_000
    epochs: int = 20
    loaders: tuple[int, ...] = (2, 4)
    streamed: int = 10_000
    stream_loaders: int = 8
    sharing: int = 40
    sharing_contained: int = 12
    sharing_share: float = 1.0  # share of the full number of steps
    points: int = 100_000  # of a curve
    estimates: int = 2
    warmups: int = 2
    may_install: bool = True


QUICK: Final = Effort(
    submits=3,
    posts=10,
    waiting=20,
    queued=20,
    hostile_waiting=20,
    settled_s=0.0,
    listed=30,
    followers=3,
    first_lines=1,
    resumes=1,
    backoffs_s=(0,),
    starts=1,
    candidates=3,
    lists=2,
    finished_jobs=200,
    grown_jobs=300,
    asked=2,
    idle_s=0.2,
    soak_s=3.0,
    cases=1,
    repeats=1,
    turns=2,
    stalls=1,
    turn_share=0.2,
    dispatched=12,
    dispatches=1,
    burst=4,
    bursts=1,
    latencies=1,
    snapshots=1,
    code_files=50,
    epochs=3,
    loaders=(2,),
    streamed=48,
    stream_loaders=2,
    sharing=6,
    sharing_contained=3,
    sharing_share=0.02,
    points=5_000,
    estimates=1,
    warmups=0,
    may_install=False,
)
"""Enough to see that everything works; the numbers mean nothing."""


@dataclass(slots=True)
class Scratch:
    """A directory that is removed after the benchmarks."""

    effort: Effort
    root: Path
    _made: int = 0
    _store: Path | None = field(default=None)

    def directory(self, name: str) -> Path:
        """Return a new directory that jobs of other users may traverse."""
        self._made += 1
        path = self.root / f"{name}-{self._made}"
        path.mkdir(mode=0o755)
        return path

    def store(self) -> Path:
        """Return a store with many finished jobs, created on first use."""
        if self._store is None:
            self._store = self.directory("store") / "store.db"
            with fast_directory(self.root) as disk:
                history.build_store(disk / "store.db", self.effort.finished_jobs)
                shutil.copy(disk / "store.db", self._store)
        return self._store


@contextmanager
def open_scratch(effort: Effort) -> Iterator[Scratch]:
    """Yield a scratch directory, and remove it with its content at the end."""
    root = Path(tempfile.mkdtemp(prefix="runner-bench-"))
    root.chmod(0o755)
    try:
        yield Scratch(effort, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def fast_directory(otherwise: Path) -> Iterator[Path]:
    """Yield a directory in memory, because each of many transactions would wait for the disk."""
    memory = os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > MEMORY_NEEDED
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if memory else otherwise) as directory:
        yield Path(directory)
