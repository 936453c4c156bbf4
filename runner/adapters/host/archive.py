"""Writes a file or a directory of a job as a tar archive, with the rights of the current process.

Links are kept as links and never followed; what is neither file, directory nor link is left out.  A job may
run meanwhile, so what has just gone is left out, too.  What cannot be read has a member that tells so.
"""

import os
import stat
import tarfile
from typing import IO, Final

KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})
TOP: Final = "."
"""The name of what was asked for; what lies below it has names below this one."""
LEFT_OUT: Final = "RUNNER.left_out"
"""The header of a member, a named pipe, that stands for what cannot be read."""


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
        try:
            if path:
                kind = stat.S_IFMT(os.lstat(path).st_mode)
                if kind not in KINDS:
                    continue
                archive.add(path, arcname=f"{TOP}/{path}", recursive=False)
                archive.inodes.clear()  # type: ignore[attr-defined]  # each link of a file is a file of its own
                if kind != stat.S_IFDIR:
                    continue
            names = sorted(os.listdir(path or TOP), reverse=True)
        except FileNotFoundError:
            continue
        except PermissionError as error:
            told = tarfile.TarInfo(f"{TOP}/{path}")
            told.type, told.pax_headers = tarfile.FIFOTYPE, {LEFT_OUT: str(error.strerror)}
            archive.addfile(told)
            continue
        waiting += [f"{path}/{name}" if path else name for name in names]
