"""Reads the events of the store as notifications, and keeps how far each rule has got."""

import json
import sqlite3
from datetime import datetime

from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.notification import Notification


class SqliteNotificationFeed:
    """Satisfies ``runner.core.ports.notifications.NotificationFeed``."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def after(self, seq: int, limit: int) -> tuple[Notification, ...]:
        """Return the notifications after ``seq``, the oldest first."""
        return tuple(map(_notification, self._store.rows("notices_after", after=seq, limit=limit)))

    def newest(self) -> int:
        return self._store.last_seq()

    def told(self, key: str) -> int | None:
        """Return the last ``seq`` that a rule is done with; None if the rule is new."""
        rows = self._store.rows("get_meta", key=key)
        return int(rows[0][0]) if rows else None

    def remember(self, key: str, seq: int) -> None:
        """Write the last ``seq`` that a rule is done with; only the store's writer may call this."""
        with self._store.transaction() as connection:
            connection.execute(SQL["set_meta"], {"key": key, "value": str(seq)})


def _notification(row: sqlite3.Row) -> Notification:
    entered = json.loads(row["body"]).get("entered", {})
    return Notification(
        seq=row["seq"],
        job_id=str(row["job_id"]),
        name=row["name"],
        owner=row["owner"],
        at=datetime.fromisoformat(row["at"]),
        kind=row["kind"],
        text=row["text"],
        state=entered.get("state"),
        outcome=entered.get("outcome"),
        labels=json.loads(row["labels"]),
    )
