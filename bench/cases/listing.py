"""``runner list`` with a long history: what every user types many times a day."""

import sys
from collections.abc import Iterator
from typing import Final

from bench.cases.idle_daemon import with_history
from bench.cases.submit import FLOOR
from bench.support import interleave as rounds
from bench.support.daemon import command, stage
from bench.support.result import Line, Result, in_milliseconds
from bench.support.scratch import Room

BENCH: Final = "list"
COMMANDS: Final = {"runner list": ["list"], "runner list --all": ["list", "--all"]}


def measure(room: Room) -> Iterator[Line]:
    """Yield the commands beside the start of Python, with as many finished jobs as the effort says."""
    history = f"{room.effort.finished_jobs:,} finished jobs"
    with stage(with_history(room)) as here:
        contestants = {
            name: rounds.command([*command(), *arguments], here.environment)
            for name, arguments in COMMANDS.items()
        }
        contestants[FLOOR] = rounds.command([sys.executable, "-c", "import click"], here.environment)
        seconds = rounds.interleaved(room.effort.lists, room.effort.warmups, contestants)
    floor = in_milliseconds(FLOOR, seconds[FLOOR])
    for name in COMMANDS:
        yield Result(BENCH, in_milliseconds(f"{name}, {history}", seconds[name]), floor)
