"""What attempts have held and for how long: the past of the shares, and of who has used what.

Rows are written with the events that they follow from, by the store; here they are read.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.accounting.usage import UsageSpan
from runner.core.ports.store import SimilarBy, UsageRecord
from runner.core.ports.usage import BusyTimes


class SqliteUsageHistory:
    """Satisfies ``runner.core.ports.store.UsageHistory``; readable from any thread."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def since(self, at: datetime) -> Iterable[UsageRecord]:
        """Return what was held at some time after ``at``; what is held still has no end."""
        return self.between(at, None)

    def between(self, begins: datetime, ends: datetime | None) -> Iterator[UsageRecord]:
        """Yield what was held at some time in a period, in the order in which it was placed."""
        limit = None if ends is None else ends.isoformat()
        rows = self._store.rows("lendings_between", begins=begins.isoformat(), ends=limit)
        return map(_lending, rows)

    def lasted_s(self, owner: str, alike: SimilarBy, which: str) -> tuple[float, ...]:
        """Return how long the latest few jobs that are alike held what they had, those that succeeded."""
        rows = self._store.rows(f"lasted_by_{alike}", owner=owner, which=which)
        return tuple(float(row["lasted"]) for row in rows)


def _lending(row: sqlite3.Row) -> UsageRecord:
    ended = row["ended_at"]
    return UsageRecord(
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


COMPLETED: Final = "completed"


@dataclass(frozen=True, slots=True)
class SqliteUsageReport:
    """The past of what was lent, in a store."""

    store: SqliteStore

    def between(self, since: datetime, until: datetime) -> tuple[UsageSpan, ...]:
        """Return what was lent within a span of time; from any thread."""
        rows = self.store.rows("used_between", since=since.isoformat(), until=until.isoformat())
        return tuple(_record(row) for row in rows)

    def add(self, busy: BusyTimes) -> None:
        """Add to how busy devices were; by whoever writes the store."""
        with self.store.transaction() as connection:
            for (job_id, attempt), (device_s, busy_s) in busy.items():
                values = {"job_id": int(job_id), "attempt": attempt, "device_s": device_s, "busy_s": busy_s}
                connection.execute(SQL["add_utilisation"], values)


def _record(row: sqlite3.Row) -> UsageSpan:
    ended_s, ran_s = _seconds(row["ended_at"]), _seconds(row["launched_at"])
    return UsageSpan(
        job=f"{row['job_id']} {row['name']}",
        user=row["owner"],
        team=row["team"],
        gpus=row["gpus"],
        cpus=row["cpus"],
        placed_s=datetime.fromisoformat(row["placed_at"]).timestamp(),
        ended_s=ended_s,
        started_s=ran_s,
        lost_s=_lost_s(row, ran_s, ended_s),
        util=row["busy_s"] / row["device_s"] if row["device_s"] else None,
    )


def _lost_s(row: sqlite3.Row, ran_s: float | None, ended_s: float | None) -> float:
    """Return how much of the end of an attempt nothing is left of.

    Where no decision tells what was saved, nothing is held to be lost.
    """
    if ran_s is None or ended_s is None or row["cause"] == COMPLETED or row["left"] is None:
        return 0.0
    advanced, age_s = json.loads(row["left"])
    ran = ended_s - ran_s
    return min(age_s or 0.0, ran) if advanced else ran


def _seconds(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()
