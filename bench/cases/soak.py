"""Memory and files of a daemon while small jobs come and go for a long time, and their growth.

People submit small programs, list, show and ask for usage, each as a process or a thread that ends: what a
daemon keeps for anybody who ever asked shows here, and nowhere else.  It is not measured with the others:
``python -m bench soak --for 2h``.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.process import resident_memory
from bench.support.result import Line, Result, Series, Unit
from bench.support.scratch import Scratch
from bench.support.stats import slope

BENCH: Final = "soak"
SAMPLES: Final = 40
"""Samples of the whole time."""

ASKING: Final = 6
"""Clients that ask at a time."""

PAUSE_S: Final = 1.0
"""Between two rounds of submissions and questions."""

SETTLED: Final = 4
"""The part of the samples that is left out at the beginning, while pools and caches fill: one in so many."""

PROGRAM: Final = """\
name: small
workload:
  kind: program
  command: ["true"]
  code: null
resources:
  cpus: 0.5
  memory: 64MiB
"""

UNITS: Final[Mapping[str, Unit]] = {
    "descriptors": "descriptors",
    "threads": "threads",
    "resident memory": "MiB",
    "log of the store": "MiB",
    "directories beside those of jobs": "directories",
}


@dataclass(slots=True)
class Growth:
    """Observations of a daemon, at equal distances."""

    daemon: BenchDaemon
    began_s: float = field(default_factory=time.monotonic)
    seen: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in UNITS})

    def sample(self) -> None:
        """Look at the daemon's process and at its state directory."""
        process = Path(f"/proc/{self.daemon.process.pid}")
        log = self.daemon.directory / "store.db-wal"
        found = {
            "descriptors": float(len(os.listdir(process / "fd"))),  # noqa: PTH208
            "threads": float(len(os.listdir(process / "task"))),  # noqa: PTH208
            "resident memory": resident_memory(self.daemon.process.pid),
            "log of the store": log.stat().st_size / 1024**2 if log.exists() else 0.0,
            "directories beside those of jobs": float(_directories(self.daemon.directory)),
        }
        for name, value in found.items():
            self.seen[name].append(value)

    @property
    def hours(self) -> float:
        return (time.monotonic() - self.began_s) / 3600

    def lines(self, jobs: int, over_s: float, load: float) -> Iterator[Line]:
        """Yield the samples of each figure, with what it gained per hour once all was warm."""
        said = f"{over_s / 60:.0f} minutes, {jobs} jobs, load {load:.1f}"
        for name, values in self.seen.items():
            skipped = len(values) // SETTLED
            gained = slope(values[skipped:]).value * len(values) / self.hours
            note = f"{values[0]:.1f} at first, {values[-1]:.1f} at last; {gained:+.1f} {UNITS[name]} per hour"
            yield Result(BENCH, Series(f"{name}, {said}", UNITS[name], tuple(values)), note=note)


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield what a daemon held while small jobs came and went, and how that grew."""
    over_s = scratch.effort.soak_s
    with running_daemon(scratch.directory("soak"), "process", cpus=2) as daemon:
        growth, jobs, ends_s = Growth(daemon), 0, time.monotonic() + over_s
        file = daemon.write(PROGRAM, "small.yaml")
        due_s = time.monotonic()
        while time.monotonic() < ends_s:
            with ThreadPoolExecutor(ASKING) as clients:  # new threads each time, as people are
                jobs += len([clients.submit(daemon.submit, file) for _ in range(2)])
                for question in _questions(daemon, jobs):
                    clients.submit(question)
            if time.monotonic() >= due_s:
                growth.sample()
                due_s += over_s / SAMPLES
            time.sleep(min(PAUSE_S, over_s / SAMPLES))
        growth.sample()
        yield from growth.lines(jobs, over_s, os.getloadavg()[2])


def _questions(daemon: BenchDaemon, jobs: int) -> Iterator[Callable[[], object]]:
    """Yield what people ask meanwhile."""
    client = daemon.client
    yield client.jobs
    yield lambda: client.get("/v1/usage", {"by": "user"})
    yield client.version
    yield lambda: client.job(str(max(jobs - 1, 1)))
    yield lambda: client.events(str(max(jobs - 1, 1)), 0)


def _directories(state: Path) -> int:
    """Return the directories below a state directory, without the run directories of jobs."""
    count = 0
    for folder, below, _ in os.walk(state):
        if Path(folder) == state and "jobs" in below:
            below.remove("jobs")
        count += len(below)
    return count
