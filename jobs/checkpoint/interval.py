"""The time between saves: fixed by the plan, or computed from save cost and mean time between interruptions.

The host knows the mean time between interruptions, and the trainer measures how long a save blocks it.
The optimal interval follows from both (Daly 2006, a higher-order form of Young's formula of 1974).
The time of a checkpoint does not change the training result.
"""

import math
import statistics
from collections import deque
from typing import Final

from jobs.contract import CheckpointPlan

REMEMBERED: Final = 5
"""Number of recent saves whose cost is considered; the first one is often slower than the others."""

MAX_SHARE: Final = 20.0
"""Least interval as a multiple of the stall: saves take at most a twentieth of the time."""

LONGEST_S: Final = 600.0
"""Upper bound of the interval, which limits the lost work to about ten minutes."""

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

    ``write_s`` is the duration of the write in the background; two writes must not overlap.  If the
    bounds conflict, the lower bound (the cost of saving) takes precedence over ``LONGEST_S``.
    """
    least = max(MAX_SHARE * save_s, write_s, SHORTEST_S)
    return max(least, min(daly_s(save_s, mean_s), LONGEST_S))


class EvaluationGuard:
    """Decision to save before an evaluation: as the plan says, else where one takes longer than a save.

    A kill in an evaluation then loses none of the steps before it.  What the plan leaves open follows from
    the evaluations of this attempt; the first one is guarded while it runs, as soon as it has lasted longer.
    """

    def __init__(self, plan: CheckpointPlan) -> None:
        self._told = plan.before_eval
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)

    def evaluated(self, seconds: float) -> None:
        """Record how long an evaluation took."""
        self._seconds.append(seconds)

    def saves_before(self, stall_s: float | None) -> bool:
        """Return whether to save before the next evaluation; ``stall_s`` is what a save costs, if known."""
        if self._told is not None:
            return self._told
        return bool(self._seconds) and self._outlasts(statistics.median(self._seconds), stall_s)

    def saves_within(self, elapsed_s: float, stall_s: float | None) -> bool:
        """Return whether to save in an evaluation that has lasted so long, if nothing was saved before it."""
        return self._told is None and self._outlasts(elapsed_s, stall_s)

    @staticmethod
    def _outlasts(seconds: float, stall_s: float | None) -> bool:
        return seconds > max(stall_s or 0.0, SHORTEST_S)


class SaveSchedule:
    """The time between saves; it follows from measured saves if the plan leaves it to the trainer."""

    def __init__(self, plan: CheckpointPlan) -> None:
        self._told_s, self._mean_s = plan.every_s, plan.mean_between_s
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._writes: deque[float] = deque(maxlen=REMEMBERED)

    def stalled(self, seconds: float) -> None:
        """Record how long a save blocked the training."""
        self._stalls.append(seconds)

    def wrote(self, seconds: float) -> None:
        """Record how long the write of a checkpoint to the disk took."""
        self._writes.append(seconds)

    @property
    def stall_s(self) -> float | None:
        """Return the median time for which a save blocks the training; None before the first save."""
        return statistics.median(self._stalls) if self._stalls else None

    @property
    def every_s(self) -> float | None:
        """Return the current seconds between two saves, or None if saves depend on steps only."""
        if self._told_s is None or self._mean_s is None or self.stall_s is None:
            return self._told_s
        return interval_s(self.stall_s, self._mean_s, max(self._writes, default=0.0))
