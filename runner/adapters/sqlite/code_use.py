"""Snapshots of code that the jobs of a store need."""

import re
from collections.abc import Callable
from typing import Final

from runner.adapters.sqlite.store import SqliteStore

FINISHED: Final = "finished"

_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""A revision names its snapshot by such a digest; another one keeps too much, never too little."""


def needed_snapshots(store: SqliteStore, keeps: Callable[[str], bool]) -> frozenset[str]:
    """Return the snapshots of unfinished jobs, and of the finished ones for which ``keeps`` answers yes.

    All revisions of a job count: it can be rolled back to each of them.
    """
    found: set[str] = set()
    texts: set[int] = set()
    for row in store.rows("revisions_with_states"):
        if row["state"] != FINISHED or keeps(str(row["job_id"])):
            texts.add(row["text_id"])
            found.update(_DIGEST.findall(row["edits"]))
    for text_id in texts:
        for row in store.rows("text_by_id", id=text_id):
            found.update(_DIGEST.findall(row["text"]))
    return frozenset(found)
