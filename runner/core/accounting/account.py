"""The account of one job: where its time went, and what it used of what it asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from runner.base.readable import readable_size
from runner.base.units import format_size
from runner.core.accounting.usage import UsageSpan

GIB: Final = 1024**3
ROOM: Final = 1.3
"""Of advice: so much more than was ever used."""

WASTE: Final = 2.0
"""There is advice if so many times more was asked for than it would say."""

ENOUGH_S: Final = 60.0
"""A shorter run says little about what a job needs."""


@dataclass(frozen=True, slots=True)
class WallTime:
    """The seconds from the submission of a job to its end, or to now: each belongs to one part."""

    work_s: float
    waiting_s: float
    starting_s: float
    saving_s: float
    lost_s: float | None
    """None: the program keeps files, and nobody knows how much of its work."""

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.work_s + self.waiting_s + self.starting_s + self.saving_s + (self.lost_s or 0.0)

    @property
    def goodput(self) -> float | None:
        """The share of work whose result is kept; None: no time has passed."""
        return self.work_s / self.total_s if self.total_s > 0 else None


def wall_time(
    submitted_s: float, until_s: float, spans: Sequence[UsageSpan], saving_s: float = 0.0
) -> WallTime:
    """Return the wall time of a job by use; ``saving_s`` is what its program has told of its saves.

    Waiting is all time without an allocation, starting the time of an allocation before the program ran.
    """
    held_s = starting_s = lost_s = 0.0
    begin_s = submitted_s
    for span in sorted(spans, key=lambda each: each.placed_s):
        own_s = span.allocated_s(begin_s, until_s)  # no second belongs to two: the clock may have been set
        begin_s = max(begin_s, until_s if span.ended_s is None else span.ended_s)
        begun_s = own_s if span.started_s is None else min(max(span.started_s - span.placed_s, 0.0), own_s)
        held_s, starting_s = held_s + own_s, starting_s + begun_s
        lost_s += min(span.lost_s or 0.0, own_s - begun_s)
    saving_s = min(saving_s, held_s - starting_s - lost_s)
    return WallTime(
        work_s=held_s - starting_s - lost_s - saving_s,
        waiting_s=max(until_s - submitted_s - held_s, 0.0),
        starting_s=starting_s,
        saving_s=saving_s,
        lost_s=None if any(span.lost_s is None for span in spans) else lost_s,
    )


def advise(
    asked_bytes: int, most_bytes: float | None, asked_cpus: float, most_cpus: float | None
) -> list[str]:
    """Return a line for memory and one for processors, where much more was asked for than ever used."""
    found = []
    if most_bytes is not None:
        fits = max(ceil(most_bytes * ROOM / GIB * 2), 1) * GIB // 2
        if fits * WASTE <= asked_bytes:
            fact = f"asked {readable_size(asked_bytes)}, never above {readable_size(most_bytes)}"
            found.append(f"{fact}: resources.memory: {format_size(fits)}")
    if most_cpus is not None:
        enough = max(ceil(most_cpus * ROOM), 1)
        if enough * WASTE <= asked_cpus:
            found.append(f"asked {asked_cpus:g} CPUs, never above {most_cpus:.2g}: resources.cpus: {enough}")
    return found
