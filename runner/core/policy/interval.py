"""How often to save, from what saving costs and how often this host interrupts jobs.

Daly's optimum (2006, a higher-order form of Young's from 1974) with a mean time between
interruptions that a Gamma prior keeps sober while little has been observed.
"""

import math
from typing import Final

PRIOR_INTERRUPTIONS: Final = 1.0
PRIOR_S: Final = 12 * 3600.0
"""Before anything is known: one interruption in twelve hours."""

MAX_SHARE: Final = 20.0
"""At least so many times the stall lies between two saves: they take a twentieth of the time at most."""

LONGEST_S: Final = 600.0
"""Nobody likes to lose more than ten minutes."""

SHORTEST_S: Final = 10.0


def mean_between_s(observed_s: float, interruptions: int) -> float:
    """Return the estimated seconds between two interruptions of a host.

    ``(prior + observed) / (1 + interruptions)``: the inverse of the posterior mean of the rate.  Count
    whatever ends attempts against their will: preemptions, kills, reboots, lost devices.
    """
    return (PRIOR_S + observed_s) / (PRIOR_INTERRUPTIONS + interruptions)


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
