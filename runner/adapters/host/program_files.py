"""The files of a job that a pattern of its job file names, found without following a link.

The directories belong to the job and are hostile: each part of a path is opened below the one before, no
function calls itself, and a look is limited in entries and in depth.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

MAX_ENTRIES: Final = 20_000
"""Entries of directories that one look reads at most, of those that a pattern may name."""

MAX_NAMES: Final = 200_000
"""Names of all entries that one look reads at most."""

MAX_FILES: Final = 2_000
"""Files of one checkpoint that are looked at."""

MAX_CHOICES: Final = 64
"""Patterns that the braces of one stand for."""

_BESIDE: Final = re.compile(
    r"(?i).*\.(?:py|pyc|ipynb|sh|ya?ml|toml|cfg|ini|md|out|err|csv|tsv|jsonl|html|pdf|png|jpe?g|svg|gif|webp"
    r"|mp4|wav|pid|wandb)|.*\btfevents\b.*|.*\.log(?:\.[0-9]+)?|(?:.*[._-])?log\.txt|readme|stdout|stderr"
    r"|(?:.*[._-])?(?:args|config|hparams|history|metrics|results|summary)\.json"
)
"""Names of what programs write beside their checkpoints, such as DeepSpeed's ``zero_to_fp32.py``."""

_SETTINGS: Final = re.compile(r"(?i).*\.(?:py|ya?ml|toml|cfg|ini)|.*(?:args|config|hparams)\.json")
"""Those of them without which a checkpoint may not be loaded."""

MAX_POINTER_BYTES: Final = 4096

MAX_DEPTH: Final = 32
"""Directories below each other in one checkpoint."""

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TEMPORARY: Final = re.compile(
    r"(?i)(?:.*[._-])?tmp(?:[._-].*|[0-9]*)|tmp\w{8}|.*~"
    r"|.*\.(?:tmp\w*|temp|new|part[0-9]*|partial|incomplete|in_?progress|writing|download|sw[op]|lock)"
    r"|temp|temp[._-][a-z].*|.*[._-]temp\.[a-z]\w*"
)
"""Names of what is renamed once it is complete, such as ``tmp-checkpoint-500`` and ``last.ckpt.tmp``."""

_POINTER: Final = re.compile(
    r"(?i)(?:last|latest)(?:[_-](?:checkpoint\w*|universal))?(?:\.txt)?|checkpoint(?:\.txt)?"
)
"""Names of texts that name a checkpoint; a checkpoint that has such a name is no short text."""

_EVERY: Final = re.compile(r"(?s).*")
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_LINK: Final = "{} is a link, which is not followed; name what it leads to"

Fingerprint: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of the last write in nanoseconds of each file."""


@dataclass(frozen=True, slots=True)
class MatchedPath:
    """A file or a directory that a pattern names."""

    path: PurePosixPath
    files: Fingerprint
    is_directory: bool
    problem: str | None = None  # why it cannot be looked at as a whole

    @property
    def written_ns(self) -> int:
        """The time of the last write to any of the files."""
        return max((each[3] for each in self.files), default=0)

    @property
    def bytes(self) -> int:
        return sum(each[2] for each in self.files)

    @property
    def digest(self) -> str:
        """A digest of the files as they are; renaming the checkpoint does not change it."""
        return digest_files(self.files, is_directory=self.is_directory)

    def below(self, name: str) -> PurePosixPath:
        """Return the path of one of the files."""
        return self.path / name if self.is_directory else self.path


def digest_files(files: Fingerprint, *, is_directory: bool) -> str:
    """Return a digest of the files of a checkpoint, without its own name."""
    seen = [(name if is_directory else "", *rest) for name, *rest in files]
    return sha256(repr(seen).encode(errors="surrogateescape")).hexdigest()[:24]


class TooMany(Exception):
    """There are more entries than one look reads."""


def expand_braces(pattern: str) -> tuple[str, ...]:
    """Return the patterns that ``{a,b}`` stands for, in their order; may raise TooMany."""
    found: list[str] = []
    waiting = [pattern]
    while waiting and len(found) + len(waiting) <= MAX_CHOICES:
        each = waiting.pop()
        if (match := _BRACES.search(each)) is None:
            found.append(each)
            continue
        choices = reversed(match[1].split(","))
        waiting += [each[: match.start()] + choice + each[match.end() :] for choice in choices]
    if waiting:
        raise TooMany
    return tuple(dict.fromkeys(found))


def find_matches(base: int, pattern: str) -> list[MatchedPath]:
    """Return the paths that a pattern names below an open directory; may raise TooMany."""
    search = _Search(base)
    found: dict[PurePosixPath, MatchedPath] = {}
    for each in expand_braces(pattern):
        for path, mode in search.named(PurePosixPath(each).parts):
            if path not in found and (match := search.match(path, mode)) is not None:
                found[path] = match
    return list(found.values())


def is_temporary(path: PurePosixPath, pattern: str) -> bool:
    """Return True for a name that is given up when the file is complete, unless the pattern asks for such."""
    return bool(_TEMPORARY.fullmatch(path.name)) and not _TEMPORARY.fullmatch(PurePosixPath(pattern).name)


def is_beside(path: PurePosixPath, files: Fingerprint, pattern: str) -> bool:
    """Return True for logs, scripts and pictures, unless the pattern ends in such a suffix itself.

    A directory that has nothing else, such as that of TensorBoard, is no checkpoint either.
    """
    if _BESIDE.fullmatch(PurePosixPath(pattern).name):
        return False
    names = {PurePosixPath(name).name for name, *_ in files} or {path.name}
    return all(map(_BESIDE.fullmatch, names))


def without_results(files: Fingerprint) -> Fingerprint:
    """Return the files of a checkpoint without logs and results, which not each has, if there are others."""
    names = [(each, PurePosixPath(each[0]).name) for each in files]
    others = [each for each, name in names if not _BESIDE.fullmatch(name) or _SETTINGS.fullmatch(name)]
    return tuple(others) or files


def is_pointer(base: int, match: MatchedPath) -> bool:
    """Return True for a short text that names the newest checkpoint, as DeepSpeed and TensorFlow write it."""
    if match.is_directory or not _POINTER.fullmatch(match.path.name) or match.bytes > MAX_POINTER_BYTES:
        return False
    with suppress(OSError), open_below(base, match.path) as fd:
        return (
            os.pread(fd, MAX_POINTER_BYTES, 0)
            .decode(errors="replace")
            .strip()
            .replace("\n", "")
            .isprintable()
        )
    return False


def read_pointers(directory: int) -> Iterator[tuple[str, str, bool]]:
    """Yield the name and the text of what names the newest checkpoint, and whether it is a link."""
    for name in os.listdir(directory):
        with suppress(OSError, UnicodeDecodeError):
            if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                if name.lower().startswith(("last", "latest")):
                    yield name, os.readlink(name, dir_fd=directory), True
            elif _POINTER.fullmatch(name):
                with open_below(directory, PurePosixPath(name)) as fd:
                    yield name, os.pread(fd, MAX_POINTER_BYTES, 0).decode(), False


def look_at(base: int, path: PurePosixPath) -> MatchedPath | None:
    """Return one path below an open directory as it is now, None if it is no file and no directory.

    Raises:
        TooMany: it has too many entries.
    """
    try:
        with directory_at(base, path.parent) as parent:
            mode = os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return None
    return _Search(base).match(path, mode)


def describe_miss(base: int, pattern: str) -> str:
    """Return the end of a pattern that names nothing: the first part that is not there, and what is."""
    search, parts = _Search(base), PurePosixPath(expand_braces(pattern)[0]).parts
    with suppress(TooMany):
        for count in range(1, len(parts) + 1):
            if any(True for _ in search.named(parts[:count])):
                continue
            before = "/".join(parts[: count - 1])
            there = search.named(parts[: count - 1])
            above = [path for path, mode in there if stat.S_ISDIR(mode)]
            if not above:
                path, mode = there[0]
                return _LINK.format(path) if stat.S_ISLNK(mode) else f"{path} is a file, and no directory"
            names = sorted(name for here in above for name, _ in search.entries(here))
            shown = ", ".join(each for each in names[:3] if each.isprintable())
            has = f"which has {shown}{' and more' if len(names) > 3 else ''}" if shown else "which is empty"
            return f"there is no {parts[count - 1]} in {before or 'the working directory'}, {has}"
        named = [
            path
            for each in expand_braces(pattern)
            for path, mode in search.named(PurePosixPath(each).parts)
            if stat.S_ISLNK(mode)
        ]
        if named:
            return _LINK.format(named[0])
    return "what has that name is empty, temporary, or came with the code"


@dataclass(slots=True)
class _Search:
    base: int
    count: int = 0
    names: int = 0

    def named(self, parts: tuple[str, ...]) -> list[tuple[PurePosixPath, int]]:
        """Return the paths that a pattern names, with their modes; the base for no parts at all."""
        found = [(PurePosixPath(), stat.S_IFDIR)]
        for part in parts:
            expression, hidden = _compiled(part), part.startswith(".")
            found = [
                (here / name, mode)
                for here, above in found
                if stat.S_ISDIR(above)
                for name, mode in self.entries(here, expression)
                if hidden or not name.startswith(".")
            ]
        return found

    def entries(self, here: PurePosixPath, of: re.Pattern[str] = _EVERY) -> list[tuple[str, int]]:
        """Return the names and modes of entries of a directory; a name must be UTF-8."""
        found = []
        try:
            with directory_at(self.base, here) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    self.names += 1
                    self.count += (is_asked := bool(of.fullmatch(entry.name)))
                    if self.count > MAX_ENTRIES or self.names > MAX_NAMES:
                        raise TooMany
                    if not is_asked:
                        continue
                    with suppress(OSError, UnicodeEncodeError):  # removed meanwhile
                        entry.name.encode()
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
        except OSError:
            return found  # removed meanwhile, or closed to everybody
        return found

    def match(self, path: PurePosixPath, mode: int) -> MatchedPath | None:
        """Return a file, or a directory with its files; None for anything else."""
        if stat.S_ISREG(mode):
            files = self._status(path.parent, {path.name: path.name})
            return MatchedPath(path, tuple(files), is_directory=False)
        if not stat.S_ISDIR(mode):
            return None
        files, waiting, problem = [], [PurePosixPath()], None
        while waiting and problem is None:
            here = waiting.pop()
            entries = self.entries(path / here)
            names = {name: str(here / name) for name, kind in entries if stat.S_ISREG(kind)}
            files += self._status(path / here, names)
            waiting += [here / name for name, kind in entries if stat.S_ISDIR(kind)]
            if len(here.parts) >= MAX_DEPTH:
                problem = f"has directories deeper than {MAX_DEPTH} levels"
            elif len(files) > MAX_FILES:
                problem = f"has more than {MAX_FILES} files"
        return MatchedPath(path, tuple(sorted(files)), is_directory=True, problem=problem)

    def _status(self, here: PurePosixPath, names: dict[str, str]) -> list[tuple[str, int, int, int]]:
        """Return the fingerprint of files in one directory, by the names that they have in it."""
        found: list[tuple[str, int, int, int]] = []
        with suppress(OSError), directory_at(self.base, here) as fd:
            for name, shown in names.items():
                with suppress(OSError):  # removed meanwhile
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    found.append((shown, status.st_ino, status.st_size, status.st_mtime_ns))
        return found


@contextmanager
def directory_at(base: int | Path, path: PurePosixPath) -> Iterator[int]:
    """Open a directory below another one, without following any link on the way; may raise OSError."""
    fd = os.dup(base) if isinstance(base, int) else os.open(base, DIRECTORY)
    try:
        for part in path.parts:
            inner = os.open(part, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


@lru_cache(maxsize=512)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(translate(part))


@contextmanager
def open_below(base: Path | int, path: PurePosixPath) -> Iterator[int]:
    """Open a regular file below a directory, without following any link in its path; may raise OSError."""
    with directory_at(base, path.parent) as parent:
        file = os.open(path.name, _FILE, dir_fd=parent)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path}: is no regular file")
        yield file
    finally:
        os.close(file)
