"""Stores that earlier versions of the runner wrote are brought up to the present layout.

The dumps below ``tests/fixtures/stores`` were made by daemons of those versions, killed while a job ran.
Version 3 had three layouts: it gained tables and columns after the first stores with its number were written.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SQL, VERSION, SqliteStore, file_version

STORES = Path(__file__).parents[4] / "fixtures" / "stores"
LAYOUTS = ("version_1", "version_2", "version_3_first", "version_3_second", "version_3_last", "version_4")
WITH_SCHEDULE = ("version_3_second", "version_3_last", "version_4")
LONG_AGO, LATER = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def restored(tmp_path: Path) -> Callable[[str], Path]:
    """Restore a dump as a store and return its path."""

    def restore(layout: str) -> Path:
        path = tmp_path / f"{layout}.db"
        with closing(sqlite3.connect(path)) as store:
            store.executescript((STORES / f"{layout}.sql").read_text())
        return path

    return restore


def layout_of(path: Path) -> set[tuple[object, ...]]:
    """Return the tables, views and indexes of a store with their columns."""
    question = """
        SELECT part.name, part.type, field.name, field.type, field.pk
        FROM sqlite_master AS part LEFT JOIN pragma_table_info(part.name) AS field
    """
    with closing(sqlite3.connect(path)) as store:
        return set(store.execute(question))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_of_an_earlier_layout_gets_the_layout_of_a_new_one(
    layout: str, restored: Callable[[str], Path], tmp_path: Path
) -> None:
    path, new = restored(layout), tmp_path / "new.db"
    SqliteStore(path)
    SqliteStore(new)
    assert file_version(path) == VERSION
    assert layout_of(path) == layout_of(new)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_of_an_earlier_layout_keeps_its_jobs(layout: str, restored: Callable[[str], Path]) -> None:
    store = SqliteStore(restored(layout))
    assert [(row.name, row.job.state.kind) for row in store.unfinished()] == [
        ("running", "running"),
        ("waits", "queued"),
    ]
    done = store.find("done")
    assert done is not None
    assert done.job.state.kind == "finished"
    assert [attempt.cause for attempt in store.attempts(done.job.id)] == ["completed"]
    assert [event.kind for event, _ in store.events(0, done.job.id, 100)] == [
        "submitted", "image_ready", "placed", "launched", "exited",
    ]  # fmt: skip
    assert [revision.number for revision in store.revisions(done.job.id)] == [1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_usage_can_be_reported_from_a_store_of_an_earlier_layout(
    layout: str, restored: Callable[[str], Path]
) -> None:
    report = SqliteAccounting(SqliteStore(restored(layout)))
    report.add({("1", 1): (10.0, 5.0)})
    used = sorted(report.between(LONG_AGO, LATER), key=lambda span: span.job)
    before_accounting = layout in {"version_1", "version_2", "version_3_first", "version_3_second"}
    assert [span.job for span in used] == ([] if before_accounting else ["1 done", "3 running"])
    assert [span.util for span in used] == ([] if before_accounting else [0.5, None])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_schedules_of_a_store_of_an_earlier_layout_are_listed(
    layout: str, restored: Callable[[str], Path]
) -> None:
    schedules = SqliteSchedules(SqliteStore(restored(layout)))
    assert [row.name for row in schedules.active()] == (["nightly"] if layout in WITH_SCHEDULE else [])


@pytest.mark.parametrize("layout", ["version_3_first", "version_3_second"])
def test_a_store_that_was_brought_up_without_the_missing_tables_is_completed(
    layout: str, restored: Callable[[str], Path], tmp_path: Path
) -> None:
    """Versions of the runner before this one migrated such a store to version 4 as it was."""
    path, new = restored(layout), tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as store:
        store.executescript(SQL["version_4"])
    SqliteStore(path)
    SqliteStore(new)
    assert layout_of(path) == layout_of(new)


def test_a_store_of_version_5_without_the_table_of_starts_is_completed(tmp_path: Path) -> None:
    path, new = tmp_path / "store.db", tmp_path / "new.db"
    for each in (path, new):
        SqliteStore(each)
    with closing(sqlite3.connect(path)) as store:
        store.executescript("DROP TABLE starts")
    SqliteStore(path)
    assert layout_of(path) == layout_of(new)
