"""Becoming a user for good, and the proof of it.

To ``setresuid`` and its relatives -1, and 2**32-1, mean "no change": a process that is told to become such a
user stays root, and nothing fails.  So ids are checked before, and what the kernel says is checked after.
"""

import ctypes
import os
import resource
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

MAX_ID: Final = 2**32 - 2
"""The largest uid or gid."""

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION: Final = 0x20080522
_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def check_ids(uid: int, gid: int, groups: Sequence[int] = ()) -> None:
    """Check that numbers are the ids of somebody.

    Raises:
        ValueError: one is none, or means to the kernel that nothing changes.
    """
    for name, number in (("uid", uid), ("gid", gid), *(("group", group) for group in groups)):
        if not 0 <= number <= MAX_ID:
            raise ValueError(f"{name} {number} is not the id of a user or group")


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Take on all ids of a user and give up every capability, for good; root alone keeps what root has.

    Raises:
        ValueError: the ids are none.
        OSError: the kernel refuses it, or has not done it.
    """
    check_ids(uid, gid, groups)
    libc = ctypes.CDLL(None, use_errno=True)
    if uid != os.geteuid():
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _require(os.getresgid() == (gid,) * 3, "gid")
        _require(set(os.getgroups()) == set(groups), "groups")
    if uid:
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        libc.capset(struct.pack("Ii", _CAPABILITY_VERSION, 0), struct.pack("6I", *[0] * 6))
        kept = [name for name, held in _capabilities().items() if held]
        _require(not kept, f"{', '.join(kept)}, which stays")
    _require(os.getresuid() == (uid,) * 3, "uid")
    _require(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs")
    _require(
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, "dumpable"
    )  # others of the uid do not look into it


def _capabilities() -> dict[str, int]:
    """Return the sets of capabilities of this process but the bounding one, which means nothing now."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    found = {name: int(value, 16) for name, _, value in lines if name in _SETS}
    _require(len(found) == len(_SETS), "capabilities, which are not told")
    return found


def _require(done: bool, what: str) -> None:  # noqa: FBT001  (a condition)
    if not done:
        raise PermissionError(f"this process cannot become a user: {what}")


def limit(kind: int, most: int) -> None:
    """Set a limit of this process, and of what it starts; a lower one stays.

    Raises:
        ValueError: to the kernel the number means that there is no limit.
    """
    if most < 0:
        raise ValueError(f"{most} is no limit")
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
