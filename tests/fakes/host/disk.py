"""Number of random trials: enough for every build, and as many more as somebody wants to wait for."""

import os
from typing import Final

TIMES: Final = int(os.environ.get("RUNNER_EXAMPLES", "1"))


def examples(few: int) -> int:
    """Return how many examples a property is tried on; ``RUNNER_EXAMPLES=20``: twenty times as many."""
    return few * TIMES
