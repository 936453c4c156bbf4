"""Differences between two jobs, as ``runner diff`` tells them, within what a page can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runner.base.errors import RunnerError
from runner.client.differences import file_lines
from runner.dashboard.daemon import Daemon

MOST_FILES: Final = 100
MOST_LINES: Final = 300
"""Lines of one file that a page shows."""

MOST_COMPARED_LINES: Final = 5000
"""Lines of one file that are compared; comparing takes the square of them."""

HEADS: Final = ("--- ", "+++ ")
"""How the two lines begin that name the file."""

KINDS: Final = {"+": "added", "-": "removed", "@": "place"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a file; its kind is ``added``, ``removed``, ``place`` or ``same``."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Differences in one file."""

    path: str
    said: str
    """How it differs, in words."""
    lines: Sequence[DiffLine]
    more: int
    """Lines that are left out."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences between two jobs: fields with their classes, and code."""

    before: str = ""
    after: str = ""
    changes: Sequence[Mapping[str, Any]] = ()
    files: Sequence[FileDifference] = ()
    unknown: Sequence[str] = ()
    more_files: int = 0
    problem: str | None = None
    """Why it is not known."""

    @property
    def is_empty(self) -> bool:
        """Return True if nothing differs, as far as is known."""
        return not (self.changes or self.files or self.unknown)


def load_difference(daemon: Daemon, first: str, second: str) -> Difference:
    """Return the differences of two jobs; the reason for none, if this user may not know."""
    try:
        return make_difference(daemon.difference(first, second))
    except RunnerError as error:
        return Difference(problem=str(error))


def make_difference(found: Mapping[str, Any]) -> Difference:
    """Return an answer of ``/diff`` as a page shows it."""
    files = found["code"]
    return Difference(
        found["before"],
        found["after"],
        found["changes"],
        tuple(_file(each) for each in files[:MOST_FILES]),
        found["code_unknown"],
        max(len(files) - MOST_FILES, 0),
    )


def _file(file: Mapping[str, Any]) -> FileDifference:
    said: list[str] = []
    lines: list[str] = []
    for line in file_lines(file, MOST_COMPARED_LINES):
        if lines or line.startswith(HEADS[0]):
            lines.append(line)
        else:
            said.append(line.removeprefix(f"{file['path']}: "))
    body = lines[len(HEADS) :]
    counted = [sum(line.startswith(sign) for line in body) for sign in "+-"]
    if body:
        said.append(f"lines: {counted[0]} added, {counted[1]} removed")
    shown = tuple(DiffLine(KINDS.get(line[:1], "same"), line) for line in body[:MOST_LINES])
    return FileDifference(file["path"], "; ".join(said), shown, len(body) - len(shown))
