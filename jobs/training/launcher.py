"""Environment that the launcher of several processes (``jobs.inside.gang``) gives each of them.

The names are those of torchrun.  This module does not load torch.
"""

import os


def process_count() -> int:
    """Return how many processes were started for this attempt."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_rank() -> int:
    """Return the number of this process; 0 leads."""
    return int(os.environ.get("RANK", "0")) if process_count() > 1 else 0


def local_rank() -> int:
    """Return the number of the device of this process."""
    return int(os.environ.get("LOCAL_RANK", "0")) if process_count() > 1 else 0
