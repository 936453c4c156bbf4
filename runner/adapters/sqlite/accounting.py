"""Reads and writes the accounting of a store: what attempts held, for how long, and how busy it was.

The store itself writes the rows of ``lendings``, with the events that they follow from.
"""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from runner.adapters.sqlite.rows import texts
from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.accounting.usage import EXACT_S, HOUR_S, Switch, UsageSpan, UsageSum, Used
from runner.core.ports.store import SimilarBy, SwitchRecord, UsageHour, UsageRecord
from runner.core.ports.usage import BusyTimes

PREEMPTION: Final = "preemption"
"""Value of the fact ``killed_by`` of an attempt that was preempted."""

SETTLED: Final = timedelta(minutes=10)
"""After this time nothing more is noted about an attempt that has ended."""

BATCH: Final = 500
"""Attempts that are added to the sums in one transaction."""

COMPLETED: Final = "completed"
"""The exit cause of an attempt that lost nothing."""


class SqliteAccounting:
    """Satisfies ``UsageHistory`` and ``UsageReport`` of ``runner.core.ports``; any thread may read."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def since(self, at: datetime) -> Iterator[UsageRecord]:
        """Yield the usage records that end after ``at`` or have no end yet, the earliest first."""
        return iter(self._store.read("lendings_since", _usage_record, begins=at.isoformat()))

    def lasted_s(self, owner: str, alike: SimilarBy, which: str) -> tuple[float, ...]:
        rows = self._store.rows(f"lasted_by_{alike}", owner=owner, which=which)
        return tuple(float(row["lasted"]) for row in rows)

    def held_device_s(self, jobs: int, cpu_weight: float) -> tuple[float, ...]:
        rows = self._store.rows("held_by_job", jobs=jobs, cpu_weight=cpu_weight)
        return tuple(float(row["held"]) for row in rows)

    def switches_since(self, at: datetime) -> tuple[SwitchRecord, ...]:
        return self._store.read("switches_since", _switch_record, since=at.isoformat())

    def starts_s(self) -> dict[str, tuple[int, float]]:
        rows = self._store.rows("starts_of_unfinished")
        return {str(row["job_id"]): (row["attempt"], row["start_s"]) for row in rows}

    def add_start(self, job_id: str, attempt: int, start_s: float) -> None:
        with self._store.transaction() as connection:
            connection.execute(
                SQL["set_start"], {"job_id": int(job_id), "attempt": attempt, "start_s": start_s}
            )

    def between(self, since: datetime, until: datetime) -> tuple[UsageSpan, ...]:
        """Return the usage records of attempts between two times, one for each attempt."""
        span = {"since": since.isoformat(), "until": until.isoformat()}
        return self._with_switches("used_between", **span)

    def used(self, since: datetime, until: datetime) -> Used:
        """Return the usage by user and team from a time on (see ``begin_of_period``) until now."""
        since_s, until_s = since.timestamp(), until.timestamp()
        if until_s - since_s <= EXACT_S:
            return Used.of(self.between(since, until), since_s, until_s)
        with self._store.connections.snapshot():
            ended = self._store.read("used_since_hour", _usage_sum, hour=_hour(since_s))
            others = self._store.read("used_unsummed", _usage_span)
            gave_way = self._with_switches("gave_way_since", since=since.isoformat())
        return Used(
            (*ended, *Used.of(others, since_s, until_s).sums), Used.of(gave_way, since_s, until_s).switches
        )

    def used_by_job(self, since: datetime, until: datetime, most: int) -> tuple[Used, int]:
        """Return the usage of the jobs that held the most, and how many jobs held anything."""
        asked = {"since": since.isoformat(), "until": until.isoformat(), "most": most}
        with self._store.connections.snapshot():
            jobs = self._store.rows("largest_jobs", **asked)
            spans = [
                each for job in jobs for each in self._with_switches("used_by_job", job_id=job["job_id"])
            ]
        return Used.of(spans, since.timestamp(), until.timestamp()), jobs[0]["jobs"] if jobs else 0

    def of_job(self, job_id: str) -> tuple[UsageSpan, ...]:
        """Return the allocations of the attempts of a job."""
        return self._store.read("used_by_job", _usage_span, job_id=int(job_id))

    def sum_up(self, now: datetime) -> None:
        """Add what attempts used that ended some time ago to the sums; only the writer of the store may.

        Until then their starts, their utilisation and their decisions may still be noted.
        """
        asked = {"before": (now - SETTLED).isoformat(), "limit": BATCH}
        while ended := self._store.read("used_and_over", lambda row: (row, _usage_span(row)), **asked):
            with self._store.transaction() as connection:
                for row, span in ended:
                    connection.executemany(SQL["add_usage"], list(_by_hour(span)))
                    connection.execute(
                        SQL["sum_lending"], {"job_id": row["job_id"], "attempt": row["attempt"]}
                    )

    def hours_since(self, at: datetime) -> Iterator[UsageHour]:
        return iter(self._store.read("usage_by_hour", _usage_hour, hour=_hour(at.timestamp())))

    def unsummed(self) -> Iterator[UsageRecord]:
        return iter(self._store.read("lendings_unsummed", _usage_record))

    def _with_switches(self, name: str, **values: object) -> tuple[UsageSpan, ...]:
        """Return the attempts that a named statement selects, with how they were preempted."""
        found = self._store.read(name, lambda row: (row, _usage_span(row)), **values)
        return tuple(replace(span, switch=self._switch(row)) for row, span in found)

    def _switch(self, row: sqlite3.Row) -> Switch | None:
        """Return the preemption of an attempt; None if it was not."""
        if row["ended_at"] is None or row["left"] is None or json.loads(row["left"])[2] != PREEMPTION:
            return None
        asked = {name: row[name] for name in ("job_id", "placed_at", "ended_at")}
        told = next(iter(self._store.rows("switch_of", **asked)), None)
        if told is None:
            return None
        next_attempt = {"job_id": row["job_id"], "attempt": row["attempt"] + 1}
        following = next(iter(self._store.rows("used_attempt", **next_attempt)), None)
        told_s, ended_s = _known_seconds(told["told_at"]), _known_seconds(row["ended_at"])
        start_s = 0.0
        worked_s = None if following is None else _worked_from_s(following)
        if following is not None and worked_s is not None:
            start_s = worked_s - _known_seconds(following["placed_at"])
        lost_s = _lost_s(row, _seconds(row["launched_at"]), ended_s)
        return Switch(
            told_s=told_s,
            cost_s=max(ended_s - told_s, lost_s or 0.0) + start_s,
            spared_s=told["spared_s"] or 0.0 if told["other_ran"] else None,
            job=f"{told['other_id']} {told['other_name']}",
            user=told["other_owner"],
            team=told["other_team"] or "",
        )

    def add(self, busy: BusyTimes) -> None:
        """Add busy times of devices; only the thread that writes the store may call this."""
        with self._store.transaction() as connection:
            for (job_id, attempt), (device_s, busy_s) in busy.items():
                values = {"job_id": int(job_id), "attempt": attempt, "device_s": device_s, "busy_s": busy_s}
                connection.execute(SQL["add_utilisation"], values)


def _switch_record(row: sqlite3.Row) -> SwitchRecord:
    told_at, ended_at = (datetime.fromisoformat(row[name]) for name in ("told_at", "ended_at"))
    return SwitchRecord(row["gpus"], row["cpus"], told_at, ended_at)


def _usage_record(row: sqlite3.Row) -> UsageRecord:
    ended = row["ended_at"]
    return UsageRecord(
        job_id=str(row["job_id"]),
        attempt=row["attempt"],
        owner=row["owner"],
        team=row["team"],
        gpus=row["gpus"],
        cpus=row["cpus"],
        devices=texts(row["devices"]),
        placed_at=datetime.fromisoformat(row["placed_at"]),
        ended_at=None if ended is None else datetime.fromisoformat(ended),
    )


def _usage_span(row: sqlite3.Row) -> UsageSpan:
    ended_s, ran_s = _seconds(row["ended_at"]), _seconds(row["launched_at"])
    return UsageSpan(
        job=f"{row['job_id']} {row['name']}",
        user=row["owner"],
        team=row["team"],
        gpus=row["gpus"],
        cpus=row["cpus"],
        placed_s=_known_seconds(row["placed_at"]),
        ended_s=ended_s,
        started_s=_worked_from_s(row),
        lost_s=_lost_s(row, ran_s, ended_s),
        util=row["busy_s"] / row["device_s"] if row["device_s"] else None,
    )


def _worked_from_s(row: sqlite3.Row) -> float | None:
    """Return the time of the first step of an attempt; its launch where nobody saw a step."""
    ran_s, ended_s = _seconds(row["launched_at"]), _seconds(row["ended_at"])
    if ran_s is None or row["start_s"] is None:
        return ran_s
    worked_s = ran_s + float(row["start_s"])
    return worked_s if ended_s is None else min(worked_s, ended_s)


def _lost_s(row: sqlite3.Row, ran_s: float | None, ended_s: float | None) -> float | None:
    """Return the seconds at the end of an attempt that were lost, because no checkpoint keeps them.

    Nothing counts as lost where no decision records what was saved.  None: the decision did not know.
    """
    if ran_s is None or ended_s is None or row["cause"] == COMPLETED or row["left"] is None:
        return 0.0
    advanced, age_s, _ = json.loads(row["left"])
    ran = ended_s - ran_s
    if advanced is None:
        return None
    return min(age_s or 0.0, ran) if advanced else ran


def _hour(at_s: float) -> int:
    return int(at_s // HOUR_S)


def _by_hour(span: UsageSpan) -> Iterator[dict[str, object]]:
    """Yield the use of an attempt that has ended in each hour, as columns."""
    began = True
    for hour in range(_hour(span.placed_s), _hour(span.ended_s or span.placed_s) + 1):
        used = span.sum(hour * HOUR_S, (hour + 1) * HOUR_S)
        if used is not None:
            figures = {name: getattr(used, name) for name in _FIGURES}
            who = {"hour": hour, "owner": span.user, "team": span.team}
            yield {**who, "began": int(began), "carried": int(not began), **figures}
            began = False


_FIGURES: Final = (
    *("device_s", "cpu_s", "useful_device_s", "useful_cpu_s", "measured_device_s", "busy_device_s"),
)


def _usage_sum(row: sqlite3.Row) -> UsageSum:
    figures = {name: row[name] for name in _FIGURES}
    return UsageSum(row["owner"], row["team"], attempts=row["attempts"], **figures)


def _usage_hour(row: sqlite3.Row) -> UsageHour:
    begins_at = datetime.fromtimestamp(row["hour"] * HOUR_S, UTC)
    return UsageHour(begins_at, row["owner"], row["team"], row["device_s"], row["cpu_s"])


def _seconds(text: str | None) -> float | None:
    return None if text is None else _known_seconds(text)


def _known_seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
