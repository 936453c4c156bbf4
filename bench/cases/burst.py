"""Three hundred jobs that do nothing, let go at once, in several queues of the same size.

In each queue a job that takes all slots reads from a pipe.  Behind it wait the jobs, each of them
``true``.  The clock starts when the pipe is closed and stops when the last job has ended, as its own
queue tells.  Queues take turns; while one works the others are up and have nothing to do.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from time import perf_counter
from typing import Final

from bench.rivals import gflow, slurm, spooler
from bench.rivals import runner as ours
from bench.rivals.protocol import Gate, Queue
from bench.support import interleave as rounds
from bench.support.jobfile import CPUS
from bench.support.result import CannotMeasure, Line, NotMeasured, Result, Series
from bench.support.scratch import Effort, Room

BENCH: Final = "burst"
OURS: Final = "jobs that do nothing"
TUNING: Final = (
    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,default_queue_depth=1000",
    "SlurmctldDebug=error",
    "SlurmdDebug=error",
)
RIVALS: Final[dict[str, Callable[..., AbstractContextManager[Queue]]]] = {
    "Slurm, default": slurm.queue,
    "Slurm, tuned": partial(slurm.queue, more=TUNING),
    "task-spooler": spooler.working,
    "gflow": gflow.working,
}
FEW: Final = {"Slurm, default": 12, "Slurm, tuned": 30, "gflow": 10}
"""Of queues that take about a second for each job: what they do per second does not depend on how many."""


def measure(room: Room) -> Iterator[Line]:
    """Yield our jobs per second beside those of each other queue."""
    with ExitStack() as stack:
        queues = {OURS: stack.enter_context(ours.working(room.directory("stage")))}
        missing = list(joined(BENCH, OURS, room, stack, queues))
        sizes = {name: size(room.effort, name) for name in queues}
        contestants = {name: partial(seconds, room, queue, sizes[name]) for name, queue in queues.items()}
        took = rounds.interleaved(room.effort.bursts, 0, contestants)
    rates = {name: _rate(name, sizes[name], values) for name, values in took.items()}
    mine = rates.pop(OURS)
    yield from (Result(BENCH, mine, theirs) for theirs in rates.values())
    yield from [] if rates else [Result(BENCH, mine)]
    yield from missing


def size(effort: Effort, name: str) -> int:
    """Return how many jobs a queue gets."""
    few = effort.burst if effort.whole else FEW.get(name, effort.burst)
    return min(effort.burst, few)


def joined(bench: str, mine: str, room: Room, stack: ExitStack, queues: dict[str, Queue]) -> Iterator[Line]:
    """Start the other queues, and yield a line for each that cannot be had."""
    for name, start in RIVALS.items():
        try:
            rival = start(room.directory("rival"), may_install=room.effort.may_install)
            queues[name] = stack.enter_context(rival)
        except CannotMeasure as problem:
            yield NotMeasured(bench, f"{mine} beside {name}", str(problem))


def seconds(room: Room, queue: Queue, jobs: int) -> float:
    """Return what a queue takes for so many jobs, from the moment when the first of them may begin."""
    gate = Gate(room.directory("burst"))
    queue.submit(gate.argv, CPUS)
    gate.await_begin()
    waiting = [queue.submit(("true",)) for _ in range(jobs)]
    began = perf_counter()
    gate.let_go()
    queue.come_to_rest(waiting)
    return perf_counter() - began


def _rate(name: str, jobs: int, took: tuple[float, ...]) -> Series:
    return Series(f"{name}, {jobs} jobs", "jobs/s", tuple(jobs / each for each in took))
