"""Build contexts: which files, and the tar that carries them.

The tar is written here and not by the engine's client, because builders take the owner,
the mode and (some) the time of a file for a change of it.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from images.recipe import Entry

_LEFT_OUT: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


def entries_below(directory: Path, prefix: str) -> tuple[Entry, ...]:
    """Return the regular files below a directory with their bytes; links and caches are left out."""
    return tuple(
        _entry(path, f"{prefix}/{path.relative_to(directory).as_posix()}") for path in _files(directory)
    )


def text_entry(path: str, text: str | bytes) -> Entry:
    """Return a file of the context that exists in memory only."""
    return Entry(path, text.encode() if isinstance(text, str) else text)


def write_tar(entries: Iterable[Entry], out: IO[bytes]) -> None:
    """Write a tar that depends on the files' paths, bytes and executable bits alone.

    GNU format: the engine looks at the first kilobyte to tell a tar from a Dockerfile, and
    takes the extended header that Python writes by default for the latter.
    """
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: entry.path):
            _add(tar, entry)


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        below = path.relative_to(directory).parts
        if path.is_file() and not path.is_symlink() and _LEFT_OUT.isdisjoint(below):
            yield path


def _entry(path: Path, name: str) -> Entry:
    return Entry(name, path.read_bytes(), executable=bool(path.stat().st_mode & 0o100))


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.mode = 0o755 if entry.executable else 0o644
    if isinstance(entry.source, bytes):
        member.size = len(entry.source)
        tar.addfile(member, io.BytesIO(entry.source))
        return
    with entry.source.open("rb") as file:
        member.size = entry.source.stat().st_size
        tar.addfile(member, file)
