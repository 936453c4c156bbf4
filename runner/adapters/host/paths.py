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
from pathlib import Path
from typing import Final

from runner.base.errors import UsageError
from runner.base.readable import readable_size
from runner.base.textfile import one_line
from runner.core.ports.users import ROOT_HOME, PathKind, is_of_system

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


def check_path(path: Path, kind: PathKind) -> str | None:
    """Return the reason why the current user cannot use a path as ``kind``, or None."""
    try:
        os.close(open_path(path, kind))
    except PathRefusedError as error:
        return str(error)
    return None


def open_path(path: Path, kind: PathKind) -> int:
    """Return a descriptor of a path for reading, which the caller closes; never waits, as a named pipe would.

    Raises:
        PathRefusedError: it is not there, is no ``kind``, or the current user may not use it.
    """
    shown = one_line(str(path))
    try:
        opened = _open_without_magic_links(path)
    except (OSError, ValueError) as error:
        raise PathRefusedError(f"{shown}: {_describe(error)}") from error
    try:
        if (problem := _problem(opened, shown, kind)) is not None:
            raise PathRefusedError(f"{shown}: {problem}")
        return os.open(f"/proc/self/fd/{opened}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise PathRefusedError(f"{shown}: {_describe(error)}") from error
    finally:
        os.close(opened)


def read_opened(descriptor: int, path: Path) -> bytes:
    """Return the content of a small file that was opened, and close it; may raise UsageError."""
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MAX_SECRET_BYTES + 1)
    if len(content) > MAX_SECRET_BYTES:  # it has grown since
        raise UsageError(f"{one_line(str(path))}: is larger than {readable_size(MAX_SECRET_BYTES)}")
    return content


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
    parent, part = os.dup(directory), ""
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | _WITHOUT_LINKS, dir_fd=parent)
            os.close(parent)
            parent = inner
        part = parts[-1]
        opened = os.open(part, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _WITHOUT_LINKS, dir_fd=parent)
    except (OSError, ValueError) as error:
        link = _describe_link(parent, part)
        raise PathRefusedError(f"{shown}: {link or _describe(error)}") from error
    finally:
        os.close(parent)
    if (problem := _kind_problem(os.fstat(opened).st_mode, "either")) is not None:
        os.close(opened)
        raise PathRefusedError(f"{shown}: {problem}")
    return opened


def _describe_link(parent: int, name: str) -> str:
    """Return that an entry of a directory is a link, and to what it leads; empty if it is none."""
    try:
        leads = os.readlink(name, dir_fd=parent)
    except (OSError, ValueError):
        return ""
    return f"{one_line(name)} is a link to {one_line(leads)}, and no link is followed; name what it leads to"


def openat2(parent: int, path: str | Path, flags: int, resolve: int) -> int:
    """Return a descriptor of a path below an open directory; ``resolve`` restricts the way (openat2(2)).

    Raises:
        OSError: the kernel refuses it; ``ENOSYS``: it is older than 5.6.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "embedded null byte")
    how = struct.pack("QQQ", flags, 0, resolve)  # struct open_how
    descriptor = int(_libc.syscall(_OPENAT2, parent, name, how, len(how)))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def _open_without_magic_links(path: Path) -> int:
    """Return an ``O_PATH`` descriptor; kernels before 5.6 follow magic links, too."""
    flags = os.O_PATH | os.O_CLOEXEC
    try:
        return openat2(_AT_FDCWD, path, flags, _RESOLVE_NO_MAGICLINKS)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return os.open(path, flags)
        if error.errno == errno.ELOOP and _leads_through_magic_link(path):
            raise OSError(errno.ELOOP, "leads through a link of /proc that no path stands for") from error
        raise


def _leads_through_magic_link(path: Path) -> bool:
    """Return True if a path that openat2 refused as a loop is one for the ordinary open, too."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _problem(opened: int, shown: str, kind: PathKind) -> str | None:
    """Return the reason why a job may not have an open file as ``kind``; None if it may."""
    found = os.fstat(opened)
    return (
        _system_problem(opened, shown)
        or _kind_problem(found.st_mode, kind)
        or _access_problem(opened, found.st_mode, kind)
        or _size_problem(found.st_size, kind)
    )


def _system_problem(opened: int, shown: str) -> str | None:
    real = Path(f"/proc/self/fd/{opened}").readlink()
    pseudo = PSEUDO_FILE_SYSTEMS.get(file_system_type(opened))
    if pseudo is None and not is_of_system(real):
        return None
    leads = "" if str(real) == shown else f"leads to {one_line(str(real))}, which "
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


def _access_problem(opened: int, mode: int, kind: PathKind) -> str | None:
    same_file = f"/proc/self/fd/{opened}"
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(same_file, wanted, effective_ids=True):
        return "you do not have permission to read it"
    if kind == "writable" and not os.access(same_file, os.W_OK, effective_ids=True):
        return "you do not have permission to write to it; add read_only: true"
    return None


def _size_problem(size: int, kind: PathKind) -> str | None:
    if kind != "secret" or size <= MAX_SECRET_BYTES:
        return None
    return f"is larger than {readable_size(MAX_SECRET_BYTES)}, the limit for a secret; mount it instead"


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
        case OSError(errno=errno.EINVAL):
            return "is not a valid file name"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return "is not a valid file name"
