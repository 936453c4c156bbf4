"""The store: one transaction per event, other threads may read, a newer file is left alone."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Unavailable
from runner.core.job.attempt import Allocation
from runner.core.job.events import Event, ImageReady, Launched, Placed
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.ports.store import JobRow, RecordedTransition
from runner.core.ports.users import Owner

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ANN = Owner(1001, 1002, "ann")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


def add(store: SqliteStore, name: str = "job", owner: Owner = ANN) -> Job:
    job = Job(store.next_id(), Preparing(NOW))
    store.add(
        JobRow(job, name, owner, NOW, 50, RevisionText.of("{}"), {"team": "vision"}), "submitted by ann"
    )
    return job


def follow(store: SqliteStore, job: Job, *events: Event) -> Job:
    for event in events:
        before = job
        job, _ = advance(before, event)
        store.record(RecordedTransition(before, job, event))
    return job


RUN: tuple[Event, ...] = (ImageReady(NOW, "img"), Placed(NOW, Allocation(("GPU-a",))), Launched(NOW))


def fill(path: Path) -> None:
    """Write until the file system has no room for another byte."""
    with path.open("ab", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


def test_a_full_disk_is_unavailable_and_changes_nothing(tmpfs: Path) -> None:
    store = SqliteStore(tmpfs / "store.db")
    job = add(store)
    fill(tmpfs / "ballast")
    after, _ = advance(job, ImageReady(NOW, "i" * 100_000))
    with pytest.raises(Unavailable, match="is the disk full"):
        store.record(RecordedTransition(job, after, ImageReady(NOW, "i" * 100_000)))
    (tmpfs / "ballast").unlink()
    assert [row.job.state.kind for row in store.unfinished()] == ["preparing"]
    follow(store, job, *RUN)
