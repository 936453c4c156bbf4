"""Reads the events of the store as notifications, and keeps how far each rule has got."""

import sqlite3
from datetime import datetime

from runner.adapters.sqlite.rows import json_object
from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.notification import Notification


class SqliteNotificationFeed:
    """Satisfies ``runner.core.ports.notifications.NotificationFeed``."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def after(self, seq: int, limit: int) -> tuple[Notification, ...]:
        return self._store.read("notices_after", _notification, after=seq, limit=limit)

    def newest(self) -> int:
        return self._store.last_seq()

    def told(self, key: str) -> int | None:
        return self._store.noted_number(key)

    def remember(self, key: str, seq: int) -> None:
        with self._store.transaction() as connection:
            connection.execute(SQL["set_meta"], {"key": key, "value": str(seq)})


def _notification(row: sqlite3.Row) -> Notification:
    entered = json_object(row["body"]).get("entered", {})
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
        labels=json_object(row["labels"]),
    )
