"""The store: one transaction per event, other threads may read, a newer file is left alone."""

import json
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.store import MOST_ROWS, OLDEST, SQL, VERSION, SqliteStore
from runner.base.errors import Refused, Unavailable
from runner.core.job.attempt import Allocation, AttemptEnd
from runner.core.job.events import Event, Exited, ImageMissing, ImageReady, Launched, LaunchFailed, Placed
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.ports.store import DecisionRow, JobRow, RecordedTransition, UsageRecord
from runner.core.ports.users import Owner
from tests.fakes.daemon.decisions import AGAIN, DONE

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANN = Owner(1001, 1002, "ann")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


def add(store: SqliteStore, name: str = "job", owner: Owner = ANN) -> Job:
    job = Job(store.next_id(), Preparing(NOW))
    store.add_all(
        (JobRow(job, name, owner, NOW, 50, RevisionText.of("{}"), {"team": "vision"}),), ("submitted by ann",)
    )
    return job


def follow(store: SqliteStore, job: Job, *events: Event) -> Job:
    for event in events:
        before = job
        job, _ = advance(before, event)
        store.record_all((RecordedTransition(before, job, event),))
    return job


RUN: tuple[Event, ...] = (ImageReady(NOW, "img"), Placed(NOW, Allocation(("GPU-a",))), Launched(NOW))


def test_a_job_comes_back_as_it_went_in(store: SqliteStore) -> None:
    job = add(store)
    assert store.get("1") == JobRow(job, "job", ANN, NOW, 50, RevisionText.of("{}"), {"team": "vision"})
    assert store.unfinished() == (store.get("1"),)


def test_what_an_attempt_held_that_began_and_ended_unseen_has_an_end_whatever_ends_with_it(
    store: SqliteStore,
) -> None:
    """In the queue of an engine an attempt begins to hold something when it is seen."""
    jobs = [add(store), add(store)]
    held = [UsageRecord(job.id, 1, "ann", "", 1, 1.0, (), NOW) for job in jobs]
    running = follow(store, jobs[0], *RUN[:2])
    before, (running, _) = running, advance(running, RUN[2])
    store.record_all((RecordedTransition(before, running, RUN[2], None, held[0]),))
    starting = follow(store, jobs[1], *RUN[:2])
    end = Exited(NOW + timedelta(minutes=1), 1, AttemptEnd(0, "completed", completed=True), DONE)
    ends = ((running, None), (starting, held[1]))
    store.record_all([RecordedTransition(job, advance(job, end)[0], end, None, usage) for job, usage in ends])
    found = SqliteAccounting(store).since(NOW - timedelta(hours=1))
    assert list(found) == [replace(each, ended_at=end.at) for each in held]


def test_ids_are_small_numbers_in_order(store: SqliteStore) -> None:
    assert [add(store).id for _ in range(3)] == ["1", "2", "3"]


def test_what_happens_on_a_full_disk_is_written_where_room_was_kept(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        """Let the file take no page more."""
        with store.connections.writer() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")

    def write(count: int) -> None:
        for number in range(count):
            store.note("1", NOW, "noted", f"{number}" * 1000)

    add(store)
    fill()
    with pytest.raises(Unavailable, match="full"):
        write(200)
    assert not store.reserve()
    with store.connections.writer() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    with monkeypatch.context() as scarce:
        scarce.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**24))
        assert not store.reserve()
    assert store.reserve()
    log = tmp_path / "store.db-wal"
    room = log.stat().st_size
    assert store.reserve()  # once is enough
    fill()
    write(200)
    assert log.stat().st_size == room


def test_an_older_store_gives_out_no_id_that_has_been_used(store: SqliteStore) -> None:
    add(store)
    assert [store.skip(used) for used in (0, 1, 7)] == [False, False, True]
    assert [add(store).id for _ in range(2)] == ["8", "9"]


def test_a_name_finds_the_newest_job_of_that_name_and_an_id_its_job(store: SqliteStore) -> None:
    for _ in range(2):
        add(store)
    found, numbered = store.find("job"), store.find("1")
    assert found is not None
    assert numbered is not None
    assert (found.job.id, numbered.job.id) == ("2", "1")
    for nothing in ("nobody", "99", "9" * 40, "-1"):
        assert store.find(nothing) is None


def test_a_name_means_ones_own_job_and_else_must_be_that_of_one_person(store: SqliteStore) -> None:
    bob = Owner(1001, 1001, "bob")
    for owner in (ANN, ANN, bob):
        add(store, owner=owner)
    own, others = store.find("job", "ann"), store.find("1", "bob")
    assert own is not None
    assert others is not None
    assert (own.job.id, others.job.id) == ("2", "1")
    with pytest.raises(Refused, match=r"job: several users have .* 3 \(bob\), 2 \(ann\); give the id"):
        store.find("job", "root")


def test_the_way_of_an_attempt_is_recorded(store: SqliteStore) -> None:
    ended = AttemptEnd(137, "killed", "killed from outside", checkpoint_step=40)
    follow(store, add(store), *RUN, Exited(NOW, 1, ended, AGAIN))
    (attempt,) = store.attempts("1")
    assert (attempt.exit_code, attempt.cause, attempt.checkpoint_step) == (137, "killed", 40)
    assert attempt.verdict == "resume from step 40: exception, in 5s"
    assert attempt.ended_at == NOW


def test_an_attempt_that_could_not_start_is_recorded_with_the_reason(store: SqliteStore) -> None:
    follow(store, add(store), *RUN[:2], LaunchFailed(NOW, "no such device", AGAIN))
    (attempt,) = store.attempts("1")
    assert (attempt.cause, attempt.message) == ("launch_failed", "no such device")


def test_an_attempt_whose_image_was_missing_never_was(store: SqliteStore) -> None:
    follow(store, add(store), *RUN[:2], ImageMissing(NOW))
    assert store.attempts("1") == ()


def test_a_submission_is_found_by_its_token(store: SqliteStore) -> None:
    job = Job(store.next_id(), Preparing(NOW))
    store.add_all((JobRow(job, "job", ANN, NOW, 50, RevisionText.of("{}")),), ("submitted",), "1001:abc")
    found = store.submitted_as("1001:abc")
    assert found is not None
    assert found.job.id == "1"
    assert store.submitted_as("1002:abc") is None


def rows(store: SqliteStore, *names: str, owner: Owner = ANN) -> list[JobRow]:
    first = int(store.next_id())
    return [
        JobRow(
            Job(str(first + i), Preparing(NOW)), name, owner, NOW, 50, RevisionText.of("{}"), {"seed": str(i)}
        )
        for i, name in enumerate(names)
    ]


def test_jobs_that_belong_together_are_written_together_or_not_at_all(store: SqliteStore) -> None:
    add(store)
    belong = rows(store, "rate-1", "rate-2", "rate-3")
    store.add_all(belong, ["first", "second", "third"], "a token")
    assert [row.name for row in store.following("2", 3)] == ["rate-1", "rate-2", "rate-3"]
    assert [event.text for event, _ in store.events(0, "3", 10)] == ["second"]
    known = store.submitted_as("a token")
    assert known is not None
    assert known.job.id == "2"
    again = rows(store, "more-1", "more-2")
    with pytest.raises(Refused):
        store.add_all(again, ["first", "second"], "a token")
    assert store.next_id() == "5"
    assert store.following("5", 2) == ()


def test_the_newest_job_of_somebody_with_a_name_is_found(store: SqliteStore) -> None:
    bob = Owner(1002, 1002, "bob")
    store.add_all([*rows(store, "a", "b", "a")], ["1", "2", "3"])
    store.add_all(rows(store, "a", owner=bob), ["4"])
    found = [store.newest_of(*asked) for asked in (("ann", "a"), ("bob", "a"), ("bob", "b"))]
    assert [row and row.job.id for row in found] == ["3", "4", None]


def test_jobs_are_found_by_their_labels(store: SqliteStore) -> None:
    add(store)
    store.add_all(rows(store, "a", "b"), ["1", "2"])
    day = NOW - timedelta(days=1)
    asked = (("seed", None), ("seed", "1"), ("seed", "7"), ("team", "vision"), ("nobody's", None))
    found = [[row.name for row in store.labelled(day, None, 10, *label)] for label in asked]
    assert found == [["b", "a"], ["b"], [], ["job"], []]
    assert store.labelled(day, 4711, 10, "seed", None) == ()


def test_a_list_of_ones_own_jobs_is_paged_and_looks_at_no_others(store: SqliteStore) -> None:
    for _ in range(5):
        add(store)
    uid = store.unfinished()[0].owner.uid
    assert [row.job.id for row in store.recent(NOW, uid, 2)] == ["5", "4"]
    assert [row.job.id for row in store.recent(NOW, uid, 9, before=3)] == ["2", "1"]
    with store.transaction() as connection:
        connection.execute("UPDATE jobs SET uid = uid + 1 WHERE id > 1")
        values = {"since": "2020", "uid": uid, "limit": 9, "before": None}
        steps = [
            row["detail"]
            for name in ("unfinished_ids", "ended_ids_of_owner", "ended_ids_since")
            for row in connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values)
        ]
    assert [row.job.id for row in store.recent(NOW, uid, 9)] == ["1"]
    scans = [step for step in steps if step.startswith("SCAN jobs")]
    assert scans == ["SCAN jobs USING INDEX jobs_unfinished"]  # which has those that have not ended


def test_a_page_has_those_that_have_ended_or_the_others_however_many_rows_are_damaged(
    store: SqliteStore,
) -> None:
    for _ in range(12):
        add(store)
    with store.transaction() as connection:
        ended = "UPDATE jobs SET state = 'finished', ended_at = ? WHERE id % 2 = 0"
        connection.execute(ended, (NOW.isoformat(),))
        connection.execute("UPDATE jobs SET job = 'torn' WHERE id IN (6, 8, 9)")

    def ids(*asked: object, **named: object) -> str:
        return " ".join(row.job.id for row in store.recent(*asked, **named))  # type: ignore[arg-type]

    for since in (NOW, None):
        for uid in (None, ANN.uid):
            assert ids(since, uid, 3) == "12 11 10"
            assert ids(since, uid, 3, before=10) == "7 5 4"
            assert ids(since, uid, 3, ended=True) == "12 10 4"
            assert ids(since, uid, 9, before=11, ended=False) == "7 5 3 1"
    assert ids(NOW + timedelta(days=1), None, 9, ended=True) == ""


def test_an_unchanged_job_is_parsed_once_and_a_changed_one_anew(store: SqliteStore) -> None:
    first, second = add(store), add(store)
    before = store.recent(NOW, None, 10)
    assert [row is again for row, again in zip(before, store.recent(NOW, None, 10), strict=True)] == [
        True,
        True,
    ]
    follow(store, first, RUN[0])
    after = store.recent(NOW, None, 10)
    assert (after[0] is before[0], after[1] is before[1]) == (True, False)
    assert (after[0].job.id, after[1].job.state.kind) == (second.id, "queued")


def test_a_page_is_one_row_of_each_statement_and_damaged_rows_of_it_are_left_out(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        add(store)
    with store.transaction() as connection:
        connection.execute("UPDATE jobs SET job = CAST(X'7b00ff' AS TEXT) WHERE id = 2")
        connection.execute("UPDATE jobs SET name = CAST(X'62c328' AS TEXT) WHERE id = 3")
    read: list[int] = []
    rows = SqliteStore.rows

    def counting(self: SqliteStore, name: str, /, **values: object) -> list[sqlite3.Row]:
        found = rows(self, name, **values)
        read.append(len(found))
        return found

    monkeypatch.setattr(SqliteStore, "rows", counting)
    assert [(row.job.id, row.name) for row in store.recent(NOW, None, 3)] == [
        ("4", "job"),
        ("3", "b\ufffd("),
        ("1", "job"),
    ]
    assert set(read) == {1}


def test_nothing_is_kept_of_a_job_that_has_ended(store: SqliteStore) -> None:
    done = Exited(NOW, 1, AttemptEnd(0, "completed", completed=True), DONE)
    job, waits = add(store), add(store)
    assert len(store.recent(NOW, None, 10)) == 2
    assert set(store._kept_rows) == {int(job.id), int(waits.id)}
    follow(store, job, *RUN, done)
    assert set(store._kept_rows) == {int(waits.id)}
    assert [row.job.state.kind for row in store.recent(NOW, None, 10)] == ["preparing", "finished"]
    assert store.get(job.id) is not None
    assert set(store._kept_rows) == {int(waits.id)}


def test_of_many_jobs_the_newest_are_kept_as_they_were_read(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.adapters.sqlite.store.KEPT_ROWS", 2)
    for _ in range(4):
        add(store)
    assert len(store.recent(NOW, None, 10)) == 4
    assert len(store._kept_rows) == 2


def test_events_are_numbered_and_can_be_read_from_anywhere(store: SqliteStore) -> None:
    follow(store, add(store), *RUN)
    add(store, "other")
    store.note("2", NOW, "log_cut", "3 MiB cut")
    events = store.events(0, None, 100)
    assert [event.kind for event, _ in events] == [
        "submitted",
        "image_ready",
        "placed",
        "launched",
        "submitted",
        "log_cut",
    ]
    assert [(event.seq, name) for event, name in store.events(4, "2", 100)] == [(5, "other"), (6, "other")]
    assert store.last_seq() == 6


def test_recent_jobs_are_the_unfinished_and_those_that_ended_lately(store: SqliteStore) -> None:
    done = Exited(NOW, 1, AttemptEnd(0, "completed", completed=True), DONE)
    follow(store, add(store), *RUN, done)
    add(store)
    assert [row.job.id for row in store.recent(NOW, None, 10)] == ["2", "1"]
    assert [row.job.id for row in store.recent(NOW + timedelta(days=1), None, 10)] == ["2"]
    assert store.recent(NOW, 4711, 10) == ()
    assert store.count_states() == {"finished": 1, "preparing": 1}


def test_a_decision_is_written_with_the_event_that_follows_from_it(store: SqliteStore) -> None:
    job = follow(store, add(store), *RUN)
    event = Exited(NOW, 1, AttemptEnd(1, "exception"), AGAIN)
    after, _ = advance(job, event)
    kept = DecisionRow("1", 1, "exit", NOW, '{"record": 1}')
    with pytest.raises(ValueError, match="nan"):
        store.record_all((RecordedTransition(job, after, event, replace(kept, job_id="nan")),))
    assert store.decisions("1") == ()
    store.record_all((RecordedTransition(job, after, event, kept),))
    store.decided(replace(kept, attempt=2, moment="watch"))
    assert store.decisions("1") == (kept, replace(kept, attempt=2, moment="watch"))
    assert store.decisions("1", 1) == (kept,)
    assert store.decisions("2") == ()


def test_an_event_and_its_state_are_written_together_or_not_at_all(store: SqliteStore) -> None:
    job = add(store)
    after, _ = advance(job, RUN[0])
    elsewhere = DecisionRow("99", 1, "exit", NOW, "{}")  # there is no such job: the last statement fails
    with pytest.raises(Refused, match="FOREIGN KEY"):
        store.record_all((RecordedTransition(job, after, RUN[0], elsewhere),))
    assert store.last_seq() == 1
    (row,) = store.unfinished()
    assert row.job == job
    follow(store, job, *RUN)


def test_changes_to_many_jobs_are_written_together(store: SqliteStore) -> None:
    many = MOST_ROWS + 6
    jobs = [add(store, f"job-{number}") for number in range(many)]
    for number, event in enumerate(RUN):
        after = [advance(job, event)[0] for job in jobs]
        held = [UsageRecord(job.id, 1, f"user-{job.id}", "", 1, 2.0, ("GPU-a",), NOW) for job in jobs]
        store.record_all([
            RecordedTransition(was, now, event, usage=lent if number == 1 else None)
            for was, now, lent in zip(jobs, after, held, strict=True)
        ])  # fmt: skip
        jobs = after
    assert [row.job for row in store.unfinished()] == jobs
    events = [(event.job_id, event.kind) for event, _ in store.events(many, None, 1000)]
    kinds = [event.kind for event in RUN]
    assert events == [(job.id, kind) for kind in kinds for job in jobs]
    for job in jobs:
        (attempt,) = store.attempts(job.id)
        assert (attempt.number, attempt.image, attempt.launched_at) == (1, "img", NOW)
    assert {each.job_id: each.owner for each in SqliteAccounting(store).since(NOW)} == {
        job.id: f"user-{job.id}" for job in jobs
    }


def test_of_changes_to_many_jobs_none_is_written_if_one_cannot_be(store: SqliteStore) -> None:
    jobs = [add(store, f"job-{number}") for number in range(3)]
    after = [advance(job, RUN[0])[0] for job in jobs]
    changes = [RecordedTransition(was, now, RUN[0]) for was, now in zip(jobs, after, strict=True)]
    changes[1] = replace(changes[1], decision=DecisionRow("99", 1, "exit", NOW, "{}"))
    with pytest.raises(Refused, match="FOREIGN KEY"):
        store.record_all(changes)
    assert [row.job for row in store.unfinished()] == jobs
    assert store.last_seq() == len(jobs)


def test_other_threads_read_while_one_writes(store: SqliteStore) -> None:
    add(store)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(store.unfinished())))
    thread.start()
    thread.join()
    assert found == [1]


def test_what_was_recorded_is_there_for_the_next_daemon(store: SqliteStore, tmp_path: Path) -> None:
    follow(store, add(store), *RUN)
    again = SqliteStore(tmp_path / "store.db")
    assert again.instance == store.instance
    assert [row.job.state.kind for row in again.unfinished()] == ["running"]


@pytest.mark.parametrize(
    ("version", "refusal"),
    [(VERSION + 1, "written by a newer runner"), (OLDEST - 1, "made by a development version before 0.1.0")],
)
def test_a_store_of_an_unknown_version_is_refused_and_not_touched(
    version: int, refusal: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(Refused, match=refusal):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.glob("other*")] == ["other.db"]


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("my thesis")
    with pytest.raises(Refused, match="is not a job store"):
        SqliteStore(tmp_path / "store.db")
    assert (tmp_path / "store.db").read_text() == "my thesis"


def fill(path: Path) -> None:
    """Write until the file system has no room for another byte."""
    with path.open("ab", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def test_every_statement_has_a_name_and_is_valid_sql(store: SqliteStore) -> None:
    assert store.instance
    assert {"schema", "add_job", "update_job", "add_event"} <= set(SQL)


# --- How long this host leaves attempts alone


def _attempt_of(store: SqliteStore, hours: float, cause: str, **facts: object) -> None:
    """Record one job with one attempt that ran so long and ended like that."""
    job = add(store)
    follow(store, job, *RUN)
    row = store.get(job.id)
    assert row is not None
    at = NOW + timedelta(hours=hours)
    event = Exited(at, 1, AttemptEnd(1, cause), AGAIN)
    after, _ = advance(row.job, event)
    body = json.dumps({"facts": {"killed_by": "nobody", **facts}})
    store.record_all((RecordedTransition(row.job, after, event, DecisionRow(job.id, 1, "exit", at, body)),))


def test_an_empty_record_says_nothing_about_interruptions(store: SqliteStore) -> None:
    assert store.interruptions() == (0.0, 0)


def test_what_was_taken_away_is_counted_and_what_failed_by_itself_is_not(store: SqliteStore) -> None:
    for cause in ("killed", "vanished", "terminated", "stopped"):
        _attempt_of(store, 2, cause)
    for cause in ("completed", "exception", "host_oom", "device_out_of_memory"):
        _attempt_of(store, 0.5, cause)
    ran, taken = store.interruptions()
    assert (round(ran), taken) == (10 * 3600, 4)


def test_what_we_ended_ourselves_is_no_interruption(store: SqliteStore) -> None:
    for who in ("operator", "deadline", "watch/stalled", "change"):
        _attempt_of(store, 1, "killed", killed_by=who)
    _attempt_of(store, 1, "stopped", killed_by="preemption")
    assert store.interruptions()[1] == 1


def test_a_lost_device_is_an_interruption_whatever_the_program_said(store: SqliteStore) -> None:
    _attempt_of(store, 1, "exception", **{"device.lost": True})
    _attempt_of(store, 1, "exception", **{"device.lost": False})
    assert store.interruptions()[1] == 1


def test_attempts_that_never_started_have_interrupted_nobody(store: SqliteStore) -> None:
    follow(store, add(store), *RUN[:2], LaunchFailed(NOW, "no such device", AGAIN))
    assert store.interruptions() == (0.0, 0)
