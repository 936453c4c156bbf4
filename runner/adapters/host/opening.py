"""Opens what lies in run directories, by descriptors, for root or for a daemon without rights of its own.

The kernel keeps a path below its directory: no link is followed, and no mount is crossed.  A file must belong
to the user of its directory, so a hard link to a file of another user is refused.  Secrets are not opened:
they belong to a user in a directory of root.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

from runner.adapters.host.paths import openat2

RUN_NAME: Final = r"^([1-9][0-9]{0,17}|\.canary-[0-9a-f]{16})$"
"""The name of a run directory: a job's number, or that of a canary that has none yet."""

_BELOW: Final = 0x01 | 0x02 | 0x04 | 0x08  # RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class RunFileOpener:
    """Opens files and directories below the run directories of one state directory."""

    def __init__(self, jobs: Path) -> None:
        self._root = os.open(jobs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_below(self, run: str, path: str, *, directory: bool) -> int:
        """Return a descriptor of what a path below a run directory leads to; the caller closes it.

        Raises:
            OSError: it is not there, leads elsewhere, or belongs to another user than its directory.
        """
        top = _open_below(self._root, run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            parent, _, name = path.rpartition("/")
            if not parent:
                return self._checked(top, name, directory=directory)
            inner = _open_below(top, parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return self._checked(inner, name, directory=directory)
            finally:
                os.close(inner)
        finally:
            os.close(top)

    @staticmethod
    def _checked(parent: int, name: str, *, directory: bool) -> int:
        if "/" in name or name in {"", ".", ".."}:
            raise OSError(errno.EINVAL, "not a name")
        descriptor = _open_below(parent, name, _FLAGS | (os.O_DIRECTORY if directory else 0))
        found = os.fstat(descriptor)
        problem = None
        if not (stat.S_ISDIR if directory else stat.S_ISREG)(found.st_mode):
            problem = "not a directory" if directory else "not a regular file"
        elif not directory and found.st_uid != os.fstat(parent).st_uid:
            problem = "belongs to another user than its directory"
        if problem is not None:
            os.close(descriptor)
            raise OSError(errno.EINVAL, problem)
        return descriptor


def is_openat2_there() -> bool:
    """Return True if the kernel can keep a path below a directory (Linux 5.6)."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_open_below(root, ".", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def _open_below(parent: int, path: str, flags: int) -> int:
    return openat2(parent, path, flags, _BELOW)
