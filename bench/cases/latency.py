"""The time from a submission into an idle queue to the start of the program.

The program writes the time of day into a file; the machine has no other work.  The runner has two times:
from the answer *accepted* over the socket, and from the start of the command ``runner submit``.  The second
is compared with the commands of other queues.  A note has the time from the end of a command to the start
of its program.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import time
from typing import Final

from bench.cases import burst
from bench.rivals import runner
from bench.rivals.protocol import Queue
from bench.support import interleave
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from bench.support.stats import median

BENCH: Final = "latency"
ACCEPTED: Final = "accepted to program"
TYPED: Final = "runner submit to program"
AIM_MS: Final = 50.0
LIMIT_S: Final = 60.0

Ends = dict[str, list[float]]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield both times of the runner, the second compared with those of other queues."""
    ends: Ends = {}
    with ExitStack() as stack:
        own = stack.enter_context(runner.running_queue(scratch.directory("daemon")))
        queues: dict[str, Queue] = {TYPED: own}
        missing = list(burst.start_rivals(BENCH, TYPED, scratch, stack, queues))
        contestants: dict[str, Callable[[], float]] = {ACCEPTED: partial(time_accepted, scratch, own)}
        for name, queue in queues.items():
            contestants[name] = partial(time_typed, scratch, queue, ends.setdefault(name, []))
        took = interleave.interleave(scratch.effort.latencies, min(scratch.effort.warmups, 1), contestants)
    series = {name: in_milliseconds(name, values) for name, values in took.items()}
    yield Result(BENCH, series.pop(ACCEPTED), None, Aim(AIM_MS, "p50"), _format_ends(ends))
    mine = series.pop(TYPED)
    yield from (Result(BENCH, mine, theirs) for theirs in series.values())
    yield from missing


def time_accepted(scratch: Scratch, queue: Queue) -> float:
    """Return the seconds from the answer to a submission to the start of its program."""
    stamp = StartTimestamp(scratch.directory("latency"))
    job = queue.submit(stamp.argv)
    answered = time()
    queue.wait_until_idle([job])
    return stamp.written() - answered


def time_typed(scratch: Scratch, queue: Queue, ends: list[float]) -> float:
    """Return the seconds from the start of a command to that of its program; record those from its end."""
    stamp = StartTimestamp(scratch.directory("latency"))
    began = time()
    job = queue.submit_typed(stamp.argv)
    ended = time()
    queue.wait_until_idle([job])
    ends.append(stamp.written() - ended)
    return stamp.written() - began


class StartTimestamp:
    """A program that writes the time of its start to a file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "started"
        self._path.touch()
        self._path.chmod(0o666)  # writable for any user of a job

    @property
    def argv(self) -> tuple[str, ...]:
        return ("sh", "-c", f"date +%s.%N > {self._path}")

    def written(self) -> float:
        """Return the time of day at which the program was started.

        Raises:
            CannotMeasure: the program has written nothing.
        """
        interleave.wait_for("the program's start", lambda: self._path.stat().st_size > 0, LIMIT_S, 0.001)
        try:
            return float(self._path.read_text())
        except ValueError as error:
            raise CannotMeasure("the program has written no time") from error


def _format_ends(ends: Ends) -> str:
    parts = ", ".join(
        f"{name.partition(' to ')[0]} {median(each) * 1000:.0f} ms" for name, each in ends.items()
    )
    return f"p50 from the end of the command: {parts}"
