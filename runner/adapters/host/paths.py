"""Opens a path of a job file with the rights of the current process, and says why a job may not have it.

The file is opened first and checked afterwards: the check is about the open file itself, so nobody can
swap the path in between.  ``/proc/PID/cwd`` and the like are links that lead to another process's files
without a path; ``openat2(2)`` refuses to follow them.  Files of procfs, sysfs and other file systems that
are no storage are refused by the type of their file system, wherever they are mounted.
"""

import ctypes
import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.base.textfile import one_line
from runner.core.ports.users import PathKind

ROOT_HOME: Final = Path("/root")

SYSTEM: Final = (
    *(Path(root) for root in ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/var/lib")),
    ROOT_HOME,
)
"""Directories that are never shown to a job, wherever a link points from."""

MAX_SECRET_BYTES: Final = 1024**2
"""A secret is copied for each job; a larger file is data, which is mounted."""

PSEUDO_FILE_SYSTEMS: Final = {
    0x9FA0: "procfs",
    0x62656572: "sysfs",
    0x6E736673: "nsfs",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xCAFE4A11: "bpf",
    0x62656570: "configfs",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0x1CD1: "devpts",
    0x19800202: "mqueue",
    0x50495045: "pipefs",
    0x534F434B: "sockfs",
}
"""``f_type`` of statfs(2), from linux/magic.h: file systems that show the kernel or its processes."""

_WITHOUT_LINKS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2: Final = 437  # the same number on every architecture since Linux 5.6
_AT_FDCWD: Final = -100
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_libc: Final = ctypes.CDLL(None, use_errno=True)


class PathRefusedError(Exception):
    """The current user cannot use a path; the text is one line and begins with the path."""


@dataclass(frozen=True, slots=True)
class OpenPath:
    """An open file or directory; ``descriptor`` is ``O_PATH`` and belongs to the caller."""

    descriptor: int
    shown: str  # the path as it was given, on one line
    found: os.stat_result

    def reopen(self) -> int:
        """Return a descriptor of the same file for reading; never waits, as a named pipe would.

        Raises:
            PathRefusedError: the current user may not read it.
        """
        try:
            return os.open(
                f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
        except OSError as error:
            raise PathRefusedError(f"{self.shown}: {_describe(error)}") from error

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def check_path(path: Path, kind: PathKind) -> str | None:
    """Return the reason why the current user cannot use a path as ``kind``, or None."""
    try:
        open_path(path, kind).close()
    except PathRefusedError as error:
        return str(error)
    return None


def open_path(path: Path, kind: PathKind) -> OpenPath:
    """Return a path, opened; whoever gets it closes it.

    Raises:
        PathRefusedError: it is not there, is no ``kind``, or the current user may not use it.
    """
    shown = one_line(str(path))
    try:
        descriptor = _open_without_magic_links(path)
    except (OSError, ValueError) as error:
        raise PathRefusedError(f"{shown}: {_describe(error)}") from error
    opened = OpenPath(descriptor, shown, os.fstat(descriptor))
    problem = _problem(opened, kind)
    if problem is not None:
        opened.close()
        raise PathRefusedError(f"{shown}: {problem}")
    return opened


def open_beneath(directory: int, name: str) -> int:
    """Return a descriptor for reading of what lies below an open directory; no link is followed on the way.

    The caller closes it.  Neither ``..`` nor a link leads out of the directory, whoever changes it meanwhile.

    Raises:
        PathRefusedError: it is not there, neither a file nor a directory, or not readable by this process.
    """
    shown = one_line(name)
    parts = name.split("/")
    if not all(part not in {"", ".", ".."} for part in parts):
        raise PathRefusedError(f"{shown}: is not a name below a directory")
    parent = os.dup(directory)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | _WITHOUT_LINKS, dir_fd=parent)
            os.close(parent)
            parent = inner
        opened = os.open(parts[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _WITHOUT_LINKS, dir_fd=parent)
    except (OSError, ValueError) as error:
        raise PathRefusedError(f"{shown}: {_describe(error)}") from error
    finally:
        os.close(parent)
    if (problem := _kind_problem(os.fstat(opened).st_mode, "either")) is not None:
        os.close(opened)
        raise PathRefusedError(f"{shown}: {problem}")
    return opened


def _open_without_magic_links(path: Path) -> int:
    """Return an ``O_PATH`` descriptor; kernels before 5.6 follow magic links, too."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS)  # struct open_how
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    descriptor = int(_libc.syscall(_OPENAT2, _AT_FDCWD, name, how, len(how)))
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    if number == errno.ELOOP and _leads_through_magic_link(path):
        raise OSError(number, "leads through a link of /proc that no path stands for")
    raise OSError(number, os.strerror(number))


def _leads_through_magic_link(path: Path) -> bool:
    """Return True if a path that openat2 refused as a loop is one for the ordinary open, too."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _problem(opened: OpenPath, kind: PathKind) -> str | None:
    """Return the reason why a job may not have an open file as ``kind``; None if it may."""
    real = Path(f"/proc/self/fd/{opened.descriptor}").readlink()
    return (
        _system_problem(opened, real)
        or _kind_problem(opened.found.st_mode, kind)
        or _access_problem(opened, kind)
        or _size_problem(opened.found.st_size, kind)
    )


def _system_problem(opened: OpenPath, real: Path) -> str | None:
    pseudo = PSEUDO_FILE_SYSTEMS.get(file_system_type(opened.descriptor))
    if pseudo is None and not any(real.is_relative_to(root) or root.is_relative_to(real) for root in SYSTEM):
        return None
    leads = "" if str(real) == opened.shown else f"leads to {one_line(str(real))}, which "
    step = "; put it below /srv or /home" if real.is_relative_to(ROOT_HOME) else ""
    return f"{leads}belongs to the system and is never shown to a job{step}"


def file_system_type(descriptor: int) -> int:
    """Return ``f_type`` of the file system of an open file, the first word of ``struct statfs``."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, buffer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF


def _kind_problem(mode: int, kind: PathKind) -> str | None:
    is_directory, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
    if kind == "directory" and not is_directory:
        return "is not a directory"
    if kind in {"file", "secret"} and not is_file:
        return "is not a file"
    if not (is_directory or is_file):
        return "is neither a file nor a directory"
    return None


def _access_problem(opened: OpenPath, kind: PathKind) -> str | None:
    same_file = f"/proc/self/fd/{opened.descriptor}"
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(opened.found.st_mode) else 0)
    if not os.access(same_file, wanted, effective_ids=True):
        return "you do not have permission to read it"
    if kind == "writable" and not os.access(same_file, os.W_OK, effective_ids=True):
        return "you do not have permission to write to it; add read_only: true"
    return None


def _size_problem(size: int, kind: PathKind) -> str | None:
    if kind != "secret" or size <= MAX_SECRET_BYTES:
        return None
    return f"is larger than {MAX_SECRET_BYTES} bytes, the limit for a secret; mount it instead"


def _describe(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case PermissionError():
            return "you do not have permission to access it"
        case OSError(errno=errno.ELOOP, strerror=str(words)) if "link of /proc" in words:
            return words
        case OSError(errno=errno.ELOOP):
            return "is a loop of symbolic links"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return "is not a valid file name"
