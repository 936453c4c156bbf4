"""Files of a code directory to leave out: by ``.gitignore`` and ``.runnerignore``, and a few always.

The rules are those of ``gitignore(5)``: a file of patterns counts for its directory and those below, later
patterns and deeper files outrank earlier ones, and nothing below an ignored directory can be had back.  In
one directory ``.runnerignore`` outranks ``.gitignore``, so it can also have files back.  In a repository the
files of patterns above the code count, too, and what git has in its index stays in, as git itself has it.
Above the code, others may put files where everybody can write, such as ``/tmp/.git`` and ``/tmp/.gitignore``.
So a repository counts only if it is the submitter's or root's, and so does each file of patterns there.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pathspec import GitIgnoreSpec

from runner.adapters.host.code_snapshot.git import ask_tracked

IGNORE_FILES: Final = (".gitignore", ".runnerignore")
"""In the order in which they are read; the last one that matches decides."""

NEVER: Final = ".git"
"""The repository itself; no pattern can have it back."""

ALWAYS: Final = GitIgnoreSpec.from_lines([".hg/", ".svn/", "__pycache__/"])
"""What is left out unless a pattern has it back."""

ENVIRONMENT_MARK: Final = "pyvenv.cfg"
"""A directory with this file is a virtual environment, which works only where it was made."""

MAX_IGNORE_FILE_BYTES: Final = 1024 * 1024


class Repository:
    """The git repository that a code directory is in: its own ignore files, and what it has in its index."""

    def __init__(self, place: str | None) -> None:
        self._place = None if place is None or not _is_trusted(f"{place}/.git") else place
        self._tracked: frozenset[str] | None = None
        self._parents: frozenset[str] = frozenset()

    def above(self) -> list[tuple[str, str]]:
        """Return the ignore files outside of the code, the nearest first, and where each sees the code."""
        if self._place is None:
            return []
        inside = os.path.relpath(os.getcwd(), self._place)  # noqa: PTH109
        parts = [] if inside == "." else inside.split("/")
        places = [
            ("/".join((self._place, *parts[:count], IGNORE_FILES[0])), "/".join((*parts[count:], "")))
            for count in reversed(range(len(parts)))
        ]
        return [*places, (f"{self._place}/.git/info/exclude", "/".join((*parts, "")) if parts else "")]

    def has(self, path: str, *, is_directory: bool) -> bool:
        """Return whether git has a file, or something in a directory, in its index."""
        if self._place is None:
            return False
        if self._tracked is None:
            self._tracked = ask_tracked()
            self._parents = frozenset(
                path[:end] for path in self._tracked for end, letter in enumerate(path) if letter == "/"
            )
        return path in (self._parents if is_directory else self._tracked)


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
    """How many letters of a path precede what the patterns are about."""
    prefix: str
    spec: GitIgnoreSpec
    of_git: bool


class IgnoreRules:
    """The rules of one directory, read when they are first asked for."""

    def __init__(self, directory: str, repository: Repository, parent: "IgnoreRules | None" = None) -> None:
        self._directory = directory  # relative to the code; empty: the code itself
        self._repository = repository
        self._parent = parent
        self._known: tuple[_Patterns, ...] | None = None

    def below(self, directory: str) -> "IgnoreRules":
        """Return the rules of a directory in this one, by its path."""
        return IgnoreRules(directory, self._repository, self)

    def is_ignored(self, path: str, *, is_directory: bool) -> bool:
        """Return whether an entry of this directory is left out; ``.gitignore`` spares what git tracks."""
        if path == NEVER or path.endswith(f"/{NEVER}"):
            return True
        name = f"{path}/" if is_directory else path
        for patterns in self._all():
            found = patterns.spec.check_file(patterns.prefix + name[patterns.start :]).include
            if found is not None:
                return found and not (
                    patterns.of_git and self._repository.has(path, is_directory=is_directory)
                )
        return ALWAYS.match_file(name)

    def _all(self) -> tuple[_Patterns, ...]:
        """Return the patterns that count here, the deepest first."""
        if self._known is None:
            above = tuple(self._outside()) if self._parent is None else self._parent._all()  # noqa: SLF001
            self._known = (*self._own(), *above)
        return self._known

    def _own(self) -> Iterator[_Patterns]:
        start = len(self._directory) + 1 if self._directory else 0
        for name in reversed(IGNORE_FILES):
            lines = _lines(f"{self._directory}/{name}" if self._directory else name, is_inside=True)
            if lines:
                yield _Patterns(start, "", GitIgnoreSpec.from_lines(lines), name == IGNORE_FILES[0])

    def _outside(self) -> Iterator[_Patterns]:
        for path, prefix in self._repository.above():
            if lines := _lines(path, is_inside=False):
                yield _Patterns(0, prefix, GitIgnoreSpec.from_lines(lines), of_git=True)


def _is_trusted(path: str) -> bool:
    try:
        return os.lstat(path).st_uid in {0, os.geteuid()}
    except OSError:
        return False


def _lines(path: str, *, is_inside: bool) -> list[str]:
    """Return the lines of a file of patterns; none if it is not there, or neither root's nor one's own.

    Within the code, whoever may write there decides about the code itself, too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not is_inside and os.fstat(descriptor).st_uid not in {0, os.geteuid()}:
                return []
            return os.fsdecode(file.read(MAX_IGNORE_FILE_BYTES)).splitlines()
    except OSError:
        return []
