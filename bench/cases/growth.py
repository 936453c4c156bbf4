"""Answers of a daemon with a long history, beside one that has none.

The store of the one has 100,000 finished jobs, spread over a month.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.support import history, interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch, fast_directory

BENCH: Final = "growth"
AIM: Final = 2.0
COMMANDS: Final = ("list", "list --all", "usage", "usage --by job", "version")
PATHS: Final[Mapping[str, str]] = {"/metrics": "/metrics", "/v1/overview": "/v1/overview"}


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield each command and each question beside the same of an empty daemon."""
    jobs = f"{scratch.effort.grown_jobs:,} finished jobs"
    with ExitStack() as stack:
        grown = stack.enter_context(running_daemon(_with_history(scratch), "process"))
        empty = stack.enter_context(running_daemon(scratch.directory("empty"), "process"))
        for name in (*COMMANDS, *PATHS):
            contestants = {jobs: _asked(grown, name), "empty": _asked(empty, name)}
            seconds = interleave.interleave(scratch.effort.asked, scratch.effort.warmups, contestants)
            ours = in_milliseconds(f"{_shown(name)}, {jobs}", seconds[jobs])
            yield Result(BENCH, ours, in_milliseconds("an empty daemon", seconds["empty"]), Aim(AIM, "ratio"))


def _with_history(scratch: Scratch) -> Path:
    directory = scratch.directory("grown")
    with fast_directory(scratch.root) as disk:
        history.build_store(disk / "store.db", scratch.effort.grown_jobs)
        shutil.copy(disk / "store.db", directory / "store.db")
    return directory


def _shown(name: str) -> str:
    return name if name in PATHS else f"runner {name}"


def _asked(daemon: BenchDaemon, name: str) -> Callable[[], float]:
    """Return what takes the time of a command, or of a question over one connection."""
    if name not in PATHS:
        return interleave.time_command([*runner_command(), *name.split()], daemon.environment)
    return interleave.time_call(lambda: daemon.client.ask("GET", PATHS[name], None, 60.0))
