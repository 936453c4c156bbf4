"""Brings a working directory from one snapshot to another, with the rights of the user who owns it.

A job whose code is changed (``runner apply``) goes on in the working directory of its lineage.  What its
program has left alone becomes as in the new snapshot; what the program has changed stays as it is.  The
directory is the program's, so this runs in a process that is its owner's in every respect, and that has
changed into the directory.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final

from runner.adapters.host.code_snapshot.frames import CHUNK_BYTES, write_frame
from runner.base.durable import write_whole
from runner.core.ports.code import CodeEntry

CHANGE: Final = b"X"
"""A change: JSON with ``path``, and ``old`` and ``new`` as an entry or null.  The content follows."""
CONTENT: Final = b"C"

DRAFT: Final = ".runner-draft"

Change = tuple[str, CodeEntry | None, CodeEntry | None]


def changes(before: Mapping[str, CodeEntry], after: Mapping[str, CodeEntry]) -> Iterator[Change]:
    """Yield path, old and new entry of what differs: first what there will be, then what goes."""
    for path, new in sorted(after.items()):
        if before.get(path) != new:
            yield path, before.get(path), new
    for path, old in sorted(before.items(), reverse=True):
        if path not in after:
            yield path, old, None


def send_change(out: BinaryIO, change: Change, content: Iterable[bytes]) -> None:
    """Write one change with the content of its new file."""
    path, old, new = change
    write_frame(out, CHANGE, json.dumps({"path": path, "old": _json(old), "new": _json(new)}).encode())
    for part in content:
        write_frame(out, CONTENT, part)


def _json(entry: CodeEntry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {name: getattr(entry, name) for name in ("kind", "target", "digest", "size", "executable")}


def apply_changes(frames: Iterator[tuple[bytes, bytes]], *, read_only: bool) -> list[str]:
    """Make the changes in the current directory; return the paths that the program has changed and keeps."""
    kept: list[str] = []
    pending: dict[str, Any] | None = None
    with suppress(FileNotFoundError):
        os.unlink(DRAFT)
    for kind, content in frames:
        if kind == CHANGE:
            kept += _finish(pending, read_only=read_only)
            pending = json.loads(content)
            _begin_draft()
        else:
            _append(content)
    kept += _finish(pending, read_only=read_only)
    with suppress(FileNotFoundError):
        os.unlink(DRAFT)
    return kept


def _begin_draft() -> None:
    os.close(os.open(DRAFT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _append(content: bytes) -> None:
    descriptor = os.open(DRAFT, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        write_whole(descriptor, content)
    finally:
        os.close(descriptor)


def _finish(change: dict[str, Any] | None, *, read_only: bool) -> list[str]:
    """Make one change; return its path if the program keeps what it has there."""
    if change is None:
        return []
    path = change["path"]
    old, new = (None if change[name] is None else CodeEntry(**change[name]) for name in ("old", "new"))
    if not _is_in_place(path):
        return [path]
    there = _there(path)
    if there is not None and new is not None and _is(path, there, new):
        _set_mode(path, new, read_only=read_only)
        return []
    if there is not None and (old is None or not _is(path, there, old)):
        return [path]
    try:
        _replace(path, there, new, read_only=read_only)
    except OSError:  # a directory that is not empty, or one that the program has closed
        return [path]
    return []


def _is_in_place(path: str) -> bool:
    """Return True if all parents of a path are directories and no links."""
    parts = path.split("/")[:-1]
    parents = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return all((found := _there(parent)) is not None and stat.S_ISDIR(found.st_mode) for parent in parents)


def _there(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is(path: str, there: os.stat_result, entry: CodeEntry) -> bool:
    """Return True if what is at a path is what an entry says; permissions do not count."""
    match entry.kind:
        case "directory":
            return stat.S_ISDIR(there.st_mode)
        case "link":
            return stat.S_ISLNK(there.st_mode) and os.readlink(path) == entry.target
        case "file":
            is_file = stat.S_ISREG(there.st_mode) and there.st_size == entry.size
            return is_file and _digest(path) == entry.digest


def _digest(path: str) -> str:
    found = hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        while part := file.read(CHUNK_BYTES):
            found.update(part)
    return found.hexdigest()


def _replace(path: str, there: os.stat_result | None, new: CodeEntry | None, *, read_only: bool) -> None:
    is_directory = there is not None and stat.S_ISDIR(there.st_mode)
    if is_directory and (new is None or new.kind != "directory"):
        os.rmdir(path)
    elif there is not None and new is None:
        os.unlink(path)
    if new is None:
        return
    if new.kind == "file":
        _set_mode(DRAFT, new, read_only=read_only)
        os.rename(DRAFT, path)
        return
    if there is not None and not is_directory:
        os.unlink(path)
    if new.kind == "directory":
        os.mkdir(path, 0o755)
    else:
        os.symlink(new.target, path)


def _set_mode(path: str, entry: CodeEntry, *, read_only: bool) -> None:
    if entry.kind == "file":
        mode = 0o444 if read_only else 0o644
        os.chmod(path, mode | (0o111 if entry.executable else 0))
