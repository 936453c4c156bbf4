"""Patience: for how long a test waits for what must happen, on a machine that may be slow and busy.

It is spent by a test that fails, and by no other one, so it is generous.  No other limit decides a test.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

GENEROUS: Final = 5.0
"""Times what is usual: a machine that is quiet when it is measured may be busy a minute later."""

SLOWEST: Final = 10.0
COMPUTES_S: Final = 0.05
STARTS_S: Final = 0.03
"""What the two measurements take on two quiet cores of a rented server."""

MEASURED: Final = "TEST_SLOWNESS"


def patience(seconds: float = 60.0) -> int:
    """Return the limit in whole seconds of a wait for what takes so many on a quiet machine."""
    return math.ceil(GENEROUS * slowness() * seconds)


def slowness() -> float:
    """Return by which factor this machine is slower than a quiet one, as measured once."""
    if MEASURED not in os.environ:
        os.environ[MEASURED] = f"{_measured():.2f}"
    return float(os.environ[MEASURED])


def _measured() -> float:
    shared_by = 1 + os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(1.0, shared_by, _seconds(_compute) / COMPUTES_S, _seconds(_start) / STARTS_S), SLOWEST)


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    for _ in range(3):
        work()
    return (time.perf_counter() - began_s) / 3


def _compute() -> int:
    return sum(range(2_000_000))


def _start() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
