"""What was lent and how busy it was: rows of the store for whoever adds them up."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.accounting.usage import Lending

COMPLETED: Final = "completed"

Busy: TypeAlias = Mapping[tuple[str, int], tuple[float, float]]
"""By job and attempt: device-seconds that were looked at, and those of them in which a device was busy."""


@dataclass(frozen=True, slots=True)
class Used:
    """The past of what was lent, in a store."""

    store: SqliteStore

    def between(self, since: datetime, until: datetime) -> tuple[Lending, ...]:
        """Return what was lent within a span of time; from any thread."""
        rows = self.store.rows("used_between", since=since.isoformat(), until=until.isoformat())
        return tuple(_lending(row) for row in rows)

    def add(self, busy: Busy) -> None:
        """Add to how busy devices were; by whoever writes the store."""
        with self.store.transaction() as connection:
            for (job_id, attempt), (device_s, busy_s) in busy.items():
                values = {"job_id": int(job_id), "attempt": attempt, "device_s": device_s, "busy_s": busy_s}
                connection.execute(SQL["add_utilisation"], values)


def _lending(row: sqlite3.Row) -> Lending:
    ended_s, ran_s = _seconds(row["ended_at"]), _seconds(row["launched_at"])
    return Lending(
        job=f"{row['job_id']} {row['name']}",
        user=row["owner"],
        team=row["team"],
        gpus=row["gpus"],
        cpus=row["cpus"],
        placed_s=datetime.fromisoformat(row["placed_at"]).timestamp(),
        ended_s=ended_s,
        ran_s=ran_s,
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
