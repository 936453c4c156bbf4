"""The person behind a uid: an account of this host, or the owner of the subordinate ids that it lies in.

``unshare --map-auto`` and rootless containers let one person act as 65,536 other uids (subuid(5)), which have
no account.  What is limited for each person counts them all as one.
"""

import grp
import os
import pwd
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

SUBUID: Final = Path("/etc/subuid")


@dataclass(frozen=True, slots=True)
class _Range:
    owner: int
    first: int
    count: int


class SubordinateIds:
    """The ranges of subordinate uids in a file, which is read again when it has changed."""

    def __init__(self, path: Path = SUBUID) -> None:
        self._path = str(path)
        self._lock = Lock()
        self._version: tuple[int, int] | None = None
        self._ranges: tuple[_Range, ...] = ()

    def person(self, uid: int) -> int:
        """Return the uid of the person that a uid belongs to: its own, or that of the owner of its range."""
        for each in self._present():
            if each.first <= uid < each.first + each.count:
                return each.owner
        return uid

    def _present(self) -> tuple[_Range, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        version = (found.st_mtime_ns, found.st_ino)
        with self._lock:
            if version != self._version:
                self._ranges, self._version = self._read(), version
            return self._ranges

    def _read(self) -> tuple[_Range, ...]:
        with suppress(OSError):
            lines = Path(self._path).read_text(encoding="utf-8", errors="replace").splitlines()
            return tuple(parsed for line in lines if (parsed := _parse(line)) is not None)
        return ()


def _parse(line: str) -> _Range | None:
    """Return the range of one line, ``owner:first:count``; None if it is a comment or names nobody."""
    fields = line.strip().split(":")
    if len(fields) != 3 or not all(field.isascii() and field.isdecimal() for field in fields[1:]):
        return None
    owner = _uid(fields[0])
    return None if owner is None else _Range(owner, int(fields[1]), int(fields[2]))


def _uid(name: str) -> int | None:
    """Return the uid of a name or of a number; None if there is no such account."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return int(name) if name.isascii() and name.isdecimal() else None


def has_account(uid: int) -> bool:
    """Return True if the user database of this host knows a uid."""
    try:
        pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return False
    return True


def has_group(gid: int) -> bool:
    """Return True if the group database of this host knows a gid."""
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True
