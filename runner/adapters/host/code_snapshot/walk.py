"""Reads a code directory with the rights of the current process, and tells what it holds.

It runs in a process of its own, which is the submitter's in every respect, and which changes into the
directory.  What has not changed since the last time is not read again: as in git's index, a file counts as
unchanged if its inode, size, mode and both times are as they were, and if the times are older than the last
look.  A directory that has not changed is not listed again.

The answer is a stream of frames: the content of each file that was read, and then the listing, or
``SAME`` if nothing has changed, or the problems.  A listing is a JSON document that the daemon keeps and
gives back the next time.
"""

import heapq
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final

from runner.adapters.host.code_snapshot.frames import CHUNK_BYTES, MAX_FRAME_BYTES, write_frame
from runner.adapters.host.code_snapshot.git import GitSilentError, ask_state, find_repository, stamp
from runner.adapters.host.code_snapshot.ignore import (
    ENVIRONMENT_MARK,
    IGNORE_FILES,
    NEVER,
    IgnoreRules,
    Repository,
    SentRepository,
)
from runner.adapters.host.code_snapshot.left_out import LeftOutEntries, find_left_out
from runner.adapters.host.code_snapshot.sent import find_sent
from runner.adapters.host.paths import PSEUDO_FILE_SYSTEMS, file_system_type
from runner.base.readable import readable_size
from runner.base.textfile import one_line

CONTENT: Final = b"C"
"""A part of the content of a file."""
END_OF_FILE: Final = b"E"
"""The content of a file is complete; the JSON text is its path."""
AGAIN: Final = b"A"
"""The file has changed while it was read; what was sent of it does not count."""
LISTING: Final = b"L"
SAME: Final = b"S"
WORKING: Final = b"W"
"""Nothing but a sign of life."""
PROBLEMS: Final = b"P"

LAST: Final = frozenset({LISTING, SAME, PROBLEMS})
"""The frames after which none follows."""

LISTING_VERSION: Final = 2

MARGIN_NS: Final = 1_000_000_000
"""A file that was changed so shortly before a look may have been changed after it with the same times."""

SIGN_OF_LIFE_S: Final = 2.0

ATTEMPTS: Final = 3
"""Reads of a file that changes meanwhile."""

PATH_BYTES: Final = 512
"""Of each path, on average, if there are as many as there may be."""

MOST_PROBLEMS: Final = 20
LARGEST: Final = 5
"""Files that are named when there is too much."""

POINTER: Final = b"version https://git-lfs.github.com/"
POINTER_BYTES: Final = (100, 300)

READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

NEXT_STEP: Final = "list it in .runnerignore"


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """Limits of the contents of a code directory."""

    max_bytes: int | None
    max_files: int

    @property
    def frame_bytes(self) -> int:
        """The most bytes of a frame: a listing has the paths, the keys and the digests of all files."""
        return min(MAX_FRAME_BYTES, CHUNK_BYTES + 2 * PATH_BYTES * self.max_files)


@dataclass(slots=True)
class _Walk:
    """One look at a directory."""

    limits: WalkLimits
    known: dict[str, Any]
    """The directories of the last listing by path."""
    skipped: frozenset[tuple[int, int]]
    """Device and inode of directories that are left out: those of the daemon."""
    taken_ns: int
    directories: list[list[Any]] = field(default_factory=list)
    unread: list[list[Any]] = field(default_factory=list)
    """The files whose content is not known, in ``directories`` as well."""
    problems: list[str] = field(default_factory=list)
    changed: bool = False
    files: int = 0
    name_bytes: int = 0
    """Of all paths: a listing and a manifest have each of them."""
    bytes: int = 0
    device: int = 0
    same_index: bool = False
    """True if git has in its index what it had at the last look; of a repository within nobody knows."""


def send_tree(
    out: BinaryIO,
    known: dict[str, Any],
    limits: WalkLimits,
    skipped: frozenset[tuple[int, int]],
) -> None:
    """Write what the current directory holds, as frames; ``known`` is the last listing, or empty."""
    known = known if known.get("version") == LISTING_VERSION else {}
    before = {each[0]: each for each in known.get("directories", ())}
    walk = _Walk(limits, before, skipped, time.time_ns())
    walk.device = os.lstat(".").st_dev
    sent = find_sent()
    place = None if sent is not None else find_repository()
    repository = SentRepository() if sent is not None else Repository(place)
    above = [[path, _key_of(path)] for path, _ in repository.above()]
    reusable = above == known.get("above")
    index = None if repository.index is None else _key_of(repository.index)
    walk.same_index = index == known.get("index") and not (index is not None and _is_fresh(walk, index))
    _walk_all(out, walk, IgnoreRules("", repository), reusable=reusable)
    problems = walk.problems or list(_excess(walk))
    if problems:
        write_frame(out, PROBLEMS, json.dumps(problems[:MOST_PROBLEMS]).encode())
        return
    left_out = find_left_out(walk.directories)
    stamped = [] if place is None else stamp(place)
    same = reusable and not walk.changed and not walk.unread and len(before) == len(walk.directories)
    if same and stamped is not None and stamped == known["stamp"]:
        write_frame(out, SAME, json.dumps({"git": known["git"], "left_out": left_out}).encode())
        return
    _show_life(out)
    git = sent.git if sent is not None else None if place is None else _ask_git()
    if stamped and any(key is not None and _is_fresh(walk, key) for key in stamped):
        stamped = None
    for path, file in walk.unread:
        if (problem := _send_file(out, walk, path, file)) is not None:
            write_frame(out, PROBLEMS, json.dumps([problem]).encode())
            return
    listing = {
        "version": LISTING_VERSION,
        "taken_ns": walk.taken_ns,
        "directories": walk.directories,
        "above": above,
        "index": index,
        "left_out": left_out,
        "git": git,
        "stamp": stamped,
    }
    write_frame(out, LISTING, json.dumps(listing).encode())


# A directory in a listing is [path, key, files, links, directories, skipped, left out], a file [name, key,
# digest] and a link [name, target].  A key is what must be equal for content to be known; null if it proves
# nothing.  What is left out is described in ``left_out``.


def _show_life(out: BinaryIO) -> None:
    write_frame(out, WORKING, b"")
    out.flush()


def _ask_git() -> dict[str, Any]:
    try:
        return ask_state()
    except GitSilentError:
        return {}


def _key_of(path: str) -> list[int] | None:
    try:
        return _file_key(os.lstat(path))
    except OSError:
        return None


def _walk_all(out: BinaryIO, walk: _Walk, rules: IgnoreRules, *, reusable: bool) -> None:
    pending = [("", rules, reusable, walk.same_index)]
    signed = time.monotonic()
    while pending and len(walk.problems) < MOST_PROBLEMS and not _has_too_many(walk):
        path, rules, reusable, same_index = pending.pop()
        found = _known_directory(walk, path) if reusable else None
        if found is not None and found[6] and not same_index:  # git may have some of it by now
            found = None
        if found is None:
            reusable = reusable and _has_same_rules(walk, path)
            found = _scan(walk, path, rules)
            walk.changed = walk.changed or found != walk.known.get(path)
        walk.directories.append(found)
        prefix = f"{path}/" if path else ""
        same_index = same_index and (not path or NEVER not in map(itemgetter(0), found[6]))
        names = (prefix + name for name in reversed(found[4]))
        pending += [(name, rules.below(name), reusable, same_index) for name in names]
        if time.monotonic() - signed > SIGN_OF_LIFE_S:
            signed = time.monotonic()
            _show_life(out)


def _known_directory(walk: _Walk, path: str) -> list[Any] | None:
    """Return a directory that has the same entries as in the last listing; None if that is not certain."""
    before = walk.known.get(path)
    if before is None or before[1] is None:
        return None
    try:
        found = os.lstat(path or ".")
        return _known_entries(walk, path, before) if before[1] == _directory_key(found) else None
    except OSError:
        return None


def _known_entries(walk: _Walk, path: str, before: list[Any]) -> list[Any] | None:
    """Return a directory of the same names, with its files as they are now; None if its rules changed."""
    prefix = f"{path}/" if path else ""
    lstat = os.lstat
    changed: dict[str, os.stat_result] = {}
    size = 0
    for name, key, digest in before[2]:
        now = lstat(prefix + name)
        size += now.st_size
        if not digest or key != [now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_mode]:
            changed[name] = now
    if any(name in IGNORE_FILES for name in changed):
        return None
    walk.files += len(before[2]) + len(before[3]) + len(before[4])
    names = (*(each[0] for each in before[2]), *(each[0] for each in before[3]), *before[4])
    walk.name_bytes += sum(map(len, names)) + len(prefix) * len(names)
    walk.bytes += size
    if not changed:
        return before
    files = [
        _new_file(walk, prefix + file[0], file[0], changed[file[0]]) if file[0] in changed else file
        for file in before[2]
    ]
    return [path, before[1], files, *before[3:]]


def _has_same_rules(walk: _Walk, path: str) -> bool:
    """Return True if the files of patterns in a directory are those of the last listing."""
    before = walk.known.get(path)
    files = {each[0]: each[1] for each in before[2]} if before else {}
    prefix = f"{path}/" if path else ""
    had = before is not None and any(each[0] == NEVER for each in before[6])
    if path and had != os.path.lexists(prefix + NEVER):
        return False
    for name in IGNORE_FILES:
        try:
            now = _file_key(os.lstat(prefix + name))
        except OSError:
            now = None
        if files.get(name) != now or (now is not None and _is_fresh(walk, now)):
            return False
    return before is not None


def _new_file(walk: _Walk, path: str, name: str, now: os.stat_result) -> list[Any]:
    """Return a file whose content is not known; the daemon adds its digest when it is read."""
    file = [name, _file_key(now), ""]
    walk.unread.append([path, file])
    return file


def _scan(walk: _Walk, path: str, rules: IgnoreRules) -> list[Any]:
    """Return a directory as it is now."""
    try:
        own = os.lstat(path or ".")
        if (own.st_dev, own.st_ino) in walk.skipped:
            return [path, None, [], [], [], True, []]
        with os.scandir(path or ".") as found:
            entries = sorted(found, key=lambda entry: entry.name)
        key = _directory_key(own)
        known_key = None if _is_fresh(walk, key) else key
        if path and any(entry.name == ENVIRONMENT_MARK for entry in entries):
            return [path, known_key, [], [], [], True, []]
        _check_device(walk, path, own)
        return [path, known_key, *_scan_entries(walk, path, rules, entries)]
    except OSError as error:
        walk.problems.append(f"{one_line(path or '.')}: {_describe(error)}; {NEXT_STEP}")
        return [path, None, [], [], [], True, []]


def _describe(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "you do not have permission to read it"
    return (error.strerror or "cannot be read").lower()


def _check_device(walk: _Walk, path: str, own: os.stat_result) -> None:
    """Note a problem if a directory shows the kernel or its processes and no storage."""
    if own.st_dev == walk.device:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = PSEUDO_FILE_SYSTEMS.get(file_system_type(descriptor))
    finally:
        os.close(descriptor)
    if kind is not None:
        walk.problems.append(f"{one_line(path)}: is {kind}, which is no storage; {NEXT_STEP}")


def _scan_entries(walk: _Walk, path: str, rules: IgnoreRules, entries: list["os.DirEntry[str]"]) -> list[Any]:
    """Return the rows of a listing for the entries of a directory."""
    prefix = f"{path}/" if path else ""
    before = walk.known.get(path)
    known = {file[0]: file for file in before[2]} if before else {}
    files: list[list[Any]] = []
    links: list[list[str]] = []
    directories: list[str] = []
    left = LeftOutEntries()
    for entry in entries:
        inner = prefix + entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        if (whose := rules.ignored_by(inner, is_directory=is_directory)) is not None:
            if whose == "git" or entry.name == NEVER:
                left.add_ignored(entry, inner)
            continue
        walk.files += 1
        walk.name_bytes += len(inner)
        if "\n" in entry.name:
            walk.problems.append(
                f"{one_line(inner)}: has a line break in its name; rename it, or {NEXT_STEP}"
            )
        elif is_directory:
            directories.append(entry.name)
        elif entry.is_symlink():
            target = os.readlink(inner)
            relative = _relative(inner, target)
            if relative is None and not os.path.exists(inner):
                left.add(entry.name, "special", f"a link to {target}, which is not there")
            elif relative is None:
                left.add(entry.name, "link", target)
            else:
                links.append([entry.name, relative])
        elif entry.is_file(follow_symlinks=False):
            files.append(_scanned_file(walk, inner, entry, known.get(entry.name)))
            if _is_pointer(inner, files[-1][1][0]):
                left.add_pointer(entry.name)
        else:
            left.add(entry.name, "special", _kind(entry.stat(follow_symlinks=False).st_mode))
    return [files, links, directories, False, left.rows()]


def _scanned_file(walk: _Walk, path: str, entry: "os.DirEntry[str]", before: list[Any] | None) -> list[Any]:
    now = entry.stat(follow_symlinks=False)
    walk.bytes += now.st_size
    if before is not None and before[2] and before[1] == _file_key(now):
        return before
    return _new_file(walk, path, entry.name, now)


def _is_pointer(path: str, size: int) -> bool:
    """Return True for the short text that Git LFS puts in the place of a file until it is fetched."""
    if not POINTER_BYTES[0] <= size <= POINTER_BYTES[1]:
        return False
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError:
        return False  # reading its content says so
    try:
        return os.read(descriptor, len(POINTER)) == POINTER
    finally:
        os.close(descriptor)


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _relative(path: str, target: str) -> str | None:
    """Return the place to which a link leads from its own directory; None if it leads out of the code."""
    parent = PurePosixPath(path).parent
    relative = target
    if target.startswith("/"):
        relative = os.path.relpath(target, os.path.join(os.getcwd(), parent))
    return None if os.path.normpath(parent / relative).split("/", 1)[0] == ".." else relative


def _file_key(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode]


def _directory_key(found: os.stat_result) -> list[int]:
    return [found.st_dev, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode]


def _is_fresh(walk: _Walk, key: list[int]) -> bool:
    """Return True if something was changed so recently that the same times prove nothing later."""
    return max(key[1], key[2]) >= walk.taken_ns - MARGIN_NS


def _has_too_many(walk: _Walk) -> bool:
    limits = walk.limits
    return walk.files > limits.max_files or walk.name_bytes > limits.max_files * PATH_BYTES


def _excess(walk: _Walk) -> Iterator[str]:
    """Yield each excess: the number of files, their paths, or their size with the largest ones."""
    limits = walk.limits
    if walk.files <= limits.max_files and _has_too_many(walk):
        most = readable_size(limits.max_files * PATH_BYTES)
        step = "shorten them, or list what the program does not need in .runnerignore"
        yield f".: the paths of its files and directories are longer than {most} together; {step}"
    if walk.files > limits.max_files:
        step = "list what the program does not need in .runnerignore"
        yield f".: has more than {limits.max_files} files and directories; {step}"
    elif limits.max_bytes is not None and walk.bytes > limits.max_bytes:
        sized = (
            (file[1][0], f"{path}/{file[0]}" if path else file[0])
            for path, _, files, *_ in walk.directories
            for file in files
        )
        named = [f"{one_line(path)} ({readable_size(size)})" for size, path in heapq.nlargest(LARGEST, sized)]
        total = f"has {readable_size(walk.bytes)}, and {readable_size(limits.max_bytes)} may be"
        way_out = "list data in .runnerignore and mount them (mounts)"
        yield f".: {total}; the largest: {', '.join(named)}; {way_out}"


def _send_file(out: BinaryIO, walk: _Walk, path: str, file: list[Any]) -> str | None:
    """Write the content of a file, and return why that is not possible, or None."""
    for _ in range(ATTEMPTS):
        try:
            walk.bytes -= file[1][0]
            if _sent(out, path, file):
                walk.bytes += file[1][0]
                write_frame(out, END_OF_FILE, json.dumps(path).encode())
                return next(_excess(walk), None)
        except (BrokenPipeError, ConnectionResetError):  # nobody waits for the answer any more
            raise
        except OSError as error:
            return f"{one_line(path)}: {_describe(error)}; {NEXT_STEP}"
        walk.bytes += file[1][0]
        write_frame(out, AGAIN, b"")
    return f"{one_line(path)}: changes while it is read; submit when it is complete, or {NEXT_STEP}"


def _sent(out: BinaryIO, path: str, file: list[Any]) -> bool:
    """Write the content of a file once; return whether it stayed as it was meanwhile."""
    descriptor = os.open(path, READ_FLAGS)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            return False
        done = 0
        while part := os.read(descriptor, CHUNK_BYTES):
            done += len(part)
            if done > before.st_size:
                return False
            write_frame(out, CONTENT, part)
        file[1] = _file_key(before)
        return done == before.st_size and _file_key(os.fstat(descriptor)) == file[1]
    finally:
        os.close(descriptor)
