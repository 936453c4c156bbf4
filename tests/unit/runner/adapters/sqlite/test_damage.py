"""A damaged store: what is sound is served, what is not is named, and a start never goes wrong silently."""

import random
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.backup import back_up, restore
from runner.adapters.sqlite.code_use import needed_snapshots
from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.session import session_file
from runner.adapters.sqlite.store import SQL, VERSION, SqliteStore, refuse_lost
from runner.base.errors import Refused, Unavailable
from runner.core.devices.state import AdminMark, Remembered
from runner.core.job.attempt import Allocation, AttemptEnd
from runner.core.job.events import Exited, ImageReady, Launched, Placed
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.ports.schedules import ScheduleRow
from runner.core.ports.store import DecisionRow, JobRow, RecordedTransition, UsageRecord
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import DeviceState
from tests.fakes.daemon.decisions import AGAIN

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANN = Owner(1001, 1002, "ann")
FLIPS = 40


def add(store: SqliteStore, name: str = "job") -> Job:
    job = Job(store.next_id(), Preparing(NOW))
    store.add_all(
        (JobRow(job, name, ANN, NOW, 50, RevisionText.of('{"name": "job"}'), {"team": "vision"}),),
        ("submitted by ann",),
    )
    return job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The store of thirty jobs, closed."""
    path = tmp_path / "store.db"
    store = SqliteStore(path)
    for number in range(30):
        before = add(store, f"job-{number}")
        after, _ = advance(before, event := ImageReady(NOW, "image"))
        store.record_all((RecordedTransition(before, after, event),))
    store.close()
    return path


def names(store: SqliteStore) -> list[str]:
    return [row.name for row in store.recent(NOW, None, 1000)]


def test_a_closed_store_is_one_file_and_answers_nobody(path: Path) -> None:
    assert [each.name for each in path.parent.iterdir()] == ["store.db"]
    store = SqliteStore(path)
    store.close()
    with pytest.raises(Unavailable, match="is closed"):
        store.unfinished()


@pytest.mark.parametrize("column", ["job", "labels", "submitted_at"])
def test_a_job_whose_row_cannot_be_read_is_set_aside_and_the_others_are_served(
    path: Path, column: str
) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE jobs SET {column} = 'no' WHERE id = 7")  # noqa: S608  one of three words
        file.commit()
    store = SqliteStore(path)
    assert len(store.unfinished()) == 29
    assert len(names(store)) == 29
    with pytest.raises(Refused, match="the row of job 7 cannot be read"):
        store.get("7")
    assert add(store).id == "31"


def test_a_text_that_is_no_text_any_more_keeps_nobody_from_being_served(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE jobs SET name = CAST(x'6a6fff' AS TEXT) WHERE id = 7")
        file.execute("UPDATE events SET at = CAST(x'ff' AS TEXT) WHERE job_id = 8")
        file.commit()
    store = SqliteStore(path)
    assert len(names(store)) == 30
    assert store.events(0, "8", 10) == ()
    assert len(store.events(0, "9", 10)) == 2


def test_damaged_indexes_are_written_again(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA writable_schema = ON")
        for index, columns in (("jobs_by_end", "jobs (name)"), ("events_by_job", "events (seq, job_id)")):
            sql = f"CREATE INDEX {index} ON {columns}"
            file.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, index))
        file.commit()
    store = SqliteStore(path)
    assert len(names(store)) == 30
    store.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def opened(path: Path) -> tuple[SqliteStore | None, str]:
    """Return a store, or why it is refused."""
    try:
        return SqliteStore(path), ""
    except (Refused, Unavailable) as refusal:
        return None, str(refusal)


@pytest.mark.parametrize("seed", range(FLIPS))
def test_one_flipped_byte_is_refused_with_the_next_step_or_costs_one_row(path: Path, seed: int) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(100, len(content))] ^= 0xFF  # noqa: S311  a place, no secret
    path.write_bytes(content)
    store, refusal = opened(path)
    if store is None:
        assert "runner restore FILE" in refusal
        return
    assert len(store.unfinished()) >= 29
    assert len(names(store)) >= 29
    assert int(add(store, "later").id) >= 31
    assert "later" in names(store)


def test_a_lost_store_beside_run_directories_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    refuse_lost(path, 0)
    with pytest.raises(Refused, match="runner restore FILE puts a backup back; to start with an empty store"):
        refuse_lost(path, 3)
    path.touch()
    with pytest.raises(Refused, match="is missing or empty"):
        refuse_lost(path, 3)


def copy_of(path: Path) -> Path:
    """Return a copy by SQLite itself, as ``sqlite3 store.db .backup`` makes it."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(copy)) as made:
        live.backup(made)
    return copy


@pytest.mark.parametrize("by", ["us", "sqlite"])
def test_a_copy_put_beside_the_log_of_a_running_store_is_refused(path: Path, by: str) -> None:
    store = SqliteStore(path)
    store.begin_session()
    add(store)
    copy = path.with_name("copy.db")
    if by == "us":
        back_up(path, copy)
    else:
        copy_of(path)
    add(store)
    log = path.with_name("store.db-wal").read_bytes()
    elsewhere = path.with_name("killed")
    elsewhere.mkdir()
    (elsewhere / "store.db").write_bytes(copy.read_bytes())
    (elsewhere / "store.db-wal").write_bytes(log)
    session_file(elsewhere / "store.db").write_bytes(session_file(path).read_bytes())
    with pytest.raises(Refused, match=r"belongs to another file than the store\.db beside it"):
        SqliteStore(elsewhere / "store.db")
    (elsewhere / "store.db").unlink()
    with pytest.raises(Refused, match="lies beside it"):
        SqliteStore(elsewhere / "store.db")
    (elsewhere / "store.db").write_bytes(path.read_bytes())
    assert len(names(SqliteStore(elsewhere / "store.db"))) == 32


def test_a_restore_keeps_the_earlier_store_and_refuses_what_is_newer_or_damaged(path: Path) -> None:
    copy = path.with_name("copy.db")
    back_up(path, copy)
    store = SqliteStore(path)
    add(store)
    store.close()
    kept = restore(copy, path, NOW)
    assert [each.name for each in kept] == ["store.db.before-20300101T000000Z"]
    assert len(names(SqliteStore(path))) == 30
    assert len(names(SqliteStore(kept[0]))) == 31
    with closing(sqlite3.connect(copy)) as file:
        file.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(Refused, match="written by a newer runner"):
        restore(copy, path, NOW)
    damaged = bytearray(kept[0].read_bytes())
    damaged[4096 * 2 : 4096 * 3] = bytes(4096)
    copy.write_bytes(damaged)
    with pytest.raises(Refused, match="is damaged"):
        restore(copy, path, NOW)
    assert len(names(SqliteStore(path))) == 30


@pytest.fixture
def lively(path: Path) -> Path:
    """The store of thirty jobs of which the eighth has run, with a row in every table; closed."""
    with closing(SqliteStore(path)) as store:
        job = store.unfinished()[7].job
        usage = UsageRecord(job.id, 1, "ann", "", 1, 1.0, ("GPU-a",), NOW)
        placed = Placed(NOW, Allocation(("GPU-a",)))
        for event in (placed, Launched(NOW), Exited(NOW, 1, AttemptEnd(1, "killed"), AGAIN)):
            decision = DecisionRow(job.id, 1, "exit", NOW, '{"facts": {}}')
            before = job
            job, _ = advance(before, event)
            used, decided = (usage, None) if event is placed else (None, decision)
            store.record_all((RecordedTransition(before, job, event, decided, used),))
        marks, schedules = SqliteDeviceMarks(store, "boot"), SqliteSchedules(store)
        for uuid in ("GPU-a", "GPU-b"):
            marks.say(uuid, AdminMark(DeviceState.DRAINED, "", "ann", NOW))
            marks.keep({uuid: Remembered(None, frozenset(), 0.0)})
        for name in ("nightly", "weekly"):
            row = ScheduleRow(0, name, 1, 1, "ann", "/job.yaml", "", {}, NOW, NOW, "active", "")
            made = schedules.add(row, None)
            for hour in range(2):
                schedules.record_firing(made, NOW.replace(hour=hour), NOW, "due", "")
    return path


TABLES = {
    "jobs": "labels", "attempts": "placed_at", "events": "at", "decisions": "body", "revisions": "edits",
    "lendings": "devices", "devices": "since", "schedules": "terms", "occasions": "at", "texts": "text",
    "meta": "value",
}  # fmt: skip


def read_all(store: SqliteStore) -> dict[str, int]:
    """Return the number of rows that every question about the store gives."""
    marks, schedules, accounting = (
        SqliteDeviceMarks(store, "boot"),
        SqliteSchedules(store),
        SqliteAccounting(store),
    )
    early, late = NOW.replace(year=2000), NOW.replace(year=2100)
    feed = SqliteNotificationFeed(store)
    feed.told("notify")
    store.interruptions()
    needed_snapshots(store, lambda _: True)
    jobs = [str(number) for number in range(1, 31)]
    return {
        "jobs": len(store.recent(early, None, 1000)),
        "unfinished": len(store.unfinished()),
        "labelled": len(store.labelled(early, None, 1000, "team", None)),
        "attempts": sum(len(store.attempts(job)) for job in jobs),
        "events": len(store.events(0, None, 1000)),
        "notifications": len(feed.after(0, 1000)),
        "counted": len(store.attempt_ends(0, 1000)) + len(store.rule_uses(0, 1000)),
        "decisions": sum(len(store.decisions(job)) for job in jobs),
        "revisions": sum(len(store.revisions(job)) for job in jobs),
        "texts": sum(store.revision(job, 1) is not None for job in jobs),
        "usage": len(tuple(accounting.since(early))),
        "switches": len(accounting.switches_since(early)),
        "spans": len(accounting.between(early, late)),
        "lasted": len(accounting.lasted_s("ann", "name", "job-7")),
        "marks": len(marks.all()) + len(marks.kept()),
        "schedules": len(schedules.listed(None, every=True)) + len(schedules.active()),
        "firings": len(schedules.due()) + len(schedules.firings(1)) + len(schedules.firings(2)),
        "done": store.cleaned_up_to(),
    }


WHERE = {
    "attempts": "job_id = 8", "revisions": "job_id = 8", "lendings": "job_id = 8", "decisions": "seq = 1",
    "devices": "uuid = 'GPU-b'", "meta": "key = 'device:GPU-b'",
    "occasions": "schedule = 2 AND at = (SELECT max(at) FROM occasions)",
}  # fmt: skip
"""The row of a table; else its last."""


@pytest.mark.parametrize("garbage", ["no", "7", "{", "null"])
@pytest.mark.parametrize("table", TABLES)
def test_one_bad_row_of_any_table_is_told_and_takes_no_other_away(
    lively: Path, table: str, garbage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(SqliteStore(lively)) as store:
        before = read_all(store)
    with closing(sqlite3.connect(lively)) as file:
        where = WHERE.get(table, f"rowid = (SELECT max(rowid) FROM {table})")  # noqa: S608  a key of TABLES
        file.execute(f"UPDATE {table} SET {TABLES[table]} = ? WHERE {where}", (garbage,))  # noqa: S608
        file.commit()
    capsys.readouterr()
    with closing(SqliteStore(lively)) as store:
        after = read_all(store)
        told, of_8 = capsys.readouterr().out, store.unreadable("8")
    lost = {name: before[name] - count for name, count in after.items() if before[name] != count}
    assert lost
    assert table == "texts" or max(lost.values()) <= 2  # all thirty jobs share one text
    assert f'"row": "{table.replace("texts", "jobs")}: ' in told
    if table in {"attempts", "revisions", "decisions", "lendings"}:
        assert any(each.startswith(f"{table}: job_id=8") for each in of_8)


def test_every_question_reads_json_that_may_be_damaged() -> None:
    """SQLite refuses a whole question because of one text that is no JSON."""
    for name, text in SQL.items():
        for taken in re.findall(r"\bjson_(?:extract|each)\(([^,)]*)", text):
            assert taken.startswith(("iif(json_valid(", ":")), name
