"""Files of a code directory to leave out: by ``.gitignore`` and ``.runnerignore``, and a few always.

The rules are those of ``gitignore(5)``: a file of patterns counts for its directory and those below, later
patterns and deeper files outrank earlier ones, and nothing below an ignored directory can be had back.  In
one directory ``.runnerignore`` outranks ``.gitignore``, so it can also have files back.  In a repository the
files of patterns above the code count, too, those of the user for all repositories, and what git has in its
index stays in, as git itself has it.  A repository within the code, such as a submodule, has its own rules.
Names and patterns are compared byte by byte: neither has to be UTF-8.
Above the code, others may put files where everybody can write, such as ``/tmp/.git`` and ``/tmp/.gitignore``.
So a repository counts only if it is the submitter's or root's, and so does each file of patterns there.
"""

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from runner.adapters.host.code_snapshot.git import ask_tracked, find_git_files, find_user_excludes
from runner.adapters.host.code_snapshot.patterns import Pattern, parse_patterns

IGNORE_FILES: Final = (".gitignore", ".runnerignore")
"""In the order in which they are read; the last one that matches decides."""

NEVER: Final = ".git"
"""The repository itself; no pattern can have it back."""

ALWAYS: Final = frozenset({".hg", ".svn", "__pycache__"})
"""Names of directories that are left out unless a pattern has them back."""

ENVIRONMENT_MARK: Final = "pyvenv.cfg"
"""A directory with this file is a virtual environment, which works only where it was made."""

MAX_IGNORE_FILE_BYTES: Final = 1024 * 1024


class Repository:
    """The git repository that a directory of code is in: its own ignore files, and what its index has."""

    def __init__(self, place: str | None, directory: str = "") -> None:
        self._place = None if place is None or not _is_trusted(f"{place}/.git") else place
        self._directory = directory  # of the code, where the repository begins; empty: above or in the code
        self._files = None if self._place is None else find_git_files(self._place)
        self._above: list[tuple[str, str]] | None = None
        self._tracked: frozenset[str] | None = None
        self._parents: frozenset[str] = frozenset()

    @property
    def index(self) -> str | None:
        """The path of the index; None: there is none."""
        return None if self._files is None else self._files[1]

    def nested(self, directory: str) -> "Repository | None":
        """Return the repository that begins in a directory of the code; None if none of the user's does."""
        found = Repository(directory, directory) if os.path.lexists(f"{directory}/{NEVER}") else None
        return None if found is None or found.index is None else found

    def above(self) -> list[tuple[str, str]]:
        """Return the ignore files outside of the code, the nearest first, and where each sees the code."""
        if self._above is None:
            self._above = self._find_above()
        return self._above

    def _find_above(self) -> list[tuple[str, str]]:
        if self._place is None or self._files is None:
            return []
        inside = os.path.relpath(self._directory or os.getcwd(), self._place)
        parts = [] if inside == "." else inside.split("/")
        places = [
            ("/".join((self._place, *parts[:count], IGNORE_FILES[0])), "/".join((*parts[count:], "")))
            for count in reversed(range(len(parts)))
        ]
        users, whole = find_user_excludes(), "/".join((*parts, "")) if parts else ""
        return [*places, (self._files[0], whole), *([] if users is None else [(users, whole)])]

    def has(self, path: str, *, is_directory: bool) -> bool:
        """Return True if git has a file, or something in a directory, in its index."""
        if self._place is None:
            return False
        if self._tracked is None:
            self._tracked = ask_tracked(self._directory or ".")
            self._parents = frozenset(
                path[:end] for path in self._tracked for end, letter in enumerate(path) if letter == "/"
            )
        inner = path[len(self._directory) + 1 :] if self._directory else path
        return inner in self._tracked or (is_directory and inner in self._parents)  # a submodule is tracked


class SentRepository(Repository):
    """That of another machine, which has sent what git has in its index and left out what git ignores."""

    def __init__(self) -> None:
        super().__init__(None)

    def has(self, path: str, *, is_directory: bool) -> bool:  # noqa: ARG002
        """Return that git has it: ``.gitignore`` has been obeyed where the code comes from."""
        return True


@dataclass(frozen=True, slots=True)
class _Patterns:
    """The patterns of one file, and how its directory sees the code."""

    start: int
    """Number of letters of a path before the part that the patterns are about."""
    prefix: str
    patterns: tuple[Pattern, ...]
    of_git: bool

    def ignores(self, name: str, *, is_directory: bool) -> bool | None:
        """Return True if an entry is ignored, False if it is had back, None if no pattern is about it.

        To git, a pattern about a directory is none about what is in it: what that had ignored, no look comes
        to, and what it had back may be ignored by another pattern.  ``.runnerignore`` has back all of it.
        """
        path = self.prefix + name[self.start :]
        while path:
            for pattern in reversed(self.patterns):
                if pattern.is_about(path, is_directory=is_directory):
                    return pattern.ignores
            path, is_directory = "" if self.of_git else path.rpartition("/")[0], True
        return None


class IgnoreRules:
    """The rules of one directory, read when they are first asked for."""

    def __init__(self, directory: str, repository: Repository, parent: "IgnoreRules | None" = None) -> None:
        self._directory = directory  # relative to the code; empty: the code itself
        self._repository = repository
        self._parent = parent
        self._known: tuple[_Patterns, ...] | None = None
        self._is_within: bool | None = None  # what git ignores, but for what it tracks

    def below(self, directory: str) -> "IgnoreRules":
        """Return the rules of a directory in this one, by its path."""
        return IgnoreRules(directory, self._repository, self)

    def ignored_by(self, path: str, *, is_directory: bool) -> Literal["git", "runner"] | None:
        """Return the owner of the patterns that ignore an entry here; those of git spare what it tracks."""
        if path == NEVER or path.endswith(f"/{NEVER}"):
            return "runner"
        name = _by_bytes(path)
        for patterns in self._all():
            found = patterns.ignores(name, is_directory=is_directory)
            if found is not None:
                if not patterns.of_git:
                    return "runner" if found else None
                found = found or self._within()
                return "git" if found and not self._repository.has(path, is_directory=is_directory) else None
        if self._within():
            return None if self._repository.has(path, is_directory=is_directory) else "git"
        return "runner" if is_directory and path.rpartition("/")[2] in ALWAYS else None

    def _within(self) -> bool:
        """Return True if git ignores this directory: then only what it tracks in it is not ignored."""
        if self._is_within is None:
            self._all()
            above = self._parent
            self._is_within = bool(
                above is not None
                and above._repository is self._repository  # noqa: SLF001
                and (above._within() or above._ignores_directory(self._directory))  # noqa: SLF001
            )
        return self._is_within

    def _ignores_directory(self, path: str) -> bool:
        name = _by_bytes(path)
        for patterns in self._all():
            found = patterns.ignores(name, is_directory=True)
            if found is not None:
                return found and patterns.of_git
        return False

    def _all(self) -> tuple[_Patterns, ...]:
        """Return the patterns that count here, the deepest first."""
        if self._known is None:
            self._known = (
                *self._own(),
                *(self._outside() if self._parent is None else self._above(self._parent)),
            )
        return self._known

    def _above(self, parent: "IgnoreRules") -> Iterator[_Patterns]:
        """Yield the patterns of the directories above; in a repository within, none that git has above."""
        above = parent._all()  # noqa: SLF001
        self._repository = parent._repository  # noqa: SLF001  (which it has now found)
        if (nested := self._repository.nested(self._directory)) is None:
            yield from above
            return
        self._repository = nested
        yield from self._outside()
        yield from (each for each in above if not each.of_git)

    def _own(self) -> Iterator[_Patterns]:
        for name in reversed(IGNORE_FILES):
            found = _read(f"{self._directory}/{name}" if self._directory else name, is_inside=True)
            if found:
                yield _Patterns(self._start, "", found, name == IGNORE_FILES[0])

    @property
    def _start(self) -> int:
        """Number of letters of a path before what the patterns of this directory are about."""
        return len(_by_bytes(self._directory)) + 1 if self._directory else 0

    def _outside(self) -> Iterator[_Patterns]:
        for path, prefix in self._repository.above():
            if found := _read(path, is_inside=False):
                yield _Patterns(self._start, _by_bytes(prefix), found, of_git=True)


def _by_bytes(path: str) -> str:
    """Return a path with a letter for each byte, as git compares paths."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def _is_trusted(path: str) -> bool:
    try:
        return os.lstat(path).st_uid in {0, os.geteuid()}
    except OSError:
        return False


def _read(path: str, *, is_inside: bool) -> tuple[Pattern, ...]:
    """Return the patterns in a file; none if it is not there, or neither root's nor one's own.

    Within the code, whoever may write there decides about the code itself, too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not is_inside and os.fstat(descriptor).st_uid not in {0, os.geteuid()}:
                return ()
            content = file.read(MAX_IGNORE_FILE_BYTES).removeprefix(codecs.BOM_UTF8)
            return tuple(parse_patterns(content.decode("latin-1")))
    except OSError:
        return ()
