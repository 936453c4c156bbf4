"""Takes snapshots of code directories, and gives them to attempts.

A directory is read by a process that is its submitter's in every respect (``walk``); this side keeps what it
sends.  A second snapshot of a directory costs a look at its files, because the listing of the last one is
kept: only what has changed since is read.
"""

import errno
import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, BinaryIO, Final, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, PlainValidator, TypeAdapter

from runner.adapters.host.code_snapshot import update, walk
from runner.adapters.host.code_snapshot.store import CodeStore, make_manifest
from runner.adapters.host.paths import PathRefusedError
from runner.adapters.host.users import CodeStream, HostUsers
from runner.base.durable import publish, write_whole
from runner.base.errors import Refused, RunnerError, Unavailable, disk_errors
from runner.base.readable import readable_size
from runner.base.textfile import one_line
from runner.core.ports.code import CodeEntry, CodeRefused, CodeSnapshot, GitState, LeftOut, WorkingDirectory
from runner.core.ports.users import Owner, User

T = TypeVar("T")

COPY_BYTES: Final = 16 * 1024**2

FEW_FRAMES: Final = 1000
"""Frames beside those of files, such as signs of life."""

PART_BYTES: Final = 4096
"""The least that a read of a file brings before its end."""


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """Limits of the code of one job, and of the snapshots of one user together."""

    max_bytes: int | None = 200 * 1024**2
    max_files: int = 50_000
    bytes_per_user: int | None = None


def _text(value: object) -> str:
    """Return a text; a name may hold bytes that are no UTF-8."""
    if not isinstance(value, str):
        raise ValueError("is no text")
    return value


_Text = Annotated[str, PlainValidator(_text)]
_Key: TypeAlias = tuple[NonNegativeInt, int, int, int, int]
_Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
_File: TypeAlias = tuple[_Text, _Key, _Digest]
_Directory: TypeAlias = tuple[
    _Text, list[int] | None, list[_File], list[tuple[_Text, _Text]], list[_Text], bool, list[Any]
]
_Kind: TypeAlias = Literal["file", "directory", "link", "special", "pointer"]


class _Known(BaseModel):
    """Results of a look beside content.  A process of the user says them, so nothing is believed."""

    git: dict[Literal["commit", "branch", "remote", "dirty"], _Text | bool | None] | None
    left_out: list[tuple[_Text, _Kind, int, int, _Text, bool]]


class _Listing(_Known):
    version: int
    taken_ns: int
    directories: list[_Directory]
    above: Any
    index: Any
    stamp: Any


_KNOWN: Final = TypeAdapter(_Known)
_LISTING: Final = TypeAdapter(_Listing)
_PATH: Final = TypeAdapter[str](_Text)
_PROBLEMS: Final = TypeAdapter[list[str]](Annotated[list[_Text], Field(max_length=walk.MOST_PROBLEMS)])


def _parse(kind: TypeAdapter[T], content: bytes) -> T:
    """Return the content of a frame; may raise Refused."""
    try:
        return kind.validate_python(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise Refused("workload.code: the process that reads it says what cannot be; try again") from error


class SnapshotUse(Protocol):
    """Tells which snapshots are needed."""

    def __call__(self, *, finished: bool) -> frozenset[str]:
        """Return the snapshots of unfinished jobs; with ``finished`` of those that can be restarted, too."""


class HostCodeSnapshots:
    """Satisfies ``runner.core.ports.code.CodeSnapshots``; one for a daemon."""

    def __init__(
        self, root: Path, users: HostUsers, limits: CodeLimits, skipped: tuple[Path, ...] = ()
    ) -> None:
        self._root, self._users, self._limits = root, users, limits
        self.in_use: SnapshotUse | None = None  # set once the jobs are known; None: all are
        self._skipped = skipped
        self._stores: dict[int, CodeStore] = {}
        self._making = Lock()

    # --- taking

    def take(self, who: User, directory: Path) -> CodeSnapshot:
        try:
            with disk_errors(self._root):
                store = self._store(who.uid)
                found = self._look(store, who, directory, use_last=True)
                return found or self._look(store, who, directory, use_last=False) or _lost(directory)
        except PathRefusedError as error:
            raise CodeRefused([str(error)]) from error

    def _look(self, store: CodeStore, who: User, directory: Path, *, use_last: bool) -> CodeSnapshot | None:
        """Return the snapshot of a directory; None if files of the last one are not here any more."""
        place = store.listings / f"{hashlib.sha256(os.fsencode(directory)).hexdigest()}.json"
        last = _read_listing(place) if use_last else None
        if last is not None and not store.has(last["snapshot"]["id"]):
            last = None
        with suppress(FileNotFoundError):
            if last is None:
                place.unlink()
        look = _Look(store, last, self._limits)
        try:
            with closing(self._stream(who, directory, place if last else None)) as stream:
                look.receive(stream.frames())
            if look.listing is None:
                is_kept = last is not None and store.keep(last["snapshot"]["id"])
                return look.snapshot(last["snapshot"]) if last is not None and is_kept else None
            self._make_room(store)
            return look.publish(place)
        except (RunnerError, OSError, PathRefusedError):
            store.discard(look.new)
            raise

    def _make_room(self, store: CodeStore) -> None:
        """Keep a user within his quota, if need be without the code of jobs that have finished."""
        limit = self._limits.bytes_per_user
        if limit is None or store.used_bytes <= limit:
            return
        store.forget_listings()
        if self.in_use is not None:
            store.sweep(self.in_use(finished=False).__contains__)
        if store.used_bytes > limit:
            used, most = readable_size(store.used_bytes), readable_size(limit)
            fact = f"that of your jobs takes {used}, and {most} may be"
            step = "cancel jobs that you do not need, or list files in .runnerignore"
            raise Refused(f"workload.code: {fact} (code_bytes_per_user); {step}")

    def _stream(self, who: User, directory: Path, place: Path | None) -> CodeStream:
        skip = tuple((found.st_dev, found.st_ino) for found in map(Path.stat, self._skipped))
        known = os.open(place or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            limits = walk.WalkLimits(self._limits.max_bytes, self._limits.max_files)
            return self._users.stream_code_as_user(who, directory, known, limits, skip)
        finally:
            os.close(known)

    def _store(self, uid: int) -> CodeStore:
        with self._making:
            store = self._stores.get(uid)
            if store is None:
                store = self._stores[uid] = CodeStore(self._root / str(uid))
                store.make()
            return store

    # --- reading

    def entries(self, uid: int, snapshot: str) -> Mapping[str, CodeEntry] | None:
        return self._store(uid).manifest(snapshot)

    def missing(self, uid: int, digests: Iterable[str]) -> frozenset[str]:
        return self._store(uid).missing(digests)

    def read(self, uid: int, digest: str, limit: int) -> bytes:
        with suppress(FileNotFoundError), self._store(uid).path(digest).open("rb") as file:
            return file.read(limit)
        return b""

    def fill(self, uid: int, wanted: WorkingDirectory, target: Path, owner: Owner) -> None:
        store = self._store(uid)
        entries = store.manifest(wanted.snapshot)
        if entries is None:
            raise _gone(wanted.snapshot)
        give = (owner.uid, owner.gid) if os.geteuid() == 0 else None
        for path, entry in entries.items():
            _check_place(path, entries)
            try:
                _make(store, entry, f"{target}/{path}", give, writable=not wanted.read_only)
            except FileNotFoundError as error:
                fact = f"{one_line(path)} of snapshot {wanted.snapshot[:12]} is gone"
                raise store.damaged(fact) from error

    def update(
        self, uid: int, before: str, wanted: WorkingDirectory, place: Path, owner: Owner
    ) -> tuple[str, ...]:
        store = self._store(uid)
        entries = store.manifest(wanted.snapshot)
        if entries is None:
            raise _gone(wanted.snapshot)
        todo = tuple(update.changes(store.manifest(before) or {}, entries))
        return self._users.update_as_owner(
            owner, place, lambda out: _send_changes(store, todo, out), read_only=wanted.read_only
        )

    def pack(self, uid: int, snapshot: str, out: BinaryIO) -> None:
        store = self._store(uid)
        entries = store.manifest(snapshot)
        if entries is None:
            raise _gone(snapshot)
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted(entries):
                _check_place(path, entries)
                _pack(store, entries[path], path, tar)

    # --- room

    def sweep(self) -> int:
        if self.in_use is None:
            return 0
        needed, freed = self.in_use(finished=True), 0
        for place in tuple(self._root.iterdir()) if self._root.exists() else ():
            if place.name.isdecimal():
                freed += self._store(int(place.name)).sweep(needed.__contains__)
        return freed


def _gone(snapshot: str) -> Refused:
    return Refused(f"the code of this job (snapshot {snapshot[:12]}) is gone; submit it again")


def _send_changes(store: CodeStore, todo: Iterable[update.Change], out: BinaryIO) -> None:
    for change in todo:
        new = change[2]
        is_file = new is not None and new.kind == "file"
        update.send_change(out, change, store.parts(new.digest) if is_file and new is not None else ())


def _lost(directory: Path) -> CodeSnapshot:
    fact = "its snapshot was removed while it was taken"
    raise Unavailable(f"{one_line(str(directory))}: {fact}; try again")


def _read_listing(place: Path) -> dict[str, Any] | None:
    """Return the listing of the last look at a directory, without the files; None if there was none."""
    try:
        with place.open("rb") as file:
            found: dict[str, Any] = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return found


class _ChangedMeanwhileError(Exception):
    """A file has changed while it was read; what came in of it does not count."""


@dataclass(slots=True)
class _Look:
    """Result of one look at a directory."""

    store: CodeStore
    last: Mapping[str, Any] | None
    limits: CodeLimits
    digests: dict[str, str] = field(default_factory=dict)
    """Of the files that were read, by path."""
    new: list[Path] = field(default_factory=list)
    listing: _Listing | None = None
    """None: nothing has changed since the last look."""
    known: _Known | None = None

    def receive(self, stream: Iterator[tuple[bytes, bytes]]) -> None:
        """Keep what comes in; may raise CodeRefused, Refused."""
        frames = _bounded(stream, self.limits)
        for kind, content in frames:
            if kind == walk.CONTENT:
                with suppress(_ChangedMeanwhileError):
                    self._receive_file(content, frames)
            elif kind == walk.END_OF_FILE:
                self._keep(content, self.store.put_small(b""))
            elif kind == walk.PROBLEMS:
                problems: list[str] = _parse(_PROBLEMS, content)
                raise CodeRefused(problems)
            elif kind == walk.SAME:
                self.known = _parse(_KNOWN, content)
            elif kind == walk.LISTING:
                self.known = self.listing = _parse(_LISTING, content)

    def _receive_file(self, first: bytes, frames: Iterator[tuple[bytes, bytes]]) -> None:
        kind, content = next(frames)
        if kind == walk.END_OF_FILE:
            self._keep(content, self.store.put_small(first))
        elif kind == walk.CONTENT:
            rest = _Rest(frames)
            kept = self.store.put(chain((first, content), rest))
            self._keep(rest.path, kept)
        else:
            raise _ChangedMeanwhileError

    def _keep(self, path: bytes, kept: tuple[str, Path | None]) -> None:
        digest, made = kept
        if made is not None:
            self.new.append(made)
        self.digests[_parse(_PATH, path)] = digest

    def publish(self, place: Path) -> CodeSnapshot | None:
        """Publish the manifest, and keep the listing for the next look; None if a file is gone meanwhile."""
        assert self.listing is not None  # noqa: S101  (the caller has looked)
        entries = dict(_entries(self.listing, self.digests))
        size = sum(entry.size for entry in entries.values())
        with self.store.lock:
            if self.store.missing(self._doubtful(entries)):
                return None
            name = self.store.publish(make_manifest(entries), self.new)
        files = sum(entry.kind != "directory" for entry in entries.values())
        known = {"id": name, "files": files, "bytes": size}
        _write_listing(place, known, self.listing, self.digests)
        return self.snapshot(known)

    def snapshot(self, known: Mapping[str, Any]) -> CodeSnapshot:
        """Return a snapshot of which only content is known with what this look has brought."""
        assert self.known is not None  # noqa: S101  (each look ends with it)
        git: Mapping[Any, Any] | None = self.known.git
        state = None if git is None else GitState(**git)
        left_out = tuple(LeftOut(*row) for row in self.known.left_out)
        return CodeSnapshot(known["id"], known["files"], known["bytes"], state, left_out)

    def _doubtful(self, entries: Mapping[str, CodeEntry]) -> Iterable[str]:
        """Return the files that a sweep may have removed: all that are of no snapshot that is kept."""
        if self.last is not None and self.store.has(self.last["snapshot"]["id"]):
            return self.digests.values()
        return (entry.digest for entry in entries.values() if entry.kind == "file")


class _Rest:
    """The further parts of a file; afterwards ``path`` is its path as it was sent."""

    def __init__(self, frames: Iterator[tuple[bytes, bytes]]) -> None:
        self._frames = frames
        self.path = b""

    def __iter__(self) -> Iterator[bytes]:
        for kind, content in self._frames:
            if kind == walk.CONTENT:
                yield content
            elif kind == walk.END_OF_FILE:
                self.path = content
                return
            else:
                raise _ChangedMeanwhileError


def _bounded(frames: Iterator[tuple[bytes, bytes]], limits: CodeLimits) -> Iterator[tuple[bytes, bytes]]:
    """Yield frames, and refuse more than those of a directory within the limits: each file is read thrice."""
    limit = limits.bytes_per_user if limits.max_bytes is None else limits.max_bytes
    size = 0
    for count, (kind, content) in enumerate(frames):
        size += len(content) if kind == walk.CONTENT else 0
        most = FEW_FRAMES + 2 * walk.ATTEMPTS * limits.max_files + size // PART_BYTES
        if count > most or (limit is not None and size > walk.ATTEMPTS * limit):
            raise CodeRefused([".: more is read than may be; submit it when nothing writes into it"])
        yield kind, content


def _entries(listing: _Listing, digests: Mapping[str, str]) -> Iterator[tuple[str, CodeEntry]]:
    for path, _, files, links, _, is_skipped, _ in listing.directories:
        if is_skipped:
            continue
        if path:
            yield path, CodeEntry("directory")
        prefix = f"{path}/" if path else ""
        for name, key, digest in files:
            inner = prefix + name
            executable = bool(key[4] & 0o100)
            yield inner, CodeEntry("file", "", digests.get(inner) or digest, key[0], executable)
        for name, target in links:
            yield prefix + name, CodeEntry("link", target=target)


def _write_listing(
    place: Path, snapshot: Mapping[str, object], listing: _Listing, digests: Mapping[str, str]
) -> None:
    """Keep a listing with the digests that prove something the next time."""
    latest = listing.taken_ns - walk.MARGIN_NS
    for path, _, files, *_ in listing.directories:
        prefix = f"{path}/" if path else ""
        for number, (name, key, digest) in enumerate(files):
            fresh = max(key[1], key[2]) >= latest
            files[number] = (name, key, "" if fresh else digests.get(prefix + name) or digest)
    head = json.dumps({"snapshot": snapshot}).encode()
    publish(place, head + b"\n" + json.dumps(dict(listing), separators=(",", ":")).encode())


def _check_place(path: str, entries: Mapping[str, CodeEntry]) -> None:
    """Check that an entry lies in a directory of the snapshot; may raise Refused."""
    parts = path.split("/")
    parent = entries.get("/".join(parts[:-1]))
    is_inside = len(parts) == 1 or (parent is not None and parent.kind == "directory")
    if not is_inside or not all(part not in {"", ".", ".."} for part in parts):
        raise Refused(f"the code of this job is damaged: {one_line(path)} is no place in it; submit it again")


def _pack(store: CodeStore, entry: CodeEntry, path: str, tar: tarfile.TarFile) -> None:
    """Add one entry of a snapshot to a tar."""
    member = tarfile.TarInfo(path)
    member.mode = 0o755 if entry.executable or entry.kind == "directory" else 0o644
    if entry.kind == "directory":
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif entry.kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(member)
    else:
        member.size = entry.size
        try:
            with store.path(entry.digest).open("rb") as file:
                tar.addfile(member, file)
        except FileNotFoundError as error:
            raise store.damaged(f"{one_line(path)} is gone") from error


def _make(
    store: CodeStore, entry: CodeEntry, place: str, give: tuple[int, int] | None, *, writable: bool
) -> None:
    if entry.kind == "directory":
        os.mkdir(place, 0o700)
        os.chmod(place, 0o755)  # noqa: S103  whatever the umask says; what it lies in is private
    elif entry.kind == "link":
        os.symlink(entry.target, place)
    else:
        _copy(store, place, entry, mode=0o644 if writable else 0o444)
    if give is not None:
        os.chown(place, *give, follow_symlinks=False)


def _copy(store: CodeStore, place: str, entry: CodeEntry, mode: int) -> None:
    """Copy a file; a file system that can shares the blocks until one of the two is written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(store.path(entry.digest), "rb", buffering=0) as there:
        descriptor = os.open(place, flags, 0o600)
        try:
            done = _copy_content(there.fileno(), descriptor)
            os.fchmod(descriptor, mode | (0o111 if entry.executable else 0))
        finally:
            os.close(descriptor)
    if done != entry.size:
        raise store.damaged(f"a file of {entry.size} bytes has {done}")


def _copy_content(source: int, target: int) -> int:
    done = 0
    try:
        while count := os.copy_file_range(source, target, COPY_BYTES):
            done += count
    except OSError as error:
        if done or error.errno not in {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise
        while part := os.read(source, COPY_BYTES):
            write_whole(target, part)
            done += len(part)
    return done
