"""Writes a file or a directory of a job as a tar archive, with the rights of the current process.

Links are kept as links and never followed; what is neither file, directory nor link is left out.
"""

import os
import stat
import tarfile
from typing import IO, Final

KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})
TOP: Final = "."
"""The name of what was asked for; what lies below it has names below this one."""


def write_archive(out: IO[bytes], descriptor: int) -> None:
    """Write an open file or directory as a tar archive."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, dereference=False) as archive:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.fchdir(descriptor)
            archive.add(TOP, arcname=TOP, recursive=False)
            _add_below(archive)
        else:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                archive.addfile(archive.gettarinfo(arcname=TOP, fileobj=file), file)


def _add_below(archive: tarfile.TarFile) -> None:
    """Add what lies below the current directory, however deep."""
    waiting = [""]
    while waiting:
        path = waiting.pop()
        if path:
            archive.add(path, arcname=f"{TOP}/{path}", recursive=False)
            archive.inodes.clear()  # type: ignore[attr-defined]  # each link of a file is a file of its own
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                continue
        with os.scandir(path or TOP) as found:
            names = sorted(
                (
                    entry.name
                    for entry in found
                    if stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) in KINDS
                ),
                reverse=True,
            )
        waiting += [f"{path}/{name}" if path else name for name in names]
