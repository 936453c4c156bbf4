"""How often this host interrupts jobs, which a Gamma prior keeps sober while little has been observed.

The trainer settles from it how often to save (``jobs.checkpoint.interval``): only it knows what a save costs.
"""

from typing import Final

PRIOR_INTERRUPTIONS: Final = 1.0
PRIOR_S: Final = 12 * 3600.0
"""Before anything is known: one interruption in twelve hours."""


def mean_between_s(observed_s: float, interruptions: int) -> float:
    """Return the estimated seconds between two interruptions of a host.

    ``(prior + observed) / (1 + interruptions)``: the inverse of the posterior mean of the rate.  Count
    whatever ends attempts against their will: preemptions, kills, reboots, lost devices.
    """
    return (PRIOR_S + observed_s) / (PRIOR_INTERRUPTIONS + interruptions)
