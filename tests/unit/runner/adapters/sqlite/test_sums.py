"""The sums are what the rows say, however often and in whatever parts they were added."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.adapters.sqlite.accounting import BATCH, SETTLED, SqliteAccounting
from runner.adapters.sqlite.store import SqliteStore
from runner.core.accounting.usage import GroupBy, Used, begin_of_period, total_usage, usage_by
from runner.core.job.attempt import Allocation
from runner.core.job.events import CancelRequested, Event, ImageReady, Placed
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.ports.store import JobRow, RecordedTransition
from runner.core.ports.users import Owner

NOW = datetime(2030, 1, 10, 12, 34, 56, tzinfo=UTC)
ANN = Owner(1001, 1001, "ann")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


def add_job(store: SqliteStore, job_id: str | None = None) -> Job:
    job = Job(job_id or store.next_id(), Preparing(NOW))
    store.add_all((JobRow(job, f"job-{job.id}", ANN, NOW, 50, RevisionText.of("{}")),), ("submitted",))
    return job


def add_attempts(store: SqliteStore, count: int, seed: int = 0) -> None:
    """Add jobs with one attempt each, of seconds to days, some of which go on."""
    chance = random.Random(seed)  # noqa: S311  no secret
    for _ in range(count):
        job = add_job(store)
        placed = NOW - timedelta(seconds=chance.uniform(0, 9 * 86400))
        lasted = timedelta(seconds=chance.choice([0, 3, 1800, 3600, 30_000, 300_000]) * chance.random())
        ended = None if placed + lasted > NOW else (placed + lasted).isoformat()
        who = chance.choice(["ann", "bob"]), chance.choice(["vision", ""])
        values = (int(job.id), *who, chance.choice([0, 1, 8]), chance.random() * 8, placed.isoformat(), ended)
        with store.transaction() as connection:
            connection.execute(
                "INSERT INTO lendings (job_id, attempt, uid, owner, team, gpus, cpus, devices,"
                " placed_at, ended_at) VALUES (?, 1, 1, ?, ?, ?, ?, '[]', ?, ?)",
                values,
            )
            if chance.random() < 0.8:
                connection.execute(
                    "INSERT INTO attempts (job_id, number, lineage, image, placed_at, launched_at, ended_at,"
                    " cause) VALUES (?, 1, 1, '', ?, ?, ?, ?)",
                    (int(job.id), *[placed.isoformat()] * 2, ended, chance.choice(["completed", "killed"])),
                )
            if chance.random() < 0.5:
                busy = chance.random() * 50
                connection.execute("INSERT INTO utilisation VALUES (?, 1, ?, ?)", (int(job.id), 50.0, busy))


@pytest.mark.parametrize(
    "span", [timedelta(hours=1), timedelta(hours=3), timedelta(days=1), timedelta(days=7)]
)
def test_usage_from_sums_is_the_usage_of_every_attempt(store: SqliteStore, span: timedelta) -> None:
    add_attempts(store, 120)
    accounting = SqliteAccounting(store)
    accounting.sum_up(NOW - timedelta(days=3))
    accounting.sum_up(NOW)
    accounting.sum_up(NOW)  # nothing is added twice
    since_s = begin_of_period((NOW - span).timestamp(), NOW.timestamp())
    since = datetime.fromtimestamp(since_s, UTC)
    found = accounting.used(since, NOW)
    every = Used.of(accounting.between(since, NOW), since_s, NOW.timestamp())
    for by in (GroupBy.USER, GroupBy.TEAM):
        for now, before in zip(usage_by(found, by), usage_by(every, by), strict=True):
            assert now.who == before.who
            assert now.attempts == before.attempts
            for name in ("device_s", "cpu_s", "share", "efficiency", "utilisation"):
                assert getattr(now, name) == pytest.approx(getattr(before, name)), (now.who, name)
    assert total_usage(found).device_s == pytest.approx(total_usage(every).device_s)


def test_an_attempt_is_summed_once_nothing_more_can_be_noted_of_it(store: SqliteStore) -> None:
    add_attempts(store, BATCH + 20)
    SqliteAccounting(store).sum_up(NOW)
    with store.connections.reader() as reader:
        left = reader.execute("SELECT ended_at FROM lendings WHERE summed = 0").fetchall()
    assert all(row[0] is None or datetime.fromisoformat(row[0]) >= NOW - SETTLED for row in left)
    with store.connections.reader() as reader:
        asked = "EXPLAIN QUERY PLAN SELECT * FROM used_attempts WHERE summed = 0"
        plan = " ".join(row["detail"] for row in reader.execute(asked))
    assert "SCAN lendings USING INDEX lendings_unsummed" in plan


def test_of_jobs_the_largest_are_answered_and_the_others_are_counted(store: SqliteStore) -> None:
    add_attempts(store, 60)
    since = NOW - timedelta(days=7)
    accounting = SqliteAccounting(store)
    every = usage_by(Used.of(accounting.between(since, NOW), since.timestamp(), NOW.timestamp()), GroupBy.JOB)
    used, jobs = accounting.used_by_job(since, NOW, 7)
    assert [each.who for each in usage_by(used, GroupBy.JOB)] == [each.who for each in every[:7]]
    assert jobs == len(every)
    assert accounting.used_by_job(NOW + timedelta(days=1), NOW + timedelta(days=2), 7)[1] >= 0


def test_jobs_are_counted_by_state_with_each_change(store: SqliteStore) -> None:
    for number in range(9):
        job = add_job(store)
        events: list[Event] = [ImageReady(NOW, "img"), Placed(NOW, Allocation()), CancelRequested(NOW, "ann")]
        for event in events[: number % 4]:
            before = job
            job, _ = advance(before, event)
            store.record_all((RecordedTransition(before, job, event),))
    with store.connections.reader() as reader:
        counted = dict(reader.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
    assert store.count_states() == counted
    assert sum(counted.values()) == 9


def test_a_snapshot_sees_nothing_that_is_written_meanwhile(store: SqliteStore) -> None:
    add_job(store)
    with store.connections.snapshot():
        assert len(store.unfinished()) == 1
        add_job(store)
        assert len(store.unfinished()) == 1
    assert len(store.unfinished()) == 2
