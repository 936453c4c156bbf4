"""How often to save: as told, or settled by what a save costs here and how often this host interrupts.

The host knows how long its attempts live, the trainer how long a save holds it up; the best time
between two saves follows from both (Daly 2006, a higher-order form of Young's from 1974).  When a
checkpoint is made changes no bit of what is learned.
"""

import math
import statistics
from collections import deque
from typing import Final

from jobs.contract import CheckpointPlan

REMEMBERED: Final = 5
"""Saves whose cost counts: the first one is often slower than the others."""

MAX_SHARE: Final = 20.0
"""At least so many times the stall lies between two saves: they take a twentieth of the time at most."""

LONGEST_S: Final = 600.0
"""Nobody likes to lose more than ten minutes."""

SHORTEST_S: Final = 10.0


def daly_s(save_s: float, mean_s: float) -> float:
    """Return the optimal seconds of computing between two saves that stall training for ``save_s``.

    ``√(2δM)·[1 + ⅓·√(δ/2M) + ⅑·(δ/2M)] - δ`` for δ < 2M, else M.
    """
    if save_s >= 2 * mean_s:
        return mean_s
    share = save_s / (2 * mean_s)
    return math.sqrt(2 * save_s * mean_s) * (1 + math.sqrt(share) / 3 + share / 9) - save_s


def interval_s(save_s: float, mean_s: float, write_s: float = 0.0) -> float:
    """Return the seconds between two saves: the optimum within bounds.

    ``write_s`` is how long a save goes on in the background: two must not overlap.  Where the bounds
    contradict each other, the cost of saving weighs more than the ten minutes.
    """
    least = max(MAX_SHARE * save_s, write_s, SHORTEST_S)
    return max(least, min(daly_s(save_s, mean_s), LONGEST_S))


class SaveSchedule:
    """The time between saves; measured saves settle it where the plan leaves that to the trainer."""

    def __init__(self, plan: CheckpointPlan) -> None:
        self._told_s, self._mean_s = plan.every_s, plan.mean_between_s
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._writes: deque[float] = deque(maxlen=REMEMBERED)

    def stalled(self, seconds: float) -> None:
        """Record for how long a save has blocked the training."""
        self._stalls.append(seconds)

    def wrote(self, seconds: float) -> None:
        """Record how long it took until the checkpoint was on the disk."""
        self._writes.append(seconds)

    @property
    def stall_s(self) -> float | None:
        """Return for how long a save blocks the training; None before the first."""
        return statistics.median(self._stalls) if self._stalls else None

    @property
    def every_s(self) -> float | None:
        """Return the seconds between two saves now; None: steps alone decide."""
        if self._told_s is None or self._mean_s is None or self.stall_s is None:
            return self._told_s
        return interval_s(self.stall_s, self._mean_s, max(self._writes, default=0.0))
