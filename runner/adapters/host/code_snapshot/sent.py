"""Origin of code that a client on another machine sent: its place in a git repository there.

``runner receive`` puts a record beside each tree of files, and whoever reads code below such a tree finds it.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

TREES: Final = ("received", "trees")
"""The last two directories above the trees."""

MAX_RECORD_BYTES: Final = 64 * 1024

_TREE: Final = re.compile(r"[0-9a-f]{32}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class SentCode:
    """Code of another machine."""

    git: dict[str, Any] | None
    """As ``git.ask_state`` returns it; empty: git did not say; None: the code was in no repository."""


def record_of(tree: str) -> str:
    """Return the path of the record of a tree."""
    return f"{tree}.json"


def find_sent() -> SentCode | None:
    """Return the record of the current directory if it was sent; None if it was not."""
    parts = os.getcwd().split("/")
    for index in range(3, len(parts)):
        if tuple(parts[index - 2 : index]) == TREES and _TREE.fullmatch(parts[index]):
            return _read(record_of("/".join(parts[: index + 1])))
    return None


def _read(path: str) -> SentCode | None:
    """Return the content of a record; None if there is none of the owner of the current directory."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.stat(".").st_uid:
                return None
            said = json.loads(file.read(MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    git = said.get("git") if isinstance(said, dict) else None
    return SentCode(_checked(git) if isinstance(git, dict) else None)


def _checked(git: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statements of a client about git; nothing if any of it cannot be true."""
    commit, dirty = git.get("commit"), git.get("dirty")
    names = {name: git.get(name) for name in ("branch", "remote")}
    is_commit = commit is None or (isinstance(commit, str) and _COMMIT.fullmatch(commit) is not None)
    are_names = all(
        name is None or (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME) for name in names.values()
    )
    if not (is_commit and are_names and (dirty is None or isinstance(dirty, bool))):
        return {}
    return {"commit": commit, **names, "dirty": dirty}
