"""The kind of file system of a directory: a daemon's store and locks are safe on a disk of its host alone."""

# pathlib takes 5 ms to import, and every command asks:
# ruff: noqa: PTH116, PTH120, PTH123

import os
from collections.abc import Callable
from typing import Final

REMOTE: Final = frozenset(
    "9p afs beegfs ceph cifs fuse gfs2 gpfs lustre ncpfs nfs nfs4 ocfs2 panfs pvfs2 smb3 smbfs wekafs".split()  # noqa: SIM905  a word list
)
"""Types whose locks or memory maps do not hold between hosts, or that do not let root in."""

LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs"})
"""Types that are said to be FUSE, and are the disk of a container."""

MOUNTS: Final = "/proc/self/mountinfo"


def remote_type(
    path: str, mounts: str = MOUNTS, device_of: Callable[[str], int] = lambda path: os.stat(path).st_dev
) -> str | None:
    """Return the type of the remote file system on which a path is, or will be; None: it is local or unknown.

    The mount table names the type, which ``statfs`` gives as a number that Python cannot ask for.
    """
    device = _device(path, device_of)
    if device is None or os.major(device):  # a block device
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as table:
            rows = [line.partition(" - ")[::2] for line in table if line.split(" ", 3)[2:3] == [number]]
    except OSError:
        return None
    types = [after.split(" ", 1)[0] for _, after in rows]
    remote = (each for each in types if each not in LOCAL_FUSE and each.partition(".")[0] in REMOTE)
    return next(remote, None)


def _device(path: str, device_of: Callable[[str], int]) -> int | None:
    """Return the device of the nearest parent that exists."""
    while True:
        try:
            return device_of(path)
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if parent == path:
                return None
            path = parent
        except OSError:  # NotADirectory, or a parent that is closed: whoever uses the path says so
            return None
