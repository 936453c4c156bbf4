"""Build contexts: their files, and the tar that is sent to the builder.

The tar is written here and not by the engine's client, because builders treat a different owner, mode or
(some of them) time as a changed file.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from images.recipe import Entry
from images.settings import PluginCode

_EXCLUDED: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


def entries_below(directory: Path, prefix: str) -> tuple[Entry, ...]:
    """Return the regular files below a directory with their content, without links and caches."""
    return tuple(
        _entry(path, f"{prefix}/{path.relative_to(directory).as_posix()}") for path in _files(directory)
    )


def plugin_entries(plugin: PluginCode) -> tuple[Entry, ...]:
    """Return the package of a plug-in, and as much of its metadata as the trainer needs to find it."""
    top = plugin.package
    name = f"plugins/{top.name}"
    code = entries_below(top, name) if top.is_dir() else (_entry(top, name),)
    return (*code, *(text_entry(f"plugins/{path}", text) for path, text in plugin.metadata.items()))


def text_entry(path: str, text: str | bytes) -> Entry:
    """Return a file of the context that exists only in memory."""
    return Entry(path, text.encode() if isinstance(text, str) else text)


def write_tar(entries: Iterable[Entry], out: IO[bytes]) -> None:
    """Write a tar that depends only on the paths, bytes and executable bits of the files.

    The format is GNU: the engine distinguishes a tar from a Dockerfile by the first kilobyte, and takes the
    extended header that Python writes by default for a Dockerfile.
    """
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: entry.path):
            _add(tar, entry)


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        below = path.relative_to(directory).parts
        if path.is_file() and not path.is_symlink() and _EXCLUDED.isdisjoint(below):
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
