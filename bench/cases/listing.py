"""The time of ``runner list``, a frequent command, with a long history."""

import sys
from collections.abc import Iterator
from typing import Final

from bench.cases.idle_daemon import with_history
from bench.cases.submit import FLOOR
from bench.support import interleave
from bench.support.daemon import runner_command, running_daemon
from bench.support.result import Line, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "list"
COMMANDS: Final = {"runner list": ["list"], "runner list --all": ["list", "--all"]}


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the commands compared with the start of Python; the effort sets the number of finished jobs."""
    history = f"{scratch.effort.finished_jobs:,} finished jobs"
    with running_daemon(with_history(scratch)) as daemon:
        contestants = {
            name: interleave.time_command([*runner_command(), *arguments], daemon.environment)
            for name, arguments in COMMANDS.items()
        }
        contestants[FLOOR] = interleave.time_command(
            [sys.executable, "-c", "import click"], daemon.environment
        )
        seconds = interleave.interleave(scratch.effort.lists, scratch.effort.warmups, contestants)
    floor = in_milliseconds(FLOOR, seconds[FLOOR])
    for name in COMMANDS:
        yield Result(BENCH, in_milliseconds(f"{name}, {history}", seconds[name]), floor)
