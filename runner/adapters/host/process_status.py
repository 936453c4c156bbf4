"""Status of one process from the kernel: its handlers of signals, and its children."""

import re
from pathlib import Path


def has_handler(pid: int, signal: int) -> bool:
    """Return True if a process has a handler of a signal; False if it is gone."""
    try:
        found = re.search(r"^SigCgt:\t([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (signal - 1) & 1)


def is_childless(pid: int) -> bool:
    """Return True if a process is there and has no children; False where the kernel does not say."""
    try:
        return not Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return False
