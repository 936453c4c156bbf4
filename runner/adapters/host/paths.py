"""Checks whether a path of a job file exists and can be used by the current user.

The checks belong to the job's owner: a daemon that runs as root makes them through ``as_user``, because root
can read more than the owner can.
"""

import os
import stat
from pathlib import Path
from typing import Final

from runner.base.textfile import one_line
from runner.core.ports.users import PathKind

SYSTEM: Final = tuple(
    Path(root) for root in ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/root", "/var/lib")
)
"""Directories that are never shown to a job, wherever a link points from."""

MAX_SECRET_BYTES: Final = 1024**2
"""A secret is copied for each job; a larger file is data, which is mounted."""


def check_path(path: Path, kind: PathKind) -> str | None:
    """Return why the current user cannot use a path as ``kind``, or None."""
    shown = one_line(str(path))
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        return f"{shown}: {_describe(error)}"
    return (
        _check_system(shown, real)
        or _check_kind(shown, found.st_mode, kind)
        or _check_access(shown, real, found.st_mode, kind)
        or _check_size(shown, found.st_size, kind)
    )


def check_system_path(path: Path, real: Path) -> str | None:
    """Return why a path that leads to ``real`` cannot be shown to a job; None if it can."""
    return _check_system(one_line(str(path)), real)


def _check_system(shown: str, real: Path) -> str | None:
    if not any(real.is_relative_to(root) or root.is_relative_to(real) for root in SYSTEM):
        return None
    leads = "" if str(real) == shown else f"leads to {one_line(str(real))}, which "
    return f"{shown}: {leads}belongs to the system and is never shown to a job"


def _check_kind(shown: str, mode: int, kind: PathKind) -> str | None:
    is_directory, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
    if kind == "directory" and not is_directory:
        return f"{shown}: is not a directory"
    if kind in {"file", "secret"} and not is_file:
        return f"{shown}: is not a file"
    if not (is_directory or is_file):
        return f"{shown}: is neither a file nor a directory"
    return None


def _check_access(shown: str, real: Path, mode: int, kind: PathKind) -> str | None:
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(real, wanted, effective_ids=True):
        return f"{shown}: you may not read it"
    if kind == "writable" and not os.access(real, os.W_OK, effective_ids=True):
        return f"{shown}: you may not write to it; add read_only: true"
    return None


def _check_size(shown: str, size: int, kind: PathKind) -> str | None:
    if kind != "secret" or size <= MAX_SECRET_BYTES:
        return None
    return f"{shown}: is larger than {MAX_SECRET_BYTES} bytes, the limit for a secret; mount it instead"


def _describe(error: OSError | RuntimeError) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case PermissionError():
            return "you may not look there"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return "is a loop of symbolic links"
