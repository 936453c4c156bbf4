"""Handing in a job on the command line, beside other queues and beside the start of Python itself.

Every queue is blocked by one job, so that nothing that is submitted begins to work and
disturbs the rest.  Each round calls every command once; after ours the round goes on when
the daemon has put the job into its queue and it is cancelled, so that its work for this job
is not charged to the next command.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from bench.rivals import slurm, spooler
from bench.support import interleave as rounds
from bench.support.daemon import Stage, command, stage
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, NotMeasured, Result, in_milliseconds
from bench.support.scratch import Room

BENCH: Final = "submit"
OURS: Final = "runner submit FILE"
FLOOR: Final = 'python -c "import click"'


def measure(room: Room) -> Iterator[Line]:
    """Yield our command beside each of the others."""
    with stage(room.directory("stage")) as here, ExitStack() as stack:
        here.block()
        contestants = {OURS: ours(here)}
        missing = list(_rivals(room, stack, contestants))
        contestants[FLOOR] = rounds.command([sys.executable, "-c", "import click"], here.environment)
        seconds = rounds.interleaved(room.effort.submits, room.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    mine = series.pop(OURS)
    yield Result(BENCH, mine, series.pop(FLOOR), Aim(2.0, "ratio"))
    yield from (Result(BENCH, mine, theirs) for theirs in series.values())
    yield from missing


def ours(here: Stage) -> Callable[[], float]:
    """Return a contestant that submits a file and lets the daemon come to rest."""
    file = here.write(job_text())
    once = rounds.command([*command(), "submit", str(file)], here.environment)

    def submit() -> float:
        job = here.next_id()
        took = once()
        here.withdraw(job)
        return took

    return submit


def _rivals(room: Room, stack: ExitStack, contestants: dict[str, Callable[[], float]]) -> Iterator[Line]:
    """Start the other queues, and yield a line for each that cannot be had."""
    for name, start in (("sbatch --wrap true", slurm.cluster), ("tsp true", spooler.queue)):
        try:
            rival = start(room.directory("rival"), may_install=room.effort.may_install)
            contestants[name] = stack.enter_context(rival)
        except CannotMeasure as problem:
            yield NotMeasured(BENCH, f"{OURS} beside {name}", str(problem))
