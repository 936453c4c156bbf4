"""Reads and writes schedules and their firings as rows of the store.

The tables call a firing an occasion.  Its key is its schedule and its time, so none exists twice.  A firing
is ``due`` from the moment at which it is noticed until its job is in the store; a daemon that starts looks
for those that are due.
"""

import json
import sqlite3
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from runner.adapters.sqlite.rows import json_object
from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.ports.schedules import FiringRow, FiringState, ScheduleRow, ScheduleState

SHOWN: Final = 20
"""Firings of one schedule that are listed."""


class SqliteSchedules:
    """Satisfies ``runner.core.ports.schedules.Schedules``."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    # --- writing, by the thread that writes the store

    def batch(self) -> AbstractContextManager[object]:
        return self._store.transaction()

    def add(self, row: ScheduleRow, token: str | None) -> ScheduleRow:
        values = {
            **{name: getattr(row, name) for name in _PLAIN},
            "terms": json.dumps(dict(row.terms)),
            "made_at": row.made_at.isoformat(),
            "looked_at": row.looked_at.isoformat(),
            "token": token,
        }
        with self._store.transaction() as connection:
            number = connection.execute(SQL["add_schedule"], values).lastrowid
        return self.known(int(number or 0))

    def move(self, row: ScheduleRow, state: ScheduleState, note: str, looked_at: datetime) -> None:
        values = {"id": row.id, "state": state, "note": note, "looked_at": looked_at.isoformat()}
        with self._store.transaction() as connection:
            connection.execute(SQL["move_schedule"], values)

    def record_firing(
        self, row: ScheduleRow, at: datetime, now: datetime, state: FiringState, text: str
    ) -> bool:
        """Return False for one noticed before the clock was set back: it must not submit a second job."""
        firing = {"schedule": row.id, "at": at.isoformat(), "state": state, "text": text}
        with self._store.transaction() as connection:
            new = connection.execute(SQL["add_occasion"], firing).rowcount == 1
            connection.execute(SQL["look_at_schedule"], {"id": row.id, "looked_at": now.isoformat()})
        return new

    def settle(self, firing: FiringRow, state: FiringState, text: str, job_id: str | None = None) -> None:
        values = {
            "schedule": firing.schedule,
            "at": firing.at.isoformat(),
            "state": state,
            "text": text,
            "job_id": None if job_id is None else int(job_id),
        }
        with self._store.transaction() as connection:
            connection.execute(SQL["settle_occasion"], values)

    # --- reading, from any thread

    def get(self, number: int) -> ScheduleRow | None:
        return next(iter(self._rows("schedule_by_id", id=number)), None)

    def known(self, number: int) -> ScheduleRow:
        [row] = self._rows("schedule_by_id", id=number)
        return row

    def made_with(self, token: str) -> ScheduleRow | None:
        return next(iter(self._rows("schedule_by_token", token=token)), None)

    def find(self, reference: str, uid: int, owner: str) -> ScheduleRow | None:
        if reference.isdecimal() and len(reference) < 19 and (found := self.get(int(reference))):
            return found
        return next(iter(self._rows("schedules_named", name=reference, uid=uid, owner=owner)), None)

    def named(self, name: str, uid: int, owner: str) -> tuple[ScheduleRow, ...]:
        found = self._rows("schedules_named", name=name, uid=uid, owner=owner)
        own = (row for row in found if (row.uid, row.owner) == (uid, owner))
        return tuple(row for row in own if row.state in {"active", "paused"})

    def listed(self, uid: int | None, *, every: bool) -> tuple[ScheduleRow, ...]:
        return self._rows("schedules_listed", uid=uid, every=every)

    def active(self) -> tuple[ScheduleRow, ...]:
        return self._rows("schedules_active")

    def firings(self, number: int, limit: int = SHOWN) -> tuple[FiringRow, ...]:
        return self._store.read("occasions_of", _firing, schedule=number, limit=limit)

    def due(self) -> tuple[FiringRow, ...]:
        return self._store.read("occasions_due", _firing)

    def unfinished(self, number: int) -> tuple[str, ...]:
        rows = self._store.rows("scheduled_unfinished", schedule=number)
        return tuple(str(row["job_id"]) for row in rows)

    def _rows(self, statement: str, **values: object) -> tuple[ScheduleRow, ...]:
        return self._store.read(statement, _schedule, **values)


_PLAIN: Final = ("name", "uid", "gid", "owner", "path", "text", "state", "note")


def _schedule(row: sqlite3.Row) -> ScheduleRow:
    return ScheduleRow(
        id=row["id"],
        **{name: row[name] for name in _PLAIN},
        terms=json_object(row["terms"]),
        made_at=datetime.fromisoformat(row["made_at"]),
        looked_at=datetime.fromisoformat(row["looked_at"]),
    )


def _firing(row: sqlite3.Row) -> FiringRow:
    job_id = None if row["job_id"] is None else str(row["job_id"])
    at = datetime.fromisoformat(row["at"])
    return FiringRow(row["schedule"], at, row["state"], job_id, row["text"])
