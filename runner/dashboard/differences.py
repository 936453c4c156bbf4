"""Differences between two jobs, as ``runner diff`` tells them, within what a page can show."""

from collections.abc import Mapping
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
"""Beginnings of the two lines that name the file."""

KINDS: Final = {"+": "added", "-": "removed", "@": "place"}


def load_difference(daemon: Daemon, first: str, second: str) -> dict[str, Any]:
    """Return the differences of two jobs as a page shows them; the problem if this user may not know."""
    try:
        found = daemon.difference(first, second)
    except RunnerError as error:
        return {"problem": str(error)}
    files = found["code"]
    shown = [_file(each) for each in files[:MOST_FILES]]
    return {**found, "problem": None, "files": shown, "more_files": max(len(files) - MOST_FILES, 0)}


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a file differs in words, its lines with their kinds, and how many are left out."""
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
    shown = [(KINDS.get(line[:1], "same"), line) for line in body[:MOST_LINES]]
    return {"path": file["path"], "said": "; ".join(said), "lines": shown, "more": len(body) - len(shown)}
