"""Schedules and their occasions as rows of the store.

An occasion is named by its schedule and its time, so none can be there twice.  It is ``due`` from the
moment at which it is noticed until its job is in the store, and a daemon that begins looks for such.
"""

import json
import sqlite3
from datetime import datetime
from typing import Final

from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.ports.schedules import FiringRow, FiringState, ScheduleRow, ScheduleState

SHOWN: Final = 20  # occasions of one schedule that are told


class SqliteSchedules:
    """What the store knows about schedules."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    # --- writing, by whoever writes the store

    def add(self, row: ScheduleRow, token: str | None) -> ScheduleRow:
        """Write a new schedule and return it with its id."""
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
        """Let a schedule begin, rest or end."""
        values = {"id": row.id, "state": state, "note": note, "looked_at": looked_at.isoformat()}
        with self._store.transaction() as connection:
            connection.execute(SQL["move_schedule"], values)

    def record_firing(
        self, row: ScheduleRow, at: datetime, now: datetime, state: FiringState, text: str
    ) -> bool:
        """Write down an occasion, and that everything before ``now`` is settled.

        Returns whether it is new: of one that is known already, after a clock was set back, nothing follows.
        """
        occasion = {"schedule": row.id, "at": at.isoformat(), "state": state, "text": text}
        with self._store.transaction() as connection:
            new = connection.execute(SQL["add_occasion"], occasion).rowcount == 1
            connection.execute(SQL["look_at_schedule"], {"id": row.id, "looked_at": now.isoformat()})
        return new

    def settle(self, occasion: FiringRow, state: FiringState, text: str, job_id: str | None = None) -> None:
        """Write what became of an occasion that was due."""
        values = {
            "schedule": occasion.schedule,
            "at": occasion.at.isoformat(),
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
        """Return a schedule that has been there before: none ever goes."""
        [row] = self._rows("schedule_by_id", id=number)
        return row

    def made_with(self, token: str) -> ScheduleRow | None:
        """Return the schedule that was made with this token already."""
        return next(iter(self._rows("schedule_by_token", token=token)), None)

    def find(self, reference: str, uid: int) -> ScheduleRow | None:
        """Return a schedule by its id, or the newest of that name, the caller's own before others'."""
        if reference.isdecimal() and len(reference) < 19 and (found := self.get(int(reference))):
            return found
        return next(iter(self._rows("schedules_named", name=reference, uid=uid)), None)

    def named(self, name: str, uid: int) -> tuple[ScheduleRow, ...]:
        """Return somebody's schedules of a name that are not over."""
        found = self._rows("schedules_named", name=name, uid=uid)
        return tuple(row for row in found if row.uid == uid and row.state in {"active", "paused"})

    def listed(self, uid: int | None, *, every: bool) -> tuple[ScheduleRow, ...]:
        """Return schedules in the order of their ids; of one person unless ``uid`` is None."""
        return self._rows("schedules_listed", uid=uid, every=every)

    def active(self) -> tuple[ScheduleRow, ...]:
        return self._rows("schedules_active")

    def occasions(self, number: int, limit: int = SHOWN) -> tuple[FiringRow, ...]:
        """Return what became of the times of a schedule, the newest first."""
        return tuple(map(_occasion, self._store.rows("occasions_of", schedule=number, limit=limit)))

    def due(self) -> tuple[FiringRow, ...]:
        """Return occasions that have been noticed, and of which nothing has become yet."""
        return tuple(map(_occasion, self._store.rows("occasions_due")))

    def unfinished(self, number: int) -> tuple[str, ...]:
        """Return the ids of a schedule's jobs that have not ended."""
        rows = self._store.rows("scheduled_unfinished", schedule=number)
        return tuple(str(row["job_id"]) for row in rows)

    def schedule_of(self, job_id: str) -> tuple[int, datetime] | None:
        """Return the schedule that a job was submitted by, and for which time."""
        rows = self._store.rows("schedule_of_job", job_id=int(job_id))
        return (rows[0]["schedule"], datetime.fromisoformat(rows[0]["at"])) if rows else None

    def _rows(self, statement: str, **values: object) -> tuple[ScheduleRow, ...]:
        return tuple(map(_schedule, self._store.rows(statement, **values)))


_PLAIN: Final = ("name", "uid", "gid", "owner", "path", "text", "state", "note")


def _schedule(row: sqlite3.Row) -> ScheduleRow:
    return ScheduleRow(
        id=row["id"],
        **{name: row[name] for name in _PLAIN},
        terms=json.loads(row["terms"]),
        made_at=datetime.fromisoformat(row["made_at"]),
        looked_at=datetime.fromisoformat(row["looked_at"]),
    )


def _occasion(row: sqlite3.Row) -> FiringRow:
    job_id = None if row["job_id"] is None else str(row["job_id"])
    at = datetime.fromisoformat(row["at"])
    return FiringRow(row["schedule"], at, row["state"], job_id, row["text"])
