"""Links in a directory that lead out of it: where it is mounted elsewhere, they lead to nothing."""

import os
from collections import deque
from pathlib import Path
from typing import Final

MOST_LOOKED: Final = 10_000
"""Entries that are looked at; data may have millions of files, and their links are mostly near the top."""

MOST: Final = 20


def find_links_out(directory: Path) -> tuple[tuple[str, str], ...]:
    """Return the links that lead out of a directory, by their paths below it, with what they say.

    One that leads to nothing here is not meant: no mount would help.
    """
    found: list[tuple[str, str]] = []
    pending, looked = deque([""]), 0
    while pending and looked < MOST_LOOKED and len(found) < MOST:
        below = pending.popleft()
        try:
            with os.scandir(directory / below) as entries:
                for entry in entries:
                    looked += 1
                    if looked > MOST_LOOKED:
                        break
                    inner = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{inner}/")
                    elif entry.is_symlink():
                        target = os.readlink(directory / inner)
                        is_out = target.startswith("/") or _leads_out(below, target)
                        if is_out and os.path.exists(directory / inner):
                            found.append((inner, target))
        except OSError:  # a file, or a directory that is not for this user
            continue
    return tuple((_shown(inner), _shown(target)) for inner, target in sorted(found)[:MOST])


def _shown(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")


def _leads_out(below: str, target: str) -> bool:
    return os.path.normpath(f"./{below}{target}").split("/", 1)[0] == ".."
