"""Allocations, from the rows of a real store."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.store import SqliteStore
from runner.core.accounting.usage import Switch, UsageSpan
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.policy.facts import DecisionPoint
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.ports.users import Owner

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
H = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = SqliteStore(tmp_path / "store.db")
    row = JobRow(
        Job("1", Preparing(NOON)), "train", Owner(1000, 1000, "ada"), NOON, 50, RevisionText.of("{}")
    )
    store.add_all((row,), ("submitted",))
    return store


def lent(store: SqliteStore, attempt: int = 1, ended: datetime | None = NOON + 4 * H, **said: object) -> None:
    """Insert what the daemon writes about an attempt that was placed at noon and ran an hour later."""
    ran, cause = said.get("ran", NOON + H), said.get("cause", "killed")
    launched = ran.isoformat() if isinstance(ran, datetime) else None
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO lendings"
            " (job_id, attempt, uid, owner, team, gpus, cpus, devices, placed_at, ended_at)"
            " VALUES (1, ?, 1000, 'ada', 'vision', 2, 8.0, '[]', ?, ?)",
            (attempt, NOON.isoformat(), ended and ended.isoformat()),
        )
        connection.execute(
            "INSERT INTO attempts (job_id, number, lineage, image, placed_at, launched_at, ended_at, cause)"
            " VALUES (1, ?, 1, 'img', ?, ?, ?, ?)",
            (attempt, NOON.isoformat(), launched, ended and ended.isoformat(), cause if ended else None),
        )


def decided(store: SqliteStore, facts: dict[str, object]) -> None:
    body = json.dumps({"facts": facts})
    store.decided(DecisionRow("1", 1, DecisionPoint.EXIT, NOON + 4 * H, body))


def only(store: SqliteStore, since: datetime = NOON, until: datetime = NOON + 24 * H) -> UsageSpan:
    [found] = SqliteAccounting(store).between(since, until)
    return found


def test_a_lending_says_what_was_held_by_whom_and_when(store: SqliteStore) -> None:
    lent(store, cause="completed")
    noon_s, hour_s = NOON.timestamp(), 3600.0
    assert only(store) == UsageSpan(
        "1 train", "ada", "vision", 2, 8.0, noon_s, noon_s + 4 * hour_s, noon_s + hour_s, 0.0, None
    )


def test_what_is_still_held_has_no_end_and_lost_nothing(store: SqliteStore) -> None:
    lent(store, ended=None)
    found = only(store)
    assert (found.ended_s, found.lost_s) == (None, 0.0)


def test_what_never_ran_is_known_as_that(store: SqliteStore) -> None:
    lent(store, ran=None)
    assert only(store).started_s is None


@pytest.mark.parametrize(
    ("facts", "lost_h"),
    [
        ({"progress.advanced": True, "checkpoint.age_s": 1800.0}, 0.5),
        ({"progress.advanced": True}, 0.0),
        ({"progress.advanced": True, "checkpoint.age_s": 1e9}, 3.0),
        ({"progress.advanced": False, "checkpoint.age_s": 1e5}, 3.0),
        ({"progress.advanced": False}, 3.0),
    ],
)
def test_what_came_after_the_newest_checkpoint_is_lost(
    store: SqliteStore, facts: dict[str, object], lost_h: float
) -> None:
    lent(store)
    decided(store, facts)
    assert only(store).lost_s == lost_h * 3600


def test_of_a_program_that_keeps_its_files_nobody_knows_what_is_lost(store: SqliteStore) -> None:
    lent(store)
    decided(store, {"checkpoint.present": False})
    assert only(store).lost_s is None
    assert only(store).useful_s(NOON.timestamp(), NOON.timestamp() + 1e6) == 3 * 3600


def test_where_no_decision_tells_what_was_saved_nothing_is_held_to_be_lost(store: SqliteStore) -> None:
    lent(store)
    assert only(store).lost_s == 0


def test_only_what_was_lent_within_the_span_is_found(store: SqliteStore) -> None:
    lent(store)
    lent(store, 2, ended=None)
    assert len(SqliteAccounting(store).between(NOON + H, NOON + 2 * H)) == 2
    assert [each.ended_s for each in SqliteAccounting(store).between(NOON + 5 * H, NOON + 6 * H)] == [None]
    assert SqliteAccounting(store).between(NOON - 2 * H, NOON) == ()


def test_how_busy_devices_were_is_added_up(store: SqliteStore) -> None:
    lent(store)
    for _ in range(2):
        SqliteAccounting(store).add({("1", 1): (100.0, 40.0)})
    assert only(store).util == 0.4


def test_a_start_is_useful_from_the_first_step_on(store: SqliteStore) -> None:
    lent(store)
    report = SqliteAccounting(store)
    report.add_start("1", 1, 600.0)
    assert report.starts_s() == {"1": (1, 600.0)}
    assert only(store).started_s == (NOON + H).timestamp() + 600
    report.add_start("1", 1, 1e6)  # of a clock that was set meanwhile
    assert only(store).started_s == (NOON + 4 * H).timestamp()


def given_way(store: SqliteStore, told: datetime) -> None:
    """Insert a job of bob's, and that ada's attempt, which had saved, was to be preempted for it."""
    row = JobRow(
        Job("2", Preparing(NOON)), "short", Owner(1001, 1001, "bob"), NOON, 50, RevisionText.of("{}")
    )
    store.add_all((row,), ("submitted",))
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO events (job_id, at, kind, text, body) VALUES (1, ?, 'preempt_requested', '', ?)",
            (told.isoformat(), json.dumps({"for_job": "2", "spared_s": 900.0})),
        )
    decided(store, {"progress.advanced": True, "checkpoint.age_s": 20.0, "killed_by": "preemption"})


def placed(store: SqliteStore, job_id: int, attempt: int, at: datetime, ran: datetime) -> None:
    with store.transaction() as connection:
        connection.execute(
            "INSERT INTO lendings (job_id, attempt, uid, owner, team, gpus, cpus, devices, placed_at)"
            " VALUES (?, ?, 1000, 'ada', 'vision', 2, 8.0, '[]', ?)",
            (job_id, attempt, at.isoformat()),
        )
        connection.execute(
            "INSERT INTO attempts (job_id, number, lineage, image, placed_at, launched_at)"
            " VALUES (?, ?, 1, 'img', ?, ?)",
            (job_id, attempt, at.isoformat(), ran.isoformat()),
        )


def switch(store: SqliteStore) -> Switch:
    (found,) = (each.switch for each in SqliteAccounting(store).between(NOON, NOON + 9 * H) if each.switch)
    return found


def test_a_switch_costs_the_stop_and_the_next_start_until_its_first_step(store: SqliteStore) -> None:
    lent(store)
    given_way(store, NOON + 4 * H - timedelta(seconds=30))
    assert switch(store).cost_s == 30  # the 20 s since the checkpoint lie within them
    back = NOON + 5 * H
    placed(store, 1, 2, back, back + timedelta(seconds=2))
    assert switch(store).cost_s == 32
    SqliteAccounting(store).add_start("1", 2, 5.0)
    assert switch(store).cost_s == 37


def test_nothing_is_spared_a_job_that_was_not_placed_since(store: SqliteStore) -> None:
    lent(store)
    given_way(store, NOON + 3 * H)
    assert (switch(store).job, switch(store).spared_s) == ("2 short", None)
    placed(store, 2, 1, NOON + 4 * H, NOON + 4 * H)
    assert switch(store).spared_s == 900
