"""Gives up everything that root has, for good: ids, capabilities, and the way to get them back."""

import ctypes
import os
import pwd
import struct
from typing import Final

import structlog

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION: Final = 0x20080522
_SIGKILL: Final = 9
_libc: Final = ctypes.CDLL(None, use_errno=True)

log = structlog.get_logger(__name__)


def give_up_root(user: pwd.struct_passwd, parent: int) -> None:
    """Become an ordinary user without groups and capabilities; this process ends with the one that forked it.

    Raises:
        OSError: the kernel refuses it.
    """
    kept = _empty_bounding_set()
    if kept:
        log.warning("daemon.bounding_set_kept", capabilities=kept, needs="CAP_SETPCAP")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    _empty_capabilities()
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))  # nobody of the same uid looks into it
    _must(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))  # after the change of ids, which resets it
    if os.getppid() != parent:
        os._exit(1)  # the helper has ended before it could take this process with it


def _empty_bounding_set() -> int:
    """Empty the set of capabilities that a program could bring; return how many the kernel has kept."""
    kept = number = 0
    while (present := _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        if present and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            kept += 1
        number += 1
    return kept


def _empty_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets."""
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _must(_libc.capset(header, struct.pack("6I", *[0] * 6)))


def _must(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
