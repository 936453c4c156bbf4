"""Directories on the way to a file that the user of a job may not enter."""

import os
from contextlib import suppress
from pathlib import Path

from runner.core.ports.users import Owner


def closed_directory(path: Path, owner: Owner) -> Path | None:
    """Return the first directory on the way to a path, and to what it links to, that an owner may not enter.

    Modes decide, as for a process with this uid and gid and no other groups.  A directory with an access
    control list is taken to be open, and so is one that cannot be looked at: the launch itself will tell.
    """
    if owner.uid == 0:
        return None
    ways = [path.absolute(), path.resolve()]
    seen: set[Path] = set()
    for directory in (each for way in ways for each in reversed(way.parents)):
        if directory in seen:
            continue
        seen.add(directory)
        with suppress(OSError):
            if not _may_enter(directory, owner):
                return directory
    return None


def _may_enter(directory: Path, owner: Owner) -> bool:
    found = directory.stat()
    bit = 0o100 if found.st_uid == owner.uid else 0o010 if found.st_gid == owner.gid else 0o001
    return bool(found.st_mode & bit) or "system.posix_acl_access" in os.listxattr(directory)
