"""What attempts have held and for how long: the past of the shares, and of who has used what.

Rows are written with the events that they follow from, by the store; here they are read.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import datetime

from runner.adapters.sqlite.store import SqliteStore
from runner.core.ports.all import Alike, Lending


class Lendings:
    """Satisfies ``runner.core.ports.all.Past``; readable from any thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def since(self, at: datetime) -> Iterable[Lending]:
        """Return what was held at some time after ``at``; what is held still has no end."""
        return self.between(at, None)

    def between(self, begins: datetime, ends: datetime | None) -> Iterator[Lending]:
        """Yield what was held at some time in a period, in the order in which it was placed."""
        limit = None if ends is None else ends.isoformat()
        rows = self._store.rows("lendings_between", begins=begins.isoformat(), ends=limit)
        return map(_lending, rows)

    def lasted_s(self, owner: str, alike: Alike, which: str) -> tuple[float, ...]:
        """Return how long the latest few jobs that are alike held what they had, those that succeeded."""
        rows = self._store.rows(f"lasted_by_{alike}", owner=owner, which=which)
        return tuple(float(row["lasted"]) for row in rows)


def _lending(row: sqlite3.Row) -> Lending:
    ended = row["ended_at"]
    return Lending(
        job_id=str(row["job_id"]),
        attempt=row["attempt"],
        owner=row["owner"],
        team=row["team"],
        gpus=row["gpus"],
        cpus=row["cpus"],
        devices=tuple(json.loads(row["devices"])),
        placed_at=datetime.fromisoformat(row["placed_at"]),
        ended_at=None if ended is None else datetime.fromisoformat(ended),
    )
