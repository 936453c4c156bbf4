"""Reach of a file by other users: a directory above it may be closed to all but its owner."""

import sys
from pathlib import Path
from typing import Final

CLOSED_TO_OTHERS: Final = 0o011
"""Neither the group nor others may pass a directory without one of these bits."""


def closed_to_users(path: Path) -> Path | None:
    """Return the directory on the way to a path that its owner alone may pass; None: there is none."""
    for each in (path, *path.parents):
        try:
            mode = each.stat().st_mode
        except OSError:  # it is made later
            continue
        if not mode & CLOSED_TO_OTHERS:
            return each
    return None


def closed_installation() -> Path | None:
    """Return the directory on the way to this process's Python and code that users may not pass; None: none.

    The interpreter of a virtual environment is a link, which leads to the one that was installed.
    """
    python = Path(sys.executable)
    return next(filter(None, map(closed_to_users, (python.resolve(), python, Path(__file__).parent))), None)
