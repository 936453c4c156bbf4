"""The files of snapshots, kept by the SHA-256 of their content, for each user apart.

Nobody but the daemon reads the store.  Each user has a store of his own, so that a digest gives nobody the
file of another.  ``files/ab/cd...`` holds the content of one file, ``snapshots/ID.json`` a manifest: what
lies where, and the name of a snapshot is the digest of its manifest.  ``listings/`` holds what a directory
was at its last snapshot, so that the next one reads only what has changed.
"""

import ctypes
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

from runner.adapters.host.code_snapshot.frames import CHUNK_BYTES
from runner.base.durable import sync, write_whole
from runner.base.errors import Refused
from runner.core.ports.code import CodeEntry

SINGLE_SYNCS: Final = 64
"""So many new files are written to the disk one by one; of more, the whole file system is."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

YOUNG_S: Final = 3600.0
"""A file or a manifest that is younger may belong to a submission that is not in the job store yet."""


class CodeStore:
    """The store of one user."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = root / "files"
        self._snapshots = root / "snapshots"
        self.listings = root / "listings"
        self._drafts = root / "drafts"
        self.lock = Lock()
        """Held while a manifest is published, and while a sweep removes what no manifest names."""
        self._used: int | None = None

    def make(self) -> None:
        """Make the directories, which only the daemon's user can enter."""
        for directory in (self._files, self._snapshots, self.listings, self._drafts):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- files

    def path(self, digest: str) -> Path:
        """Return the path at which a file is kept, or would be; may raise Refused."""
        if not _DIGEST.fullmatch(digest):
            raise self.damaged(f"{digest[:12]!r} is no digest")
        return self._files / digest[:2] / digest[2:]

    def damaged(self, fact: str) -> Refused:
        """Return the error about a damaged snapshot; the next submission reads all files again."""
        self.forget_listings()
        return Refused(f"the code of this job is damaged: {fact}; submit it again")

    def missing(self, digests: Iterable[str]) -> frozenset[str]:
        """Return the digests of files that are not here."""
        return frozenset(digest for digest in digests if not os.access(self.path(digest), os.F_OK))

    def parts(self, digest: str) -> Iterator[bytes]:
        """Yield the content of a file; may raise Refused."""
        try:
            with self.path(digest).open("rb") as file:
                while part := file.read(CHUNK_BYTES):
                    yield part
        except FileNotFoundError as error:
            raise self.damaged(f"its file {digest[:12]} is gone") from error

    def put(self, parts: Iterable[bytes]) -> tuple[str, Path | None]:
        """Keep the content of a file; return its digest, and its path if it is new.

        A file of another size was torn in a power cut, and is replaced.
        """
        digest = hashlib.sha256()
        with self._draft() as (descriptor, draft):
            for part in parts:
                digest.update(part)
                write_whole(descriptor, part)
            name = digest.hexdigest()
            path, size = self.path(name), os.fstat(descriptor).st_size
            there = _size_at(path)
            if there == size:
                return name, None
            os.fchmod(descriptor, 0o400)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.rename(path)
            if self._used is not None:
                self._used += size - (there or 0)
        return name, path

    def put_small(self, content: bytes) -> tuple[str, Path | None]:
        """Keep a small file; nothing is written if it is here already."""
        name = hashlib.sha256(content).hexdigest()
        return (name, None) if _size_at(self.path(name)) == len(content) else self.put([content])

    def discard(self, paths: Iterable[Path]) -> None:
        """Remove files that were put here for a snapshot that does not come about."""
        with self.lock:
            for path in paths:
                with suppress(FileNotFoundError):
                    size = path.stat().st_size
                    path.unlink()
                    self._used = None if self._used is None else self._used - size

    @contextmanager
    def _draft(self) -> Iterator[tuple[int, Path]]:
        descriptor, name = tempfile.mkstemp(dir=self._drafts)
        try:
            yield descriptor, Path(name)
        finally:
            os.close(descriptor)
            with suppress(FileNotFoundError):
                os.unlink(name)

    # --- manifests

    def publish(self, manifest: bytes, new: list[Path]) -> str:
        """Keep a manifest whose files are all here, durably; return the name of the snapshot."""
        name = hashlib.sha256(manifest).hexdigest()
        path = self._snapshots / f"{name}.json"
        if touched(path):
            return name
        _sync_all(new, self._root)
        with self._draft() as (descriptor, draft):
            write_whole(descriptor, manifest)
            os.fsync(descriptor)
            draft.rename(path)
        sync(self._snapshots)
        return name

    def has(self, snapshot: str) -> bool:
        """Return True if there is such a snapshot now."""
        return (self._snapshots / f"{snapshot}.json").exists()

    def keep(self, snapshot: str) -> bool:
        """Return True if there is such a snapshot, which then is not swept within the next hour."""
        return touched(self._snapshots / f"{snapshot}.json")

    def manifest(self, snapshot: str) -> Mapping[str, CodeEntry] | None:
        """Return the entries of a snapshot by path, None if it is not here."""
        try:
            content = (self._snapshots / f"{snapshot}.json").read_bytes()
        except FileNotFoundError:
            return None
        return parse_manifest(content)

    # --- room

    @property
    def used_bytes(self) -> int:
        """The size of all files, counted once and then kept up, and of what is told about them."""
        if self._used is None:
            self._used = sum(found.st_size for _, found in self._all_files())
        return self._used + sum(map(_size_of, (self._snapshots, self.listings)))

    def forget_listings(self) -> None:
        """Remove what is known of the last looks at directories: the next ones read everything again."""
        for path in self.listings.glob("*.json"):
            path.unlink(missing_ok=True)

    def sweep(self, needed: Callable[[str], bool], now_s: float | None = None) -> int:
        """Remove the snapshots that are not needed, and the files of no other; return the bytes freed."""
        latest = (time.time() if now_s is None else now_s) - YOUNG_S
        freed = 0
        with self.lock:
            kept: set[str] = set()
            for path in tuple(self._snapshots.glob("*.json")):
                if needed(path.stem) or path.stat().st_mtime > latest:
                    kept.update(entry.digest for entry in parse_manifest(path.read_bytes()).values())
                else:
                    path.unlink()
            for path, found in tuple(self._all_files()):
                if path.parent.name + path.name not in kept and found.st_mtime <= latest:
                    path.unlink()
                    freed += found.st_size
            for path in tuple(self._drafts.iterdir()):  # of a daemon that was killed
                if path.stat().st_mtime <= latest:
                    path.unlink()
            if self._used is not None:
                self._used -= freed
        return freed

    def _all_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for directory in self._files.iterdir() if self._files.exists() else ():
            for path in directory.iterdir():
                yield path, path.stat()


def touched(path: Path) -> bool:
    """Return True if a file is there, and mark it as just used."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def make_manifest(entries: Mapping[str, CodeEntry]) -> bytes:
    """Return the manifest of a snapshot: the same entries make the same bytes."""
    rows = [[path, *_row(entry)] for path, entry in sorted(entries.items())]
    return json.dumps({"version": 1, "entries": rows}, separators=(",", ":")).encode()


def _row(entry: CodeEntry) -> list[Any]:
    match entry.kind:
        case "link":
            return ["link", entry.target]
        case "directory":
            return ["directory"]
        case "file":
            return ["program" if entry.executable else "file", entry.digest, entry.size]


def parse_manifest(content: bytes) -> dict[str, CodeEntry]:
    """Return the entries of a manifest by path, in order."""
    entries = {}
    for path, kind, *rest in json.loads(content)["entries"]:
        if kind == "link":
            entries[path] = CodeEntry("link", target=rest[0])
        elif kind == "directory":
            entries[path] = CodeEntry("directory")
        else:
            entries[path] = CodeEntry("file", digest=rest[0], size=rest[1], executable=kind == "program")
    return entries


def _sync_all(paths: list[Path], root: Path) -> None:
    """Write new files to the disk, with the directories that name them."""
    if len(paths) > SINGLE_SYNCS:
        descriptor = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(descriptor)
        return
    sync(*paths, *{path.parent for path in paths})
    if paths:
        sync(root / "files")


def _size_at(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _size_of(directory: Path) -> int:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    return 0
