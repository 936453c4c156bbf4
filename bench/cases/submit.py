"""The time to submit a job on the command line, compared with other queues and with the start of Python.

One job blocks each queue, so that no submitted job starts and disturbs the measurement.  Each round calls
every command once.  After the runner's command, the round waits until the daemon has queued the job and the
job is cancelled, so that this work is not charged to the next command.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from bench.rivals import slurm, spooler
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "submit"
OURS: Final = "runner submit FILE"
FLOOR: Final = 'python -c "import click"'


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the runner's command compared with each of the others."""
    with running_daemon(scratch.directory("daemon")) as daemon, ExitStack() as stack:
        daemon.block()
        contestants = {OURS: submit_with_runner(daemon)}
        missing = list(_start_rivals(scratch, stack, contestants))
        contestants[FLOOR] = interleave.time_command(
            [sys.executable, "-c", "import click"], daemon.environment
        )
        seconds = interleave.interleave(scratch.effort.submits, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    mine = series.pop(OURS)
    yield Result(BENCH, mine, series.pop(FLOOR), Aim(2.0, "ratio"))
    yield from (Result(BENCH, mine, theirs) for theirs in series.values())
    yield from missing


def submit_with_runner(daemon: BenchDaemon) -> Callable[[], float]:
    """Return a contestant that submits a file and waits until the daemon is idle."""
    file = daemon.write(job_text())
    once = interleave.time_command([*runner_command(), "submit", str(file)], daemon.environment)

    def submit() -> float:
        job = daemon.next_id()
        took = once()
        daemon.withdraw(job)
        return took

    return submit


def _start_rivals(
    scratch: Scratch, stack: ExitStack, contestants: dict[str, Callable[[], float]]
) -> Iterator[Line]:
    """Start the other queues, and yield a line for each that is not available."""
    for name, start in (("sbatch --wrap true", slurm.blocked_cluster), ("tsp true", spooler.blocked_queue)):
        try:
            rival = start(scratch.directory("rival"), may_install=scratch.effort.may_install)
            contestants[name] = stack.enter_context(rival)
        except CannotMeasure as problem:
            yield NotMeasured(BENCH, f"{OURS} beside {name}", str(problem))
