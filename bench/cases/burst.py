"""Throughput of three hundred empty jobs released at once, in several queues of the same size.

In each queue, a job that takes all slots reads from a pipe.  The other jobs, each of them ``true``, wait
behind it.  The clock starts when the pipe is closed and stops when the queue reports the end of the last
job.  Queues take turns; while one works, the others run but are idle.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from time import perf_counter
from typing import Final

from bench.rivals import gflow, runner, slurm, spooler
from bench.rivals.protocol import BlockingJob, Queue
from bench.support import interleave
from bench.support.jobfile import CPUS
from bench.support.result import CannotMeasure, Line, NotMeasured, Result, Series
from bench.support.scratch import Effort, Scratch

BENCH: Final = "burst"
OURS: Final = "jobs that do nothing"
TUNING: Final = (
    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,default_queue_depth=1000",
    "SlurmctldDebug=error",
    "SlurmdDebug=error",
)
RIVALS: Final[dict[str, Callable[..., AbstractContextManager[Queue]]]] = {
    "Slurm, default": slurm.running_cluster,
    "Slurm, tuned": partial(slurm.running_cluster, more=TUNING),
    "task-spooler": spooler.running_queue,
    "gflow": gflow.running_queue,
}
FEW: Final = {"Slurm, default": 12, "Slurm, tuned": 30, "gflow": 10}
"""Of queues that take about a second for each job: what they do per second does not depend on how many."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the runner's jobs per second compared with each other queue."""
    with ExitStack() as stack:
        queues = {OURS: stack.enter_context(runner.running_queue(scratch.directory("daemon")))}
        missing = list(start_rivals(BENCH, OURS, scratch, stack, queues))
        sizes = {name: job_count(scratch.effort, name) for name in queues}
        contestants = {
            name: partial(time_burst, scratch, queue, sizes[name]) for name, queue in queues.items()
        }
        took = interleave.interleave(scratch.effort.bursts, 0, contestants)
    rates = {name: _rate(name, sizes[name], values) for name, values in took.items()}
    mine = rates.pop(OURS)
    yield from (Result(BENCH, mine, theirs) for theirs in rates.values())
    yield from [] if rates else [Result(BENCH, mine)]
    yield from missing


def job_count(effort: Effort, name: str) -> int:
    """Return the number of jobs for a queue."""
    few = effort.burst if effort.whole else FEW.get(name, effort.burst)
    return min(effort.burst, few)


def start_rivals(
    bench: str, mine: str, scratch: Scratch, stack: ExitStack, queues: dict[str, Queue]
) -> Iterator[Line]:
    """Start the other queues, and yield a line for each that is not available."""
    for name, start in RIVALS.items():
        try:
            rival = start(scratch.directory("rival"), may_install=scratch.effort.may_install)
            queues[name] = stack.enter_context(rival)
        except CannotMeasure as problem:
            yield NotMeasured(bench, f"{mine} beside {name}", str(problem))


def time_burst(scratch: Scratch, queue: Queue, jobs: int) -> float:
    """Return the seconds that a queue takes for ``jobs`` jobs, from the moment when the first may begin."""
    gate = BlockingJob(scratch.directory("burst"))
    queue.submit(gate.argv, CPUS)
    gate.await_start()
    waiting = [queue.submit(("true",)) for _ in range(jobs)]
    began = perf_counter()
    gate.release()
    queue.wait_until_idle(waiting)
    return perf_counter() - began


def _rate(name: str, jobs: int, took: tuple[float, ...]) -> Series:
    return Series(f"{name}, {jobs} jobs", "jobs/s", tuple(jobs / each for each in took))
