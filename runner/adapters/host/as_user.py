"""Looks at the file system with the eyes of the person who asked, never with root's.

Linux keeps the identity that file permissions are checked against per thread.  So each look
is a thread of its own, which takes on the person's uid, gid and groups for file access, looks,
and ends: no race between a check and a use can make the daemon read what its caller may not,
because whatever is opened is opened as the caller.  File servers do the same.
"""

import ctypes
import os
import platform
import pwd
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

from jobs.contract import open_regular
from runner.adapters.host import paths
from runner.adapters.host.paths import MAX_SECRET_BYTES
from runner.base.errors import Unavailable, UsageError
from runner.base.textfile import one_line
from runner.base.threads import run_to_future
from runner.core.ports.users import PathKind, User

T = TypeVar("T")

LIMIT_S: Final = 10.0

_libc: Final = ctypes.CDLL(None, use_errno=True)
# The C library's setgroups would change every thread; the kernel's own changes this one.
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81}


def find_user(uid: int, gid: int) -> User:
    """Return who a peer is; the host's records outrank what the connection carried."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return User(uid, gid, (gid,), str(uid))
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return User(uid, entry.pw_gid, groups, entry.pw_name)


def path_problem(who: User, path: Path, kind: PathKind) -> str | None:
    """Return what stands against using ``path`` as somebody; None when nothing does."""
    return run_as_user(who, lambda: paths.check_path(path, kind))


def read_as_user(who: User, path: Path) -> bytes:
    """Return the content of a small file, read as that person.

    Raises:
        UsageError: the person may not read it, or it is too large for a secret.
    """

    def look() -> bytes:
        with open_regular(path.resolve()) as file:
            return file.read(MAX_SECRET_BYTES + 1)

    try:
        content = run_as_user(who, look)
    except OSError as error:
        raise UsageError(f"{one_line(str(path))}: {(error.strerror or str(error)).lower()}") from error
    if len(content) > MAX_SECRET_BYTES:
        raise UsageError(f"{one_line(str(path))}: is larger than {MAX_SECRET_BYTES} bytes")
    return content


def open_as_user(who: User, path: Path) -> int:
    """Return a descriptor of ``path``, opened for reading as that person; the caller closes it.

    Raises:
        UsageError: the person may not read it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        return run_as_user(who, lambda: os.open(path, flags))
    except OSError as error:
        raise UsageError(f"{one_line(str(path))}: {(error.strerror or str(error)).lower()}") from error


def run_as_user(who: User, look: Callable[[], T]) -> T:
    """Return what ``look`` returns or raises when it sees files as ``who`` does.

    Raises:
        Unavailable: the file system does not answer, or the identity cannot be taken on.
    """
    if os.geteuid() != 0 or who.uid == 0:
        return look()
    answer: Future[T] = Future()

    def work() -> T:
        _become(who)
        return look()

    Thread(target=run_to_future, args=(answer, work), name=f"as-user-{who.uid}", daemon=True).start()
    try:
        return answer.result(timeout=LIMIT_S)
    except Late as error:
        raise Unavailable(f"no answer from the file system in {LIMIT_S:g} s") from error


def _become(who: User) -> None:
    """Let this thread, and no other, see files as ``who``; it must end afterwards."""
    number = _SETGROUPS.get(platform.machine())
    if number is None or not _set_groups(number, who.groups):
        raise Unavailable(f"cannot take on the groups of {who.name} on {platform.machine()}")
    _libc.setfsgid(who.gid)
    _libc.setfsuid(who.uid)
    if _libc.setfsgid(-1) != who.gid or _libc.setfsuid(-1) != who.uid:
        raise Unavailable(f"cannot take on the identity of {who.name}")


def _set_groups(number: int, groups: Sequence[int]) -> bool:
    array = (ctypes.c_uint32 * len(groups))(*groups)
    return bool(_libc.syscall(number, len(groups), array) == 0)
