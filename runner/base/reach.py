"""Reach of a file by other users: a directory above it may be closed to all but its owner."""

import sys
from pathlib import Path
from typing import Final

GROUP_MAY_PASS: Final = 0o010
OTHERS_MAY_PASS: Final = 0o001


def closed_to_users(path: Path) -> Path | None:
    """Return the directory on the way to a path that its owner or root's group alone may pass; None: none."""
    for each in (path, *path.parents):
        try:
            found = each.stat()
        except OSError:  # it is made later
            continue
        for_group = GROUP_MAY_PASS if found.st_gid else 0  # the group of root has no users
        if not found.st_mode & (OTHERS_MAY_PASS | for_group):
            return each
    return None


def closed_installation() -> Path | None:
    """Return the directory on the way to this process's Python and code that users may not pass; None: none.

    The interpreter of a virtual environment is a link, which leads to the one that was installed.
    """
    python = Path(sys.executable)
    return next(filter(None, map(closed_to_users, (python.resolve(), python, Path(__file__).parent))), None)
