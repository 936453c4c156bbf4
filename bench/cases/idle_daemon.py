"""The cost of a daemon with a long history: its start, its memory, and its processor time when idle.

The start is measured from the start of the process to the first answer over the socket.  It is compared
with a Python process that only imports what the daemon has imported until then and exits, with one that
imports its libraries alone, and with the start of a daemon without a history.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.support import interleave
from bench.support.daemon import (
    FOREVER,
    BenchDaemon,
    await_first_answer,
    launch_daemon,
    running_daemon,
    terminate_daemon,
)
from bench.support.jobfile import job_text
from bench.support.process import busy_percent, resident_memory
from bench.support.result import Aim, Line, Result, Series
from bench.support.scratch import Scratch

BENCH: Final = "daemon"
LIBRARIES: Final = "docker, fastapi, pydantic, structlog, uvicorn, yaml"
FLOOR: Final = "python importing its libraries"
IMPORTS: Final = "python importing what it imports"
EMPTY: Final = "the start of an empty daemon"
AIM_IMPORTS: Final = 1.3
AIM_HISTORY: Final = 1.1
AIM_MEMORY_MIB: Final = 150.0
AIM_IDLE_PERCENT: Final = 1.0
SETTLE_S: Final = 2.0
_NOTE: Final = """\
import atexit, os, runpy, sys
def note(pid=os.getpid()):
    if os.getpid() == pid:  # and no process that was forked
        with open(%r, "w") as file:
            print(*(name for name in sys.modules if name != "__main__"), file=file)
atexit.register(note)
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A program that runs the module after ``-m``, and notes what has been imported."""

_IMPORT: Final = """\
from importlib import import_module
for name in %r:
    try:
        import_module(name)
    except ImportError:
        pass  # it was none for the daemon either
"""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield start, memory and idle time, with as many finished jobs as the effort says."""
    directory = with_history(scratch)
    history = f"{scratch.effort.finished_jobs:,} finished jobs"
    memory: list[float] = []
    contestants = {
        "start": _start(directory, memory),
        "empty": _start(scratch.directory("empty"), []),
        "floor": interleave.time_command([sys.executable, "-c", f"import {LIBRARIES}"], {}),
        "imports": interleave.time_command([sys.executable, "-P", "-c", _IMPORT % _imported(scratch)], {}),
    }
    seconds = interleave.interleave(scratch.effort.starts, scratch.effort.warmups, contestants)
    start = Series(f"start to first answer, {history}", "s", seconds["start"])
    yield Result(BENCH, start, Series(FLOOR, "s", seconds["floor"]))
    yield Result(BENCH, start, Series(IMPORTS, "s", seconds["imports"]), Aim(AIM_IMPORTS, "ratio"))
    yield Result(BENCH, start, Series(EMPTY, "s", seconds["empty"]), Aim(AIM_HISTORY, "ratio"))
    resident = Series("resident memory after start", "MiB", tuple(memory))
    yield Result(BENCH, resident, None, Aim(AIM_MEMORY_MIB, "p50"))
    with running_daemon(directory) as daemon:
        yield from _idle(daemon, scratch.effort.idle_s)


def with_history(scratch: Scratch) -> Path:
    """Return a fresh state directory with many finished jobs in its store."""
    directory = scratch.directory("history")
    shutil.copy(scratch.store(), directory / "store.db")
    return directory


def _imported(scratch: Scratch) -> list[str]:
    """Return the modules that a daemon has imported, in their order, if it is ended at its first answer."""
    directory = scratch.directory("imports")
    note = directory / "modules"
    process = launch_daemon(directory, python=("-c", _NOTE % str(note)))
    try:
        await_first_answer(directory, process)
    finally:
        terminate_daemon(process)
    return note.read_text().split()


def _start(directory: Path, memory: list[float]) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        process = launch_daemon(directory)
        try:
            took = await_first_answer(directory, process) - began
            memory.append(resident_memory(process.pid))
        finally:
            terminate_daemon(process)
        return took

    return measure


def _idle(daemon: BenchDaemon, seconds: float) -> Iterator[Line]:
    aim = Aim(AIM_IDLE_PERCENT, "p50")
    time.sleep(min(SETTLE_S, seconds))
    nothing = busy_percent(daemon.process.pid, seconds)
    yield Result(BENCH, Series("processor time, no job", "%", (nothing,)), None, aim)
    job = daemon.submit(daemon.write(job_text(steps=FOREVER)))
    daemon.await_state(job, "running")
    time.sleep(min(SETTLE_S, seconds))
    one = busy_percent(daemon.process.pid, seconds)
    yield Result(BENCH, Series("processor time, one job running", "%", (one,)), None, aim)
    used = Series("resident memory with that job", "MiB", (resident_memory(daemon.process.pid),))
    yield Result(BENCH, used, None, Aim(AIM_MEMORY_MIB, "p50"))
