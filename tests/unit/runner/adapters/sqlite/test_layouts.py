"""A store that commit 5dac0be wrote, the oldest that is converted, is brought up to the present layout.

``tests/fixtures/state_directory`` says what is in it; ``tests/chaos/test_old_state_directory.py`` starts a
daemon on it.
"""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import OLDEST, VERSION, SqliteStore, file_version

DUMP = Path(__file__).parents[4] / "fixtures" / "state_directory" / "store.sql"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The store, restored from its dump."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as store:
        store.executescript(DUMP.read_text())
    assert file_version(path) == OLDEST
    return path


def layout_of(path: Path) -> set[tuple[object, ...]]:
    """Return the tables, views and indexes of a store with their columns."""
    question = """
        SELECT part.name, part.type, field.name, field.type, field.pk
        FROM sqlite_master AS part LEFT JOIN pragma_table_info(part.name) AS field
    """
    with closing(sqlite3.connect(path)) as store:
        return set(store.execute(question))


def test_it_gets_the_layout_of_a_new_one(old: Path, tmp_path: Path) -> None:
    SqliteStore(old)
    SqliteStore(tmp_path / "new.db")
    assert file_version(old) == VERSION
    assert layout_of(old) == layout_of(tmp_path / "new.db")


def test_it_keeps_its_jobs_usage_and_schedules(old: Path) -> None:
    store = SqliteStore(old)
    assert {row.job.id: row.job.state.kind for row in store.unfinished()} == {
        "5": "held", "6": "running", "7": "queued", "8": "queued", "9": "queued", "10": "queued",
    }  # fmt: skip
    assert store.count_states() == {"finished": 4, "held": 1, "queued": 4, "running": 1}
    assert [event.kind for event, _ in store.events(0, "1", 100)] == [
        "submitted", "image_ready", "placed", "launched", "exited",
    ]  # fmt: skip
    assert [revision.number for revision in store.revisions("9")] == [1, 2]
    assert [row.name for row in SqliteSchedules(store).active()] == ["nightly"]
    report = SqliteAccounting(store)
    now = datetime.now(UTC)
    used = {span.job for span in report.between(now - timedelta(days=36500), now)}
    assert {"1 done", "3 again", "6 running"} <= used
    report.sum_up(now + timedelta(days=36500))
    with store.connections.reader() as reader:
        assert reader.execute("SELECT count(*) FROM usage_hours").fetchone()[0] >= 1
